"""The page of a check of a GPU."""

from collections import Counter
from pathlib import Path

from schemas.results.gpu_check import AttentionTruths, DeviceFacts, GpuCheck, GpuTests, Outcome
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.common.records import read_record
from transformer_core.report.page import environment

WORDS: dict[Outcome, str] = {
    "held": "held",
    "not_held": "did not hold",
    "unsupported": "unsupported",
    "failed": "failed",
}


def render(
    found: GpuCheck, tests: GpuTests, attention: AttentionTruths, device: DeviceFacts
) -> str:
    """The page as HTML, with everything needed for remote debugging."""
    counts = Counter(check.outcome for check in found.checks)
    return (
        environment()
        .get_template("gpu_check_page.html")
        .render(
            found=found,
            words=WORDS,
            counts=[(WORDS[outcome], counts[outcome]) for outcome in WORDS if counts[outcome]],
            tests=tests,
            attention=attention,
            device=device,
        )
    )


class GpuCheckPageJob(Job):
    """Writes the passed and failed checks of a GPU, with reasons, as one HTML file."""

    kind = "gpu_check_page"

    checks: Path
    tests: Path
    attention: Path
    device: Path
    output: Path

    def run(self, log_file: Path | None) -> None:
        page = render(
            read_record(self.checks, GpuCheck),
            read_record(self.tests, GpuTests),
            read_record(self.attention, AttentionTruths),
            read_record(self.device, DeviceFacts),
        )
        write_text(self.output, page)
