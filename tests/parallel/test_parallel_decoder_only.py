"""A language model in shards: the gradients of one process, with any loss."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from schemas.config.model import DecoderOnly
from tests.distributed import run_ranks
from tests.training.small_training import small_setup, small_spec
from transformer_core.models.loss import one_pass_loss_sum, whole_head_loss
from transformer_core.models.registry import build_language_model
from transformer_core.parallel.fsdp import FsdpStrategy

pytestmark = pytest.mark.slow

RANKS, V = 2, 37


def build(checkpoint: str) -> nn.Module:
    torch.manual_seed(1)
    spec = DecoderOnly(layers=2, d_model=24, d_ff=40, heads=4, kv_heads=2, checkpoint=checkpoint)
    return build_language_model(spec, V)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    tokens, targets = (torch.randint(3, V, (4, 10), generator=generator) for _ in range(2))
    segments = torch.tensor([[0] * 4 + [1] * 6, [0] * 10] * 2)
    return tokens, targets, segments


def one_pass(hidden: Tensor, output: Tensor, targets: Tensor) -> Tensor:
    return one_pass_loss_sum(hidden, output, targets, 0.0)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        grad: Any = parameter.grad
        found[name] = grad.full_tensor() if isinstance(grad, DTensor) else grad
    return found


def in_shards(checkpoint: str) -> list[tuple[float, dict[str, Tensor]]]:
    """Loss sum of this rank's rows, and the gradients of all rows, for each loss."""
    spec = small_spec(parallel={"kind": "fsdp"})
    strategy = FsdpStrategy(spec.parallel, small_setup(spec).process, spec.machine, False)
    model = build(checkpoint)
    strategy.wrap(nn.ModuleList([model]))
    mine = [part[dist.get_rank() :: RANKS] for part in batch()]
    found = []
    for loss in (whole_head_loss, one_pass):
        strategy.sync_context(last=True)
        total = model(*mine, loss)
        (total * strategy.loss_scale).backward()
        found.append((total.item(), gradients(model)))
        model.zero_grad()
    return found


@pytest.mark.parametrize("checkpoint", ["none", "layers"])
def test_shards_have_the_gradients_of_one_process(checkpoint: str) -> None:
    model = build("none")
    expected = model(*batch())
    expected.backward()
    for number, ranks in enumerate(zip(*run_ranks(in_shards, RANKS, checkpoint), strict=True)):
        assert sum(loss for loss, _ in ranks) == pytest.approx(expected.item(), rel=1e-6), number
        for _, found in ranks:
            torch.testing.assert_close(found, gradients(model), rtol=1e-4, atol=1e-5)
