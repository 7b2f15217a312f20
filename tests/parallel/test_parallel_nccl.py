"""Strategies on GPUs: the same gradients, with the same counts, over NCCL."""

from itertools import islice
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.distributed import run_ranks
from tests.parallel.gradient_cases import reference, spec_of
from tests.training.small_training import VOCABULARY, small_store
from transformer_core.parallel.topology import Process
from transformer_core.training.assemble import assemble
from transformer_core.training.loop import optimizer_step

SMALL = {"kind": "ddp", "bucket_mb": 0.01}
CASES: dict[str, tuple[dict[str, Any], float]] = {
    "ddp": (SMALL, 1e-5),
    "no_overlap": (SMALL | {"overlap": False}, 1e-5),
    "ring": (SMALL | {"hook": {"kind": "ring"}}, 1e-5),
    "fp16": (SMALL | {"hook": {"kind": "compress", "dtype": "fp16"}}, 2e-3),
    "bf16": (SMALL | {"hook": {"kind": "compress", "dtype": "bf16"}}, 2e-2),
    "emulated_link": (SMALL | {"hook": {"kind": "emulated_link", "bandwidth": 1e10}}, 1e-5),
    "powersgd_starts": (SMALL | {"hook": {"kind": "powersgd"}}, 1e-5),
    "central": ({"kind": "central"}, 1e-5),
    "central_local_loss": ({"kind": "central", "local_loss": True}, 1e-5),
}


def gradients(cases: dict[str, tuple[dict[str, Any], float]]) -> dict[str, torch.Tensor | None]:
    """Flat gradient of two steps' last, by case; None on a rank that has none."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    process = Process(rank, world_size, rank, world_size, device)
    found = {}
    for name, (parallel, _) in cases.items():
        machine = {"device": "cuda", "devices_per_node": world_size}
        spec = spec_of(parallel=parallel, machine=machine)
        setup = assemble(spec, process, VOCABULARY, small_store(), small_store())
        setup.module.train()
        for _ in range(2):
            batches = setup.strategy.batches(setup.feed, 0, 0)
            (batch,) = islice(batches, 1)
            optimizer_step(setup, batch, 0.0)
            batches.close()
        assert setup.strategy.replica_difference() == 0.0
        own = {name: p.grad for name, p in setup.model.named_parameters()}
        parts = [own[name].flatten().cpu() for name in sorted(own) if own[name] is not None]
        found[name] = torch.cat(parts) if parts else None
    return found


@pytest.mark.gpu(2)
def test_gradients_over_nccl():
    expected = reference()
    right = torch.cat([expected.gradients[name].flatten() for name in sorted(expected.gradients)])
    for rank, found in enumerate(run_ranks(gradients, 2, CASES, backend="nccl")):
        for name, (parallel, tolerance) in CASES.items():
            if parallel["kind"] == "central" and rank > 0:
                assert found[name] is None
            else:
                assert (found[name] - right).norm() <= tolerance * right.norm(), name
