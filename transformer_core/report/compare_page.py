"""The page that compares two sets of results."""

from pathlib import Path

from schemas.results import Against
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.common.records import read_record
from transformer_core.report.kit.drawing import Drawing, RatioRow, ratio_points, to_svg
from transformer_core.report.kit.language import say
from transformer_core.report.kit.palette import VARIANT, colour_of
from transformer_core.report.kit.svg import picture
from transformer_core.report.page import fill

BETTER = {"FASTER", "LESS"}
WORSE = {"SLOWER", "MORE"}
TITLES = {
    "speedup": "Speed-up over the baseline",
    "throughput": "Throughput",
    "peak_memory": "Peak memory",
}


def render(found: Against) -> str:
    quantities = [name for name in TITLES if any(c.quantity == name for c in found.changes)]
    return fill(
        "compare_page.html",
        found=found,
        titles=TITLES,
        by_quantity={q: [c for c in found.changes if c.quantity == q] for q in quantities},
        pictures={q: picture(draw(found, q), q).markup for q in quantities},
        judged=[change for change in found.changes if change.verdict],
        better=[change for change in found.changes if change.verdict in BETTER],
        worse=[change for change in found.changes if change.verdict in WORSE],
        versions={
            name: (found.here.packages.get(name), found.there.packages.get(name))
            for name in sorted({*found.here.packages, *found.there.packages})
        },
    )


def draw(found: Against, quantity: str) -> str:
    shown = [
        RatioRow(
            change.variant,
            change.ratio,
            clear=change.verdict in BETTER | WORSE,
            color=VARIANT if change.verdict in BETTER else colour_of("refused"),
        )
        for change in found.changes
        if change.quantity == quantity and change.ratio
    ]
    title = TITLES[quantity]
    words = f"{title} of each variant, here over there, with its interval."
    return to_svg(
        f"compare_{quantity}",
        lambda: Drawing(ratio_points(shown, say("here over there")), title, words),
    )


class ComparePageJob(Job):
    """Writes the comparison of two sets of results as one HTML file."""

    kind = "compare_page"

    against: Path  # against.json
    output: Path

    def run(self, log_file: Path | None) -> None:
        write_text(self.output, render(read_record(self.against, Against)))
