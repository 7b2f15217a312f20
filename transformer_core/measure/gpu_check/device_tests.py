"""Runs the tests that need a GPU.

pytest runs them in separate processes, like the project's other tests. Failing tests are a result.
"""

import importlib.util
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from schemas.results.gpu_check import GpuTest, GpuTests
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.common.progress import log
from transformer_core.measure.gpu_check.device_facts import no_device
from transformer_core.run.statuses import Outcome

ROOT = Path(__file__).parents[3]
OK = Outcome(status="ok", reason=None)
_TEXT = 4000  # characters kept of a test's output: its end, where the error is


def missing() -> str | None:
    if reason := no_device():
        return reason
    if importlib.util.find_spec("pytest") is None:
        return "pytest is not installed (pip install pytest)"
    if not (ROOT / "tests").is_dir():
        return f"the tests are not there ({ROOT / 'tests'})"
    return None


def files() -> list[Path]:
    """Files with tests marked ``gpu``. Those that compile come last, since they take longest."""
    found = {path: path.read_text("utf-8") for path in sorted(ROOT.glob("tests/**/test_*.py"))}
    marked = [path for path, text in found.items() if "mark.gpu" in text]
    return sorted(marked, key=lambda path: "compile" in found[path])


def run(limit: float, tell: Callable[[GpuTests], None]) -> None:
    """Runs each file in a separate process for at most ``limit`` seconds, so that an error which
    breaks the device's context ends only one file. Calls ``tell`` with all results after each."""
    if reason := missing():
        tell(Outcome(status="unsupported", reason=reason).result(GpuTests, passed=0))
        return
    found = OK.result(GpuTests, passed=0, seconds=0.0)
    tell(found)
    for path in files():
        one = run_file(path, limit)
        found = OK.result(
            GpuTests,
            passed=found.passed + one.passed,
            failed=found.failed + one.failed,
            skipped=found.skipped + one.skipped,
            seconds=(found.seconds or 0.0) + (one.seconds or 0.0),
        )
        log.info("%s: %d passed, %d failed", path.name, one.passed, len(one.failed))
        tell(found)


def run_file(path: Path, limit: float) -> GpuTests:
    """Runs the tests of a file. If they do not finish, the file itself is listed as failed."""
    name = str(path.relative_to(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        # Without the project's options: parallel processes would count one another's memory.
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-o", "addopts="]
        command += [f"--junitxml={report}", name]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                said = "".join(process.communicate(timeout=limit))
            except subprocess.TimeoutExpired as error:
                _end(process.pid)
                out = (error.stdout or b"").decode(errors="replace")[-_TEXT:]
                return _broken(name, f"not done after {limit:g} s; {out}", limit)
        if not report.exists():
            return _broken(name, said[-_TEXT:], None)
        return read(report.read_text(encoding="utf-8"))


def _end(pid: int) -> None:
    """Ends a process and all that it has started: ranks of a hanging test would stay on the GPU."""
    process = psutil.Process(pid)
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):
            one.kill()


def _broken(name: str, text: str, seconds: float | None) -> GpuTests:
    failed = [GpuTest(name=name, text=text)]
    return OK.result(GpuTests, passed=0, failed=failed, seconds=seconds)


def read(report: str) -> GpuTests:
    root = ElementTree.fromstring(report)
    cases = list(root.iter("testcase"))
    failed = [*_with(cases, "failure"), *_with(cases, "error")]
    skipped = list(_with(cases, "skipped"))
    seconds = sum(float(case.get("time", "0")) for case in cases)
    passed = len(cases) - len(failed) - len(skipped)
    return OK.result(GpuTests, passed=passed, failed=failed, skipped=skipped, seconds=seconds)


def _with(cases: Sequence[ElementTree.Element], tag: str) -> Iterator[GpuTest]:
    for case in cases:
        found = case.find(tag)
        if found is not None:
            name = f"{case.get('classname', '')}.{case.get('name', '')}"
            text = "\n".join(filter(None, (found.get("message"), found.text)))
            yield GpuTest(name=name, text=text[-_TEXT:])


class GpuTestsJob(Job):
    """Runs the tests that need a GPU."""

    kind = "gpu_tests"

    limit: float = 120.0
    """Most seconds for one file."""
    output: Path
    """tests.json, rewritten after every file."""

    def run(self, log_file: Path | None) -> None:
        def tell(found: GpuTests) -> None:
            write_text(self.output, found.model_dump_json(indent=1) + "\n")

        run(self.limit, tell)
