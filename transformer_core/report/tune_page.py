"""The answer for a training script as one self-contained page:
``python -m transformer_core.report.tune_page``."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.config.study import Study
from transformer_core.common.endings import program
from transformer_core.common.files import write_text
from transformer_core.common.records import read_record
from transformer_core.report.page import environment
from transformer_core.tune import terminal
from transformer_core.tune.flow import Answer, Tried, useful


def render(answer: Answer, study: Study, origin: dict[str, Any]) -> str:
    """The page as HTML."""
    timed = [each for each in answer.tried if each.ratio is not None]
    rows = sorted(answer.tried, key=lambda each: (each.ratio is None, -(each.ratio or 0)))
    return (
        environment()
        .get_template("tune_page.html")
        .render(
            study=study,
            answer=answer,
            best=answer.best,
            headline=terminal.headline(answer),
            rows=rows,
            bars=[bar(each, timed) for each in sorted(timed, key=lambda t: -(t.ratio or 0))],
            useful=useful,
            speed=terminal.speed,
            same=terminal.same,
            words=terminal.words,
            origin=origin,
        )
    )


def bar(tried: Tried, timed: Sequence[Tried]) -> dict[str, Any]:
    """Where a ratio and its interval lie on an axis from 0 to the largest upper end, in per cent."""
    largest = max([1.0, *(each.high or 0.0 for each in timed)]) * 1.02
    low, high = tried.low or 0.0, tried.high or 0.0
    return {
        "name": tried.name,
        "width": 100 * (tried.ratio or 0.0) / largest,
        "low": 100 * low / largest,
        "span": 100 * (high - low) / largest,
        "one": 100 / largest,
        "text": f"{tried.ratio:.2f} [{low:.2f}, {high:.2f}]",
        "useful": useful(tried),
    }


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.report.tune_page",
        description="Write the answer for a training script as one HTML file.",
    )
    parser.add_argument("--study", type=Path, required=True, help="study.json")
    parser.add_argument("--answer", type=Path, required=True, help="answer.json")
    parser.add_argument("--output", type=Path, required=True, help="the page")
    parser.add_argument("--brief", type=Path, required=True, help="the same as Markdown")
    given = parser.parse_args(arguments)
    answer = Answer.read(given.answer)
    origin = json.loads(given.answer.read_text(encoding="utf-8")).get("provenance", {})
    write_text(given.brief, terminal.markdown(answer))
    write_text(given.output, render(answer, read_record(given.study, Study), origin))
    return 0


if __name__ == "__main__":
    sys.exit(main())
