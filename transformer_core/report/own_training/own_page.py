"""Your own training as one self-contained page: ``python -m
transformer_core.report.own_training.own_page``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import seaborn as sns
from markupsafe import Markup, escape

from schemas.errors import ConfigError
from schemas.results.profiles import Breakdown
from transformer_core.common.endings import program
from transformer_core.common.files import write_text
from transformer_core.common.seals import write_sealed
from transformer_core.decide import intervals as medians
from transformer_core.measure import session_ratio
from transformer_core.own_training.techniques import TECHNIQUES
from transformer_core.report.contents import Section
from transformer_core.report.kit import svg
from transformer_core.report.own_training.own_figures import DRAWINGS
from transformer_core.report.own_training.own_results import (
    OwnResults,
    read_own_results,
    together,
)
from transformer_core.report.page import environment

SECTIONS = (
    Section("recommendation", "The answer", closed=False),
    Section("summary", "What was tried?", closed=False),
    Section("profiles", "What do the devices do in a step?"),
    Section("memory", "What does it cost in memory?", closed=False),
    Section("equivalence", "Does it train the same model?", closed=False),
    Section("machine", "What can this machine do?"),
    Section("method", "How was it measured?"),
)
"""The sections of the report that have a meaning here, under the same names."""


def render(results: OwnResults, pictures: dict[str, svg.Picture]) -> str:
    """The page as HTML."""
    templates = environment()
    templates.filters["marked"] = marked
    shared = {
        "study": results.study,
        "results": results,
        "found": results.found,
        "hardware": results.found.provenance.hardware,
        "pictures": pictures,
        "words": {name: tried.words for name, tried in TECHNIQUES.items()},
        "together": together,
        "per_step": per_step,
        "confidence": medians.CONFIDENCE,
        "trim": session_ratio.TRIM,
    }
    bodies = {
        section: Markup(
            templates.get_template(f"own_training/{section.name}.html").render(**shared)
        )
        for section in SECTIONS
    }
    return templates.get_template("own_training/own_page.html").render(**shared, sections=bodies)


def marked(text: str) -> Markup:
    """HTML of a sentence whose code stands between back-ticks."""
    parts = text.split("`")
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(p) if n % 2 else escape(p) for n, p in enumerate(parts))


def per_step(breakdown: Breakdown, nanoseconds: int | None) -> float | None:
    """Milliseconds of a step, mean over steps and devices, from a time summed over them."""
    steps = sum(max(1, len(device.steps)) for device in breakdown.devices)
    return None if nanoseconds is None else nanoseconds / 1e6 / steps


def draw_all(results: OwnResults, folder: Path) -> dict[str, svg.Picture]:
    """The figures, also as files in ``folder``."""
    pictures = {}
    for name, draw in DRAWINGS.items():
        with sns.axes_style("ticks"), mpl.rc_context(svg.STYLE):
            drawing = draw(results)
            text = svg.render(drawing.figure, name, drawing.title, drawing.description)
        write_sealed(folder / f"{name}.svg", text)
        pictures[name] = svg.read(folder / f"{name}.svg")
    return pictures


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.report.own_training.own_page",
        description="Write the report of your own training as one HTML file.",
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="the results")
    parser.add_argument("--output", type=Path, required=True, help="the page")
    options = parser.parse_args(arguments)
    try:
        results = read_own_results(options.results)
        page = render(results, draw_all(results, results.folder / "figures"))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    write_text(options.output, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
