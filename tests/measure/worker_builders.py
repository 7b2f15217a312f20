"""A worker that reports its environment and ends as its options say, for tests of launchers."""

import json
import os
import time
from pathlib import Path
from typing import Any

import psutil

from schemas.config.run_spec import RunSpec

NAME = "worker_of_this_test"

_WORKER = """
import json, os, sys, time
from pathlib import Path

IMPORTED_BY = os.getpid()

def main():
    folder, options = Path(sys.argv[1]), sys.argv[2:]
    told = dict(os.environ) | {"NAMESPACE": os.readlink("/proc/self/ns/net")}
    told |= {"imported_by": IMPORTED_BY, "pid": os.getpid(), "options": options}
    rank = told.get("RANK", "0")
    file = folder / f"rank-{rank}.json"
    file.with_suffix(".part").write_text(json.dumps(told))
    file.with_suffix(".part").rename(file)
    print("told", end="")
    match options:
        case ["exit", code]:
            sys.exit(int(code) if code.isdigit() else code)
        case ["raise"]:
            raise ValueError("a mistake")
        case ["fail", *_] if rank == "1":
            while not (folder / "rank-0.json").exists():
                time.sleep(0.02)
            sys.exit(3)
        case ["abort"] if rank == "1":
            os.abort()
        case ["fail" | "abort" | "wait", *_]:
            time.sleep(100)

if __name__ == "__main__":
    main()
"""


def spec(parallel: str, **machine: object) -> RunSpec:
    """The run spec of a strategy on a machine."""
    return RunSpec.model_validate(
        {"variant": "v", "parallel": {"kind": parallel}, "machine": machine}
    )


def write_worker(folder: Path, text: str = _WORKER) -> dict[str, str]:
    """Writes the module :data:`NAME` in ``folder``; returns an environment that includes it."""
    (folder / f"{NAME}.py").write_text(text)
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def told(folder: Path) -> list[dict[str, Any]]:
    """The reports of the started ranks, in their order."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]


def gone(pid: int, seconds: float = 20.0) -> bool:
    """Whether a process ends within this time. A zombie has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False
