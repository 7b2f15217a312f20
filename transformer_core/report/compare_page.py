"""These results against others as a page."""

from pathlib import Path

import matplotlib as mpl
import seaborn as sns
from markupsafe import Markup

from schemas.results import Against, Change
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.common.records import read_record
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import rows
from transformer_core.report.kit.palette import VARIANT, colour_of
from transformer_core.report.page import environment

BETTER = {"FASTER", "LESS"}
WORSE = {"SLOWER", "MORE"}
TITLES = {
    "speedup": "Speed-up over the baseline",
    "throughput": "Throughput",
    "peak_memory": "Peak memory",
    "traffic": "Traffic",
}


def render(found: Against) -> str:
    """The page as HTML, in the format of the report."""
    quantities = [name for name in TITLES if any(c.quantity == name for c in found.changes)]
    return (
        environment()
        .get_template("compare_page.html")
        .render(
            found=found,
            titles=TITLES,
            by_quantity={q: [c for c in found.changes if c.quantity == q] for q in quantities},
            pictures={q: Markup(draw(found, q)) for q in quantities},
            judged=[change for change in found.changes if change.verdict],
            better=[change for change in found.changes if change.verdict in BETTER],
            worse=[change for change in found.changes if change.verdict in WORSE],
            versions={
                name: (found.here.packages.get(name), found.there.packages.get(name))
                for name in sorted({*found.here.packages, *found.there.packages})
            },
        )
    )


def draw(found: Against, quantity: str) -> str:
    """The ratios of one quantity, here over there, as SVG."""
    shown = [
        (change, change.ratio)
        for change in found.changes
        if change.quantity == quantity and change.ratio
    ]
    with sns.axes_style("ticks"), mpl.rc_context(svg.STYLE):
        figure, axes = rows(len(shown))
        for row, (change, ratio) in enumerate(shown):
            color = _color(change, VARIANT, colour_of("without"))
            axes.plot([ratio.low, ratio.high], [row, row], color=color)
            axes.plot(ratio.median, row, "o", color=color, ms=6)
        if shown:
            axes.axvline(1, color=svg.INK, ls="--", lw=1)
            axes.set_yticks(range(len(shown)), [change.variant for change, _ in shown])
            axes.set(xlabel="here over there")
            axes.set_ylim(len(shown) - 0.5, -0.5)
            axes.margins(x=0.06)
            axes.xaxis.set_major_formatter("{x:g}×")
        title = TITLES[quantity]
        words = f"{title} of each variant, here over there, with its interval."
        return svg.render(figure, f"compare_{quantity}", title, words)


def _color(change: Change, better: object, worse: object) -> object:
    if change.verdict in BETTER:
        return better
    return worse if change.verdict in WORSE else svg.INK


class ComparePageJob(Job):
    """Writes the comparison of two sets of results as one HTML file."""

    kind = "compare_page"

    against: Path
    """against.json."""
    output: Path

    def run(self, log_file: Path | None) -> None:
        write_text(self.output, render(read_record(self.against, Against)))
