"""Processes that keep to the same cores."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, threading
from transformer_core.machine.hardware import keep_to

over = threading.Event()
thread = threading.Thread(target=over.wait)
thread.start()
keep_to({count})
print([sorted(os.sched_getaffinity(tid)) for tid in (0, thread.native_id)])
over.set()
"""

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system binds no threads to cores"
)


def cores_of_threads(count: int) -> str:
    """Cores of two threads of a process that was told to keep to ``count`` of them."""
    program = PROGRAM.format(count=count)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_all_threads_keep_to_the_last_cores() -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs 2 cores")
    assert cores_of_threads(1) == str([cores[-1:]] * 2)


def test_as_many_cores_as_there_are_are_left_alone() -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert cores_of_threads(len(cores)) == str([cores] * 2)
    assert cores_of_threads(len(cores) + 1) == str([cores] * 2)
