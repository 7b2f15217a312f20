"""The jobs of a command are seen with all that they start."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]

# Stands for a job: it and the process that it starts have more than 100 MB each, and wait.
JOB = """
import subprocess, sys
memory = bytearray(100_000_000)
memory[::4096] = b"x" * len(memory[::4096])
if sys.argv[1:] == ["--output", "made/by.it"]:
    subprocess.run([sys.executable, __file__], check=True)
else:
    print("ready", flush=True)
    input()
"""


def test_a_job_owns_what_it_starts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import jobs

    package = tmp_path / "transformer_core"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text(JOB)
    run = f"{sys.executable} -m transformer_core.job --output made/by.it; exit 3"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with psutil.Popen(["sh", "-c", run], cwd=tmp_path, **pipes) as command:
        assert command.stdout.readline() == b"ready\n"
        seen: dict[int, jobs.Job] = {}
        everything = jobs._look(command, seen, 1.0) / 1e6
        command.stdin.close()
    (job,) = seen.values()
    assert (job.module, job.output) == ("transformer_core.job", "made/by.it")
    assert (job.first, job.last, job.processes) == (1.0, 1.0, 2)
    assert job.process_mb > 100
    assert min(job.all_mb, everything) > 200


def test_the_output_of_an_order_in_a_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import jobs

    file = tmp_path / "order.json"
    file.write_text('{"kind": "certify", "output": "made/by.it"}')
    for order in (str(file), file.read_text()):
        found = jobs._job(["python", "-m", "transformer_core.run.job", "--order", order], 1.0)
        assert (found.module, found.output) == ("transformer_core.certify", "made/by.it")


def test_disk_status_and_versions(tmp_path):
    disk, output = tmp_path / "disk", tmp_path / "record.json"
    disk.mkdir()
    (disk / "file").write_bytes(b"x" * 3_000_000)
    command = [sys.executable, "benchmarks/jobs.py", "--disk", disk, "--output", output]
    command += ["--", "sh", "-c", "exit 3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert "| everything |" in done.stdout
    recorded = json.loads(output.read_text())
    assert recorded["code"] == 3
    assert recorded["disk_mb"] == recorded["disk_end_mb"] == pytest.approx(3.0, rel=0.1)
    assert {"tokenizers", "pyarrow"} <= set(recorded["versions"])
