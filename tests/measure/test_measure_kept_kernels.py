"""Products of many shapes in bfloat16 do not fill the memory of a process on a CPU."""

import os
import subprocess
import sys

import pytest
import torch

from transformer_core.run.environment import KEPT_KERNELS

GROWTH = """
import torch
from pathlib import Path

torch.set_num_threads(1)
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4
layer = torch.nn.Linear(256, 256).bfloat16()

def products(shapes):
    for rows in shapes:
        layer(torch.ones(rows, 256, dtype=torch.bfloat16)).sum().backward()

products(range(100, 110))
before = resident()
products(range(110, 170))
print(resident() - before)
"""


def growth(kept: int) -> int:
    """KiB that a process grows by with 60 more shapes."""
    environment = os.environ | dict.fromkeys(KEPT_KERNELS, str(kept))
    command = [sys.executable, "-c", GROWTH]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="oneDNN makes no kernels for bfloat16 on this CPU",
)
def test_kernels_that_are_not_kept_take_no_memory() -> None:
    all_of_them, few = growth(1_000), growth(8)
    assert all_of_them > 20 * 1024, "nothing is kept: the test shows nothing"
    assert few < all_of_them / 4
