"""A killed run takes the launcher of its processes with it, which knows nothing of this project."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_the_launcher_ends_with_the_run() -> None:
    run = (
        "import subprocess, sys\n"
        "from transformer_core.measure import run\n"
        "class Told(subprocess.Popen):\n"
        "    def __init__(self, *args, **options):\n"
        "        super().__init__(*args, **options)\n"
        "        print(self.pid, flush=True)\n"
        "subprocess.Popen = Told\n"
        "run.launcher = lambda spec, worker, place: ['sleep']\n"
        "run.threads_per_process = lambda spec: 1\n"
        "run.run_workers(None, 'worker', ['300'])\n"
    )
    with subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert running(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        for _ in range(1_000):
            if not running(child):
                return
            time.sleep(0.02)
    pytest.fail(f"process {child} outlived its run")


def running(pid: int) -> bool:
    """Whether the process is there, and not a dead one that nobody has waited for."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"
