"""What is seen of the jobs of a command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Stands for a job: it and the process it starts have more than 100 MB each.
JOB = """
import subprocess, sys, time
memory = bytearray(100_000_000)
memory[::4096] = b"x" * len(memory[::4096])
if sys.argv[1:] == ["--output", "made/by.it"]:
    subprocess.run([sys.executable, __file__], check=True)
else:
    time.sleep(1)
"""


@pytest.fixture
def recorded(tmp_path: Path) -> dict:  # type: ignore[type-arg]
    package = tmp_path / "transformer_core"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text(JOB)
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "file").write_bytes(b"x" * 3_000_000)
    run = f"cd {tmp_path}; {sys.executable} -m transformer_core.job --output made/by.it; exit 3"
    done = subprocess.run(
        [
            *(sys.executable, "benchmarks/jobs.py", "--disk", disk, "--interval", "0.02"),
            *("--output", tmp_path / "record.json", "--", "sh", "-c", run),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "| job made/by.it |" in done.stdout
    record: dict = json.loads((tmp_path / "record.json").read_text())  # type: ignore[type-arg]
    return record


def test_a_job_owns_what_it_starts(recorded: dict) -> None:  # type: ignore[type-arg]
    (job,) = recorded["jobs"]
    assert (job["module"], job["output"]) == ("transformer_core.job", "made/by.it")
    assert job["processes"] == 2
    assert 100 < job["process_mb"] < 200 < job["all_mb"] < recorded["all_mb"]
    assert recorded["seconds"] > job["last"] - job["first"] > 0.5


def test_disk_status_and_versions(recorded: dict) -> None:  # type: ignore[type-arg]
    assert recorded["code"] == 3
    assert recorded["disk_mb"] == recorded["disk_end_mb"] == pytest.approx(3.0, rel=0.1)
    assert {"tokenizers", "pyarrow"} <= set(recorded["versions"])
