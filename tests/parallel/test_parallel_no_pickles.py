"""No message from another process is unpickled: anyone who reaches the port could send it."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed.distributed_c10d as c10d

from tests.distributed import run_ranks
from tests.training.small_training import run_small, small_spec

pytestmark = pytest.mark.slow

STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "powersgd": {"kind": "ddp", "hook": {"kind": "powersgd", "start_step": 2}},
    "fsdp": {"kind": "fsdp"},
    "central": {"kind": "central"},
}


def unpickled(folder: Path) -> list[str]:
    """The strategies that unpickle a message in a training with checkpoints."""
    found = []
    for name, parallel in STRATEGIES.items():
        spec = small_spec(parallel=parallel, training={"steps": 3, "checkpoint_every": 2})
        with patch.object(c10d, "_tensor_to_object", wraps=c10d._tensor_to_object) as read:
            run_small(spec, folder / name)
        found += [name] * read.called
    return found


def test_no_strategy_unpickles_messages(tmp_path):
    assert run_ranks(unpickled, 2, tmp_path) == [[], []]
