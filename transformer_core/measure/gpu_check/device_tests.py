"""The tests that need a GPU.

They are run by pytest in a process of its own, as the project's other tests are. That some fail is
a result.
"""

import importlib.util
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path

from schemas.results.gpu_check import GpuTest, GpuTests
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.measure.gpu_check.no_device import no_device

ROOT = Path(__file__).parents[3]
_TEXT = 4000
"""Characters kept of a test's output: its end, where the error is."""


def missing() -> str | None:
    """The reason why the tests cannot run here; None if they can."""
    if reason := no_device():
        return reason
    if importlib.util.find_spec("pytest") is None:
        return "pytest is not installed (pip install pytest)"
    if not (ROOT / "tests").is_dir():
        return f"the tests are not there ({ROOT / 'tests'})"
    return None


def run(folders: Sequence[str], limit: float) -> GpuTests:
    """Run the tests marked ``gpu`` in these folders of tests, for ``limit`` seconds at most."""
    reason = missing()
    if reason is not None:
        return GpuTests(
            status="unsupported", reason=reason, passed=0, failed=[], skipped=[], seconds=None
        )
    with tempfile.TemporaryDirectory() as name:
        report = Path(name, "report.xml")
        # Without the project's options: several processes would count one another's memory.
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-o", "addopts="]
        # A module that lacks a package must not keep the others from running.
        command += ["--continue-on-collection-errors", f"--junitxml={report}"]
        command += [f"tests/{folder}" for folder in folders]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            reason = f"the tests were not done after {limit:g} s"
            return GpuTests(
                status="failed", reason=reason, passed=0, failed=[], skipped=[], seconds=limit
            )
        if not report.exists():
            reason = (done.stdout + done.stderr)[-_TEXT:]
            return GpuTests(
                status="failed", reason=reason, passed=0, failed=[], skipped=[], seconds=None
            )
        return read(report.read_text())


def read(report: str) -> GpuTests:
    """Reads a pytest report in JUnit's format."""
    root = ElementTree.fromstring(report)
    cases = list(root.iter("testcase"))
    failed = [*_with(cases, "failure"), *_with(cases, "error")]
    skipped = list(_with(cases, "skipped"))
    return GpuTests(
        status="ok",
        reason=None,
        passed=len(cases) - len(failed) - len(skipped),
        failed=failed,
        skipped=skipped,
        seconds=sum(float(case.get("time", "0")) for case in cases),
    )


def _with(cases: Sequence[ElementTree.Element], tag: str) -> Iterator[GpuTest]:
    for case in cases:
        found = case.find(tag)
        if found is not None:
            name = f"{case.get('classname', '')}.{case.get('name', '')}"
            text = "\n".join(filter(None, (found.get("message"), found.text)))
            yield GpuTest(name=name, text=text[-_TEXT:])


class GpuTestsJob(Job):
    """To run the tests that need a GPU."""

    kind = "gpu_tests"

    folders: list[str]
    """Folders of tests/."""
    limit: float = 300.0
    """Seconds at most."""
    output: Path
    """tests.json to write."""

    def run(self, log_file: Path | None) -> None:
        found = run(self.folders, self.limit)
        write_text(self.output, found.model_dump_json(indent=1) + "\n")
