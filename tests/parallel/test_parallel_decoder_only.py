"""A language model over several ranks: the losses, gradients and weights of one process."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from schemas.config.model import DecoderOnly
from schemas.config.parallel import Fsdp, LocalSteps, Machine, TensorParallel
from schemas.config.run_spec import LanguageModel
from schemas.config.training import Accumulation, AdamW, Fp32, OnePassLoss, WholeLoss
from schemas.errors import Unsupported
from tests.distributed import run_ranks
from transformer_core.data.tokenizing.special_tokens import BOS, PAD
from transformer_core.models.objective import objective
from transformer_core.models.registry import build_model
from transformer_core.parallel.registry import build_strategy
from transformer_core.parallel.sharded_weights import whole_weights
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.tensor_parallel import TensorParallelStrategy
from transformer_core.parallel.topology import Process
from transformer_core.training.optimizer import build_optimizer
from transformer_core.training.precision import build_precision

pytestmark = pytest.mark.slow

V, CPU = 37, torch.device("cpu")
SEQUENCE = {"ranks": 2, "sequence": True}


@dataclass(frozen=True)
class Case:
    """A strategy, with what differs from the usual model and loss."""

    parallel: Any = None
    model: dict[str, Any] = field(default_factory=dict)
    loss: Any = field(default_factory=WholeLoss)
    rows: int = 9


def fsdp() -> Fsdp:
    return Fsdp(kind="fsdp")


def tensor(**fields: Any) -> TensorParallel:
    return TensorParallel(kind="tensor", **fields)


SEPARATE = {"qkv": {"kind": "separate"}, "kv_heads": 2, "bias": True}
GELU = {"feed_forward": {"kind": "gelu"}, "tied_embeddings": False, "norm": {"kind": "layer"}}
CASES = {
    "fsdp": Case(fsdp()),
    "fsdp_one_pass_recomputed": Case(
        fsdp(), {"checkpoint": "layers"}, OnePassLoss(kind="one_pass")
    ),
    "tensor": Case(tensor()),
    "tensor_separate": Case(tensor(), SEPARATE),
    "tensor_gelu_one_pass": Case(tensor(), GELU, OnePassLoss(kind="one_pass")),
    "tensor_recomputed": Case(tensor(), {"checkpoint": "products"}),
    "tensor_texts_in_a_list": Case(tensor(), {"tokens": {"kind": "unpadded"}}),
    "sequence": Case(tensor(**SEQUENCE)),
    "sequence_even": Case(tensor(**SEQUENCE), SEPARATE, rows=8),
}
ON_FOUR = {"tensor_and_fsdp": Case(tensor()), "tensor_and_fsdp_gelu": Case(tensor(), GELU)}


def batch(width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    tokens, targets = (torch.randint(4, V, (4, width), generator=generator) for _ in range(2))
    tokens[:, 0] = tokens[1::2, 4] = BOS
    tokens[3, 7:] = targets[3, 7:] = PAD
    return tokens, targets


def train(case: Case, strategy: Strategy) -> tuple[list[float], dict[str, Tensor], float | None]:
    """Losses and norms of two steps with clipping, then weights and the difference of replicas."""
    torch.manual_seed(1)
    spec = DecoderOnly(layers=2, d_model=24, d_ff=40, heads=4, **case.model)
    model = build_model(spec, V)
    task = LanguageModel(kind="language_model", context=16, prompt=4, continuation=4)
    module = strategy.wrap(objective(task, model, loss=case.loss))
    module.train()
    optimizer = build_optimizer(AdamW(), module.named_parameters(), CPU)
    precision = build_precision(Fp32(), CPU)
    share, shares = strategy.share
    numbers = []
    for _ in range(2):
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        optimizer.zero_grad()
        tokens, targets = (part[share::shares] for part in batch(case.rows))
        with strategy.sync_context(last=True):
            loss = module(tokens[:, :0], tokens, targets)
            precision.backward(loss * strategy.loss_scale / 30)
        strategy.reduce_gradients()
        norm = strategy.update(lambda: precision.step(optimizer, module.parameters(), 0.5))
        numbers += [float(strategy.sum(loss.detach())), float(norm)]
    with torch.no_grad():
        logits = model(batch(case.rows)[0])
    return numbers, {"logits": logits, **whole_weights(model, True)}, strategy.replica_difference()


def process() -> Process:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return Process(rank, ranks, rank, ranks, CPU)


def on_ranks(cases: dict[str, Case]) -> dict[str, Any]:
    return {
        name: train(case, build_strategy(case.parallel, process(), Machine(), Accumulation()))
        for name, case in cases.items()
    }


@pytest.fixture(scope="module")
def two():
    return run_ranks(on_ranks, 2, CASES)


@pytest.fixture(scope="module")
def four():
    return run_ranks(on_ranks, 4, ON_FOUR)


def alone(case: Case) -> tuple[list[float], dict[str, Tensor], float | None]:
    return train(case, Strategy(Process(0, 1, 0, 1, CPU)))


@pytest.mark.parametrize("name", CASES | ON_FOUR)
def test_ranks_find_what_one_process_finds(name, request):
    cases = CASES | ON_FOUR
    numbers, weights, _ = alone(cases[name])
    for rank in request.getfixturevalue("two" if name in CASES else "four"):
        found, theirs, apart = rank[name]
        assert found == pytest.approx(numbers, rel=1e-5)
        torch.testing.assert_close(theirs, weights, rtol=1e-4, atol=2e-5)
        assert not apart


def refused() -> list[str]:
    reasons = []
    for fields, model in (
        ({}, {"dropout": 0.1}),
        ({}, {"kv_heads": 1, "qkv": {"kind": "separate"}}),
        ({}, {"kv_heads": 2}),
        (SEQUENCE, {"tokens": {"kind": "unpadded"}}),
    ):
        strategy = TensorParallelStrategy(tensor(**fields), process(), Machine(), False)
        try:
            train(Case(model=model), strategy)
        except Unsupported as error:
            reasons.append(str(error))
    try:
        TensorParallelStrategy(tensor(ranks=3), process(), Machine(), False)
    except Unsupported as error:
        reasons.append(str(error))
    return reasons


def test_what_cannot_be_divided_is_refused():
    words = ("model.dropout: 0", "kv_heads", "separate", "rows, not lists", "do not divide a run")
    for reasons in run_ranks(refused, 2):
        assert len(reasons) == len(words)
        for reason, word in zip(reasons, words, strict=True):
            assert word in reason


def meetings(every: int, rate: float) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    spec = LocalSteps(kind="local_steps", every=every, outer_rate=rate, outer_momentum=0.0)
    strategy = build_strategy(spec, process(), Machine(), Accumulation())
    _, weights, _ = train(Case(), strategy)
    return weights, strategy.communication()


def local_steps() -> list[Any]:
    return [meetings(2, 1.0), meetings(2, 0.5), meetings(3, 1.0)]


def test_replicas_meet_at_the_average_of_their_changes():
    ranks = run_ranks(local_steps, 2)
    (apart, other) = ranks[0][2][0], ranks[1][2][0]
    torch.manual_seed(1)
    model = build_model(DecoderOnly(layers=2, d_model=24, d_ff=40, heads=4), V)
    begin = whole_weights(model, True)
    for name in begin:
        mean = (apart[name] + other[name]) / 2
        for rank in ranks:
            torch.testing.assert_close(rank[0][0][name], mean, rtol=1e-5, atol=1e-6)
            half = begin[name] + 0.5 * (mean - begin[name])
            torch.testing.assert_close(rank[1][0][name], half, rtol=1e-5, atol=1e-6)
    assert any(not torch.equal(apart[name], other[name]) for name in begin)
    assert [rank[1]["meetings"] for rank in ranks[0]] == [1, 1, 0]
