"""Products of many shapes in bfloat16 on a CPU keep no more kernels than they may."""

import os
import subprocess
import sys

import pytest
import torch

from transformer_core.run.launcher import KEPT_KERNELS

pytestmark = pytest.mark.slow

TWICE = """
import torch

torch.set_num_threads(1)
layer = torch.nn.Linear(256, 256).bfloat16()
for _ in range(2):
    print("AGAIN", flush=True)
    for rows in range(100, 130):
        layer(torch.ones(rows, 256, dtype=torch.bfloat16)).sum().backward()
"""


def made_again(kept: int) -> int:
    """Kernels that a process makes anew for shapes that it has had, as oneDNN tells."""
    environment = os.environ | dict.fromkeys(KEPT_KERNELS, str(kept)) | {"ONEDNN_VERBOSE": "2"}
    command = [sys.executable, "-c", TWICE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("AGAIN")[2].count("create:cache_miss")


@pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="oneDNN makes no kernels for bfloat16 on this CPU",
)
def test_no_more_kernels_are_kept_than_may_be() -> None:
    assert made_again(1_000) == 0
    assert made_again(8) >= 30, "one for each shape at least"
