"""Lets contenders take turns, each once in every round, so that a change of the machine's speed
affects all of them alike."""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pandas as pd
from tqdm import tqdm


@dataclass(frozen=True)
class Row:
    part: str  # the part that is compared
    contender: str  # the contender's name
    unit: str  # unit of the three numbers that follow
    median: float | None  # median over the rounds; None if it could not run
    lowest: float | None  # of the rounds
    highest: float | None  # of the rounds
    ratio: float | None  # median over that of the reference; None if it is not compared
    note: str = ""  # the reason why it could not run, or another finding


def take_turns(
    contenders: Mapping[str, Callable[[], float]], rounds: int, uncounted: int = 1
) -> dict[str, list[float]]:
    """The numbers of every contender, one for each round, after some ``uncounted`` rounds."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    # One contender's objects must not slow down garbage collection for all.
    gc.collect()
    gc.freeze()
    for turn in tqdm(range(uncounted + rounds), desc="rounds", disable=None):
        for name, contender in contenders.items():
            number = contender()
            if turn >= uncounted:
                found[name].append(number)
    return found


def compare(
    part: str,
    unit: str,
    found: Mapping[str, Sequence[float]],
    reference: str | None = None,
    notes: Mapping[str, str] | None = None,
) -> list[Row]:
    """Medians, and their ratios to that of ``reference``; ``notes`` by contender."""
    base = median(found[reference]) if found.get(reference or "") else None
    rows = []
    for name, values in found.items():
        middle = median(values)
        ratio = None if base is None else middle / base
        note = (notes or {}).get(name, "")
        rows.append(Row(part, name, unit, middle, min(values), max(values), ratio, note))
    return rows


def missing(part: str, contender: str, reason: str) -> Row:
    """A contender that could not run."""
    return Row(part, contender, "", None, None, None, None, reason)


def show(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown."""
    lines = ["| part | contender | median | lowest | highest | unit | ratio | note |"]
    lines += ["|---|---|---:|---:|---:|---|---:|---|"]
    for row in rows:
        numbers = [_number(value) for value in (row.median, row.lowest, row.highest)]
        cells = [row.part, row.contender, *numbers, row.unit, _number(row.ratio), row.note]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Writes the rows with all their digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False, lineterminator="\r\n")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
