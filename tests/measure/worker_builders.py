"""A worker that tells what it was started with, for tests of launchers."""

import json
import os
import time
from pathlib import Path
from typing import Any

import psutil

NAME = "worker_of_this_test"

_WORKER = """
import json, os, sys
from pathlib import Path

def main():
    folder = Path(sys.argv[1])
    told = dict(os.environ) | {"NAMESPACE": os.readlink("/proc/self/ns/net")}
    rank = told.get("RANK", "0")
    file = folder / f"rank-{rank}.json"
    file.with_suffix(".part").write_text(json.dumps(told))
    file.with_suffix(".part").rename(file)

if __name__ == "__main__":
    main()
"""


def write_worker(folder: Path, text: str = _WORKER) -> dict[str, str]:
    """The module :data:`NAME` in ``folder``, and an environment in which it is found."""
    (folder / f"{NAME}.py").write_text(text)
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def told(folder: Path) -> list[dict[str, Any]]:
    """The environments of the ranks that were started, with NAMESPACE."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]


def gone(pid: int, seconds: float = 20.0) -> bool:
    """Whether a process has ended within so many seconds; a dead one that nobody has waited for has."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False
