"""The figures of the report as SVG."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import matplotlib as mpl
import seaborn as sns

from transformer_core.common.digests import write_result
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import FIGURES
from transformer_core.report.kit import svg


def draw(name: str, results: StudyResults) -> str:
    """The SVG text of a figure."""
    with sns.axes_style("ticks"), mpl.rc_context(svg.STYLE):
        drawing = FIGURES[name].draw(name, results)
        return svg.render(drawing.figure, name, drawing.title, drawing.description)


def draw_all(results: StudyResults, folder: Path, processes: int = 1) -> None:
    """Write every figure into ``folder``. Layout takes most of the time, so processes share the
    figures: forks of this one, which has imported the drawing libraries and has read nothing."""
    shares = [[*FIGURES][first::processes] for first in range(processes)]
    write = partial(_write, results, folder)
    if processes == 1:
        write(shares[0])
        return
    with ProcessPoolExecutor(processes, get_context("fork")) as workers:
        list(workers.map(write, shares))


def _write(results: StudyResults, folder: Path, names: Sequence[str]) -> None:
    for name in names:
        write_result(folder / f"{name}.svg", draw(name, results), made_from=None)
