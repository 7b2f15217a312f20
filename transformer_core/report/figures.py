"""The figures of the report as SVG: ``python -m transformer_core.report.figures``."""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import matplotlib as mpl
import seaborn as sns

from schemas.errors import ConfigError
from transformer_core.common.endings import program
from transformer_core.common.seals import write_sealed
from transformer_core.decide.results_options import add_arguments, from_arguments
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import FIGURES
from transformer_core.report.kit import svg


def draw(name: str, results: StudyResults) -> str:
    """The SVG text of a figure."""
    with sns.axes_style("ticks"), mpl.rc_context(svg.STYLE):
        drawing = FIGURES[name].draw(name, results)
        return svg.render(drawing.figure, name, drawing.title, drawing.description)


def draw_all(results: StudyResults, folder: Path, processes: int = 1) -> None:
    """Write every figure into ``folder``. What takes the time is layout, so processes share the
    figures: forks of this one, which has imported what draws and has read nothing yet."""
    shares = [[*FIGURES][first::processes] for first in range(processes)]
    write = partial(_write, results, folder)
    if processes == 1:
        write(shares[0])
        return
    with ProcessPoolExecutor(processes, get_context("fork")) as workers:
        list(workers.map(write, shares))


def _write(results: StudyResults, folder: Path, names: Sequence[str]) -> None:
    for name in names:
        write_sealed(folder / f"{name}.svg", draw(name, results))


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.report.figures",
        description=f"Draw the figures of the report as SVG: {', '.join(FIGURES)}.",
    )
    add_arguments(parser)
    parser.add_argument(
        "--output", type=Path, help="folder for the figures (default: figures in the results)"
    )
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="processes (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    folder = options.output or options.results / "figures"
    try:
        draw_all(from_arguments(options), folder, options.processes)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
