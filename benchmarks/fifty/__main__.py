"""Runs the audit on every pair of programs and writes the table of docs/audit.md.

``python -m benchmarks.fifty [names]`` measures some pairs, and keeps the rows of the others. Each
program runs in a fork of this process, which has already imported torch, and is watched and probed
by the same code as under ``audit-training``. Programs with two ranks, and those that recompute
layers, run under that command itself.
"""

import argparse
import difflib
import json
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # Optimizers import it when they are first used, in every fork.
import torch.utils.checkpoint

from transformer_core.audit.relations import OWN, TWIN, Finding, Notes
from transformer_core.audit.side import Audited
from transformer_core.common.files import write_text
from transformer_core.tune import side
from transformer_core.tune.order import Order

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path(__file__).resolve().parent / "programs"
PAGE = ROOT / "docs" / "audit.md"
HEAD = (
    *("error", "cause", "seen by", "false alarms", "final loss within 5 %", "losses bit by bit"),
    "TrainCheck",
)
# The line of a program that says when it was written, and the name of its table.
TABLES = {
    "held out": "the held-out pairs",
    "held out again": "the pairs held out again",
    "held out a third time": "the pairs held out a third time",
}
FIRST_TABLE = "the fifty"
RECORDED = 5
WORKERS = os.cpu_count() or 1


def every_pair() -> list[str]:
    """The names of all pairs."""
    return sorted(path.stem for path in PLACE.glob("*_*.py"))


def pair(name: str) -> str:
    """Checks the name of a pair; an unknown one is refused with those most like it."""
    if name in (known := every_pair()):
        return name
    near = ", ".join(difflib.get_close_matches(name, known, cutoff=0.3))
    raise argparse.ArgumentTypeError(f"there is no pair {name!r}; most like it: {near or 'none'}")


def table_of(name: str) -> str:
    """The table that a pair belongs to."""
    lines = (PLACE / f"{name}.py").read_text().splitlines()
    return next((table for line, table in TABLES.items() if line in lines), FIRST_TABLE)


def write_cells(name: str, column: int, cells: list[str]) -> None:
    """Sets the cells of a pair from a column on, in its table of the page; all others stay."""
    table = table_of(name)
    begin, end = f"<!-- {table} -->", f"<!-- end of {table} -->"
    head = HEAD if table == FIRST_TABLE else HEAD[:-1]  # TrainCheck was measured on the Fifty only.
    before, _, rest = PAGE.read_text().partition(begin)
    old, _, after = rest.partition(end)
    found = [row.strip("| ").split(" | ") for row in old.splitlines() if row.startswith("| [")]
    rows = {row[0][1:].partition("]")[0]: row + [""] * (len(head) - len(row)) for row in found}
    row = rows.setdefault(name, [""] * len(head))
    row[column : column + len(cells)] = cells
    shown = [head, ["---"] * len(head), *(rows[key] for key in sorted(rows))]
    text = "\n".join(f"| {' | '.join(row)} |" for row in shown)
    write_text(PAGE, f"{before}{begin}\n\n{text}\n\n{end}{after}")


class Turns:
    """Hands out the turns of an audit to a side, and keeps the facts that it sends last."""

    def __init__(self, name: str, file: Path) -> None:
        turns = [(1, True), (RECORDED - 1, True), (1 if name == TWIN else 100_000, False)]
        self._file = file
        self._left: list[dict[str, Any]] = [
            {"kind": "Train", "task": {"steps": steps, "record": record, "profile": False}}
            for steps, record in turns
        ]
        self._left += [{"kind": "TellFacts"}, {"kind": "Leave"}]

    def recv_bytes(self) -> bytes:
        """Returns the next message to the side."""
        return json.dumps(self._left.pop(0)).encode()

    def send_bytes(self, message: bytes) -> None:
        """Keeps facts, except those of a script that failed."""
        found = json.loads(message)
        if "facts" in found and not found.get("ended"):
            self._file.write_text(json.dumps(found["facts"]["audit"]["notes"]))


def forked(work: Callable[[], Any], output: Path, *streams: int) -> None:
    """Does some work in a fork of this process, on one thread, with ``streams`` to a file."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    try:
        torch.set_num_threads(1)
        with output.open("w") as file:
            for stream in streams:
                os.dup2(file.fileno(), stream)
        work()
    finally:
        sys.stdout.flush()
        os._exit(1)


def observe(script: Path, which: str, name: str, file: Path) -> None:
    """Runs a program as a side of an audit."""
    side.connect = lambda path: Turns(name, file)  # type: ignore[assignment, return-value]
    side.as_the_user_has_it = lambda: None
    side.run(Order(name, (script.name, which), str(script.parent), "", str(file.parent)), Audited)


def train(script: Path, which: str) -> None:
    """Runs a program as it is."""
    sys.argv = [script.name, which]
    os.chdir(PLACE)
    sys.path.insert(0, str(PLACE))
    runpy.run_path(script.name, run_name="__main__")


def ranks(script: Path) -> int:
    """Ranks that a program needs."""
    return 2 if "\nranks: 2\n" in script.read_text() else 1


def not_forked(script: Path) -> bool:
    """Whether a program cannot run in a fork of this process."""
    return ranks(script) > 1 or "checkpoint(" in script.read_text()


def findings(script: Path, which: str) -> list[Finding]:
    """The audit's findings in a program."""
    if not_forked(script):
        several = ["torchrun", "--nproc-per-node", "2"] if ranks(script) > 1 else []
        command = [sys.executable, "-m", "transformer_core.audit", "--json", *several]
        command += [script.name, which]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(
            command, cwd=PLACE, capture_output=True, text=True, env=environment, check=False
        )
        answer = json.loads(ended.stdout)
        if answer["status"] == "failed":
            raise RuntimeError(f"{script.name} {which}: {answer['reason']}")
        return [Finding(**f) for f in answer["findings"]]
    notes = []
    with tempfile.TemporaryDirectory() as folder:
        for name in (OWN, TWIN):
            file = Path(folder) / f"{name}.json"
            forked(partial(observe, script, which, name, file), Path(os.devnull), 1, 2)
            if not file.exists():
                raise RuntimeError(f"the audit cannot observe {script.name} {which}")
            notes.append(Notes.of(json.loads(file.read_text())))
    return Notes.together(notes).findings


def losses(script: Path, which: str) -> list[str]:
    """The losses that the first rank of a program prints; RuntimeError if there are none."""
    if not_forked(script):
        command = ["torchrun", "--standalone", "--nproc-per-node", str(ranks(script))]
        command += ["--local-ranks-filter", "0", script.name, which]
        ended = subprocess.run(command, cwd=PLACE, capture_output=True, text=True, check=False)
        text = ended.stdout
    else:
        with tempfile.NamedTemporaryFile() as file:
            forked(partial(train, script, which), Path(file.name), 1)
            text = Path(file.name).read_text()
    found = re.findall(r"(-?\d+\.\d{6}|nan)$", text, re.M)
    if not found:
        raise RuntimeError(f"{script.name} {which} prints no loss")
    return found


def row_of(script: Path) -> list[str]:
    """The row of a pair in the table, up to the losses."""
    words = script.read_text().split('"""')[1].strip().splitlines()
    link = next(line for line in words if line.startswith("https:"))
    replay = next((line for line in words if line.startswith("replay: ")), "")
    try:
        cells = [f"not run: {replay.removeprefix('replay: ')}"] if replay else measure(script)
    except (RuntimeError, OSError, ValueError) as error:
        cells = [f"not run: {error}"]
    return [f"[{script.stem}]({link})", words[0], *cells, *[""] * (4 - len(cells))]


def measure(script: Path) -> list[str]:
    """Audits both programs of a pair, and compares their losses: the relations that see the faulty
    one, false alarms, the final losses within 5 %, the losses bit by bit."""
    faulty, mended = findings(script, "faulty"), findings(script, "mended")
    seen = ", ".join(dict.fromkeys(f.relation + ("" if f.sure else " (a look)") for f in faulty))
    wrong = ", ".join(dict.fromkeys(f.relation for f in mended if f.sure))
    one, two = losses(script, "faulty"), losses(script, "mended")
    last = float(one[-1]), float(two[-1])
    within = "agrees" if abs(last[0] / last[1] - 1) <= 0.05 else "differs"
    pairs = enumerate(zip(one, two, strict=False), 1)
    first = next((number for number, (a, b) in pairs if a != b), None)
    bitwise = f"differs at step {first}" if first else "agrees"
    return [seen or "**no**", wrong or "none", within, bitwise]


def explain(names: list[str]) -> None:
    """Prints each finding of some pairs."""
    for name in names:
        for which in ("faulty", "mended"):
            print(f"{name} {which}")
            for finding in findings(PLACE / f"{name}.py", which):
                print(f"   {finding}")


def main() -> None:
    """Measures pairs and writes their rows, or prints findings."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fifty", description=__doc__)
    parser.add_argument("--explain", action="store_true", help="print findings, and write nothing")
    parser.add_argument("names", nargs="*", type=pair, help="pairs (all by default)")
    given = parser.parse_args()
    names = given.names or every_pair()
    if given.explain:
        explain(names)
        return
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("fork")) as pool:
        rows = pool.map(row_of, [PLACE / f"{name}.py" for name in names])
        for name, row in zip(names, rows, strict=True):
            write_cells(name, 0, row)
            print(" | ".join(row), flush=True)


if __name__ == "__main__":
    main()
