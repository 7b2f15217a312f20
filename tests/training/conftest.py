"""Fixtures for tests of trainings."""

from typing import Any

import pytest
import torch.distributed as dist


@pytest.fixture
def group() -> Any:
    """A process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
