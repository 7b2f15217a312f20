"""The page of a check of a GPU."""

from collections import Counter
from pathlib import Path
from typing import TypeVar

from schemas.base import Schema
from schemas.results.gpu_check import AttentionTruths, DeviceFacts, GpuCheck, GpuTests, Outcome
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.common.records import read_record
from transformer_core.decide.gpu_check import check
from transformer_core.report.page import environment

WORDS: dict[Outcome, str] = {
    "held": "held",
    "not_held": "did not hold",
    "unsupported": "unsupported",
    "failed": "failed",
    "not_run": "not run yet",
}
Record = TypeVar("Record", bound=Schema)


def render(
    found: GpuCheck,
    tests: GpuTests | None,
    attention: AttentionTruths | None,
    device: DeviceFacts | None,
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
    """Writes the passed and failed checks of a GPU, with reasons, as one HTML file, from whatever
    results there are."""

    kind = "gpu_check_page"

    results: Path = Path("results")
    output: Path

    def run(self, log_file: Path | None) -> None:
        folder = self.results / "gpu_check"
        page = render(
            check(self.results),
            _read(folder / "tests.json", GpuTests),
            _read(folder / "attention.json", AttentionTruths),
            _read(folder / "device.json", DeviceFacts),
        )
        write_text(self.output, page)


def _read(path: Path, kind: type[Record]) -> Record | None:
    return read_record(path, kind) if path.exists() else None
