"""The page of a GPU check."""

from collections import Counter
from pathlib import Path
from typing import Any

from schemas.results.gpu_check import AttentionTruths, DeviceFacts, GpuCheck, GpuTests, Outcome
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.common.records import read_record
from transformer_core.decide.gpu_check import check
from transformer_core.report.page import fill

WORDS: dict[Outcome, str] = {
    "held": "held",
    "not_held": "did not hold",
    "unsupported": "unsupported",
    "failed": "failed",
    "not_run": "not run yet",
}


def render(
    found: GpuCheck,
    tests: GpuTests | None,
    attention: AttentionTruths | None,
    device: DeviceFacts | None,
) -> str:
    """The page as HTML, with everything needed for remote debugging."""
    counts = Counter(check.outcome for check in found.checks)
    return fill(
        "gpu_check_page.html",
        found=found,
        words=WORDS,
        counts=[(WORDS[outcome], counts[outcome]) for outcome in WORDS if counts[outcome]],
        tests=tests,
        attention=attention,
        device=device,
    )


class GpuCheckPageJob(Job):
    """Writes the passed and failed checks of a GPU, with reasons, as one HTML file; missing results
    show as not run."""

    kind = "gpu_check_page"

    results: Path = Path("results")
    output: Path

    def run(self, log_file: Path | None) -> None:
        def read(name: str, kind: type[Any]) -> Any:
            path = self.results / "gpu_check" / name
            return read_record(path, kind) if path.exists() else None

        page = render(
            check(self.results),
            read("tests.json", GpuTests),
            read("attention.json", AttentionTruths),
            read("device.json", DeviceFacts),
        )
        write_text(self.output, page)
