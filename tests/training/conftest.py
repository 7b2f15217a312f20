"""Fixtures for tests of trainings."""

import pytest
import torch.distributed as dist


@pytest.fixture
def group():
    """A process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
