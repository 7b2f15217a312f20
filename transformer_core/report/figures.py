"""The figures of the report as SVG: ``python -m transformer_core.report.figures``."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import seaborn as sns

from schemas.errors import ConfigError
from transformer_core.data.files import write_text
from transformer_core.report import (
    corpus_figures,
    equivalence_figure,
    family_figures,
    machine_figures,
    memory_figures,
    profile_figures,
    scaling_figures,
    search_section,
    speed_figures,
    svg,
    training_figures,
)
from transformer_core.report.drawing import Drawing
from transformer_core.report.inputs import Results, add_arguments, from_arguments

FIGURES: dict[str, Callable[[Results], Drawing]] = {
    "waterfall": search_section.waterfall,
    "throughput": speed_figures.throughput,
    "speedup": speed_figures.speedup,
    "equivalence": equivalence_figure.equivalence,
    "training_loss": training_figures.training_loss,
    "validation_loss": training_figures.validation_loss,
    "memory": training_figures.memory,
    "drift": speed_figures.drift,
    "profile_partition": profile_figures.partition,
    "profile_communication": profile_figures.communication,
    "profile_timelines": profile_figures.timelines,
    "operator_roofline": profile_figures.operator_roofline,
    "memory_milestones": memory_figures.milestones,
    "memory_step": memory_figures.step,
    "memory_anatomy": memory_figures.anatomy,
    "memory_imbalance": memory_figures.imbalance,
    "memory_prediction": memory_figures.prediction,
    "families": family_figures.families,
    "family_costs": family_figures.family_costs,
    "link_error": scaling_figures.link_error,
    "scaling": scaling_figures.scaling,
    "bucket_sizes": scaling_figures.bucket_sizes,
    "projection_check": scaling_figures.projection_check,
    "lengths_characters": corpus_figures.lengths_characters,
    "lengths_tokens": corpus_figures.lengths_tokens,
    "collective_bandwidth": machine_figures.collective_bandwidth,
    "utilisation": machine_figures.utilisation,
}
"""Figures by file name, in the order of the page."""


def draw(name: str, results: Results) -> str:
    """The SVG text of a figure."""
    with sns.axes_style("ticks"), mpl.rc_context(svg.STYLE):
        drawing = FIGURES[name](results)
        return svg.render(drawing.figure, name, drawing.title, drawing.description)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.report.figures",
        description=f"Draw the figures of the report as SVG: {', '.join(FIGURES)}.",
    )
    add_arguments(parser)
    parser.add_argument(
        "--output", type=Path, help="folder for the figures (default: figures in the results)"
    )
    options = parser.parse_args(arguments)
    folder = options.output or options.results / "figures"
    try:
        results = from_arguments(options)
        for name in FIGURES:
            write_text(folder / f"{name}.svg", draw(name, results))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
