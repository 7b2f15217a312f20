"""A killed run takes the launcher of its processes with it, which knows nothing of this project."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_the_launcher_ends_with_the_run(tmp_path: Path) -> None:
    run = (
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "from schemas.config.run_spec import RunSpec\n"
        "from transformer_core.run import supervisor\n"
        "from transformer_core.run.order import Order\n"
        "class Told(subprocess.Popen):\n"
        "    def __init__(self, *args, **options):\n"
        "        super().__init__(*args, **options)\n"
        "        print(self.pid, flush=True)\n"
        "subprocess.Popen = Told\n"
        "supervisor.launcher = lambda spec, worker, place: ['sh', '-c', 'exec sleep 300']\n"
        "order = Order(spec=RunSpec(variant='v'), output=Path(sys.argv[1]), command='')\n"
        "supervisor.run_workers(order)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", run, str(tmp_path)], stdout=subprocess.PIPE
    ) as parent:
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
