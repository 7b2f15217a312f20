"""A language model on several ranks has the losses, gradients and weights of one process."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from schemas.config.model import DecoderOnly
from schemas.config.parallel import Fsdp, LocalSteps, Machine, TensorParallel
from schemas.config.run_spec import LanguageModel
from schemas.config.training import Accumulation, AdamW, Fp16, Fp32, OnePassLoss, WholeLoss
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
    """A strategy and its changes to the default model and loss."""

    parallel: Any = None
    model: dict[str, Any] = field(default_factory=dict)
    loss: Any = field(default_factory=WholeLoss)
    precision: Any = field(default_factory=Fp32)
    rows: int = 9


def tensor(**fields: Any) -> TensorParallel:
    return TensorParallel(kind="tensor", **fields)


FSDP = Fsdp(kind="fsdp")
SCALED = Fp16(kind="fp16", initial_scale=1024.0)
"""Without autocast, which rounds, this only scales the loss."""
ONE_PASS = OnePassLoss(kind="one_pass")
SEPARATE = {"qkv": {"kind": "separate"}, "kv_heads": 2, "bias": True}
GELU = {"feed_forward": {"kind": "gelu"}, "tied_embeddings": False, "norm": {"kind": "layer"}}
CASES = {
    "fsdp": Case(FSDP),
    "fsdp_one_pass_recomputed": Case(FSDP, {"checkpoint": "layers"}, ONE_PASS),
    "tensor": Case(tensor()),
    "tensor_separate": Case(tensor(), SEPARATE),
    "tensor_gelu_one_pass": Case(tensor(), GELU, ONE_PASS),
    "tensor_recomputed": Case(tensor(), {"checkpoint": "products"}),
    "tensor_texts_in_a_list": Case(tensor(), {"tokens": {"kind": "unpadded"}}),
    "tensor_scaled": Case(tensor(), precision=SCALED),
    "sequence": Case(tensor(**SEQUENCE)),
    "sequence_even": Case(tensor(**SEQUENCE), SEPARATE, rows=8),
}
ON_FOUR = {
    "tensor_and_fsdp": Case(tensor()),
    "tensor_and_fsdp_scaled": Case(tensor(), precision=SCALED),
    "tensor_and_fsdp_gelu": Case(tensor(), GELU),
    "tensor_and_fsdp_biases": Case(tensor(), SEPARATE | GELU),
}


def batch(width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    tokens, targets = (torch.randint(4, V, (4, width), generator=generator) for _ in range(2))
    tokens[:, 0] = tokens[1::2, 4] = BOS
    tokens[3, 7:] = targets[3, 7:] = PAD
    return tokens, targets


def train(case: Case, strategy: Strategy) -> tuple[list[float], dict[str, Tensor], float | None]:
    """Losses and norms of two clipped steps, final weights, and the difference between replicas."""
    torch.manual_seed(1)
    spec = DecoderOnly(layers=2, d_model=24, d_ff=40, heads=4, **case.model)
    model = build_model(spec, V)
    task = LanguageModel(kind="language_model", context=16, prompt=4, continuation=4)
    module = strategy.wrap(objective(task, model, loss=case.loss))
    module.train()
    optimizer = build_optimizer(AdamW(), module, CPU)
    precision = build_precision(case.precision, CPU)
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


REFUSED = [
    (tensor(), {"dropout": 0.1}, "model.dropout: 0"),
    (tensor(), {"kv_heads": 1, "qkv": {"kind": "separate"}}, "kv_heads"),
    (tensor(), {"kv_heads": 2}, "separate"),
    (tensor(**SEQUENCE), {"tokens": {"kind": "unpadded"}}, "not lists of tokens"),
    (tensor(ranks=3), {}, "do not divide a run"),
]
REFUSED_ON_FOUR = [
    (tensor(), model, "biases of maps with several parts")
    for model in (GELU | {"bias": True}, SEPARATE)  # of fused queries, keys and values; of gates
]


def refusals(cases: list[tuple[TensorParallel, dict[str, Any], str]]) -> list[str]:
    reasons = []
    for spec, model, _ in cases:
        try:
            train(Case(model=model), TensorParallelStrategy(spec, process(), Machine(), False))
            reasons.append("accepted")
        except Unsupported as error:
            reasons.append(str(error))
    return reasons


def meetings(every: int, rate: float) -> tuple[dict[str, Tensor], int]:
    """This rank's final weights, and how often the replicas synchronised."""
    spec = LocalSteps(kind="local_steps", every=every, outer_rate=rate, outer_momentum=0.0)
    strategy = build_strategy(spec, process(), Machine(), Accumulation())
    _, weights, _ = train(Case(), strategy)
    told = strategy.communication()
    assert told is not None
    return weights, told["meetings"]


def work_of_two() -> dict[str, Any]:
    met = {"met": meetings(2, 1.0), "half": meetings(2, 0.5), "apart": meetings(3, 1.0)}
    return on_ranks(CASES) | met | {"refused": refusals(REFUSED)}


def work_of_four() -> dict[str, Any]:
    return on_ranks(ON_FOUR) | {"refused": refusals(REFUSED_ON_FOUR)}


def timeouts() -> list[tuple[int, timedelta]]:
    """The ranks of each group of a mesh, and how long its messages may take."""
    asked = []

    def note(timeout: timedelta, group: dist.ProcessGroup) -> None:
        asked.append((group.size(), timeout))

    machine = Machine(timeout=3_600)
    with patch.object(dist.distributed_c10d, "_set_pg_timeout", note):
        TensorParallelStrategy(tensor(), process(), machine, synchronise_every=False)
    return asked


def test_groups_of_a_mesh_wait_as_long_as_that_of_the_run():
    """torch's default is 10 minutes with NCCL and 30 with gloo, whatever machine.timeout is."""
    hour = timedelta(hours=1)
    assert run_ranks(timeouts, 2) == [[(1, hour), (2, hour)]] * 2


@pytest.fixture(scope="module")
def two():
    return run_ranks(work_of_two, 2)


@pytest.fixture(scope="module")
def four():
    return run_ranks(work_of_four, 4)


def alone(case: Case) -> tuple[list[float], dict[str, Tensor], float | None]:
    return train(case, Strategy(Process(0, 1, 0, 1, CPU)))


@pytest.mark.parametrize("name", CASES | ON_FOUR)
def test_ranks_find_what_one_process_finds(name, request):
    cases = CASES | ON_FOUR
    numbers, weights, _ = alone(cases[name])
    for rank in request.getfixturevalue("two" if name in CASES else "four"):
        found, theirs, apart = rank[name]
        assert found == pytest.approx(numbers, rel=1e-5)
        torch.testing.assert_close(theirs, weights, rtol=1e-4, atol=4e-5)
        assert not apart


def test_models_that_cannot_be_divided_are_refused(two, four):
    for ranks, cases in ((two, REFUSED), (four, REFUSED_ON_FOUR)):
        for rank in ranks:
            for reason, (_, _, words) in zip(rank["refused"], cases, strict=True):
                assert words in reason


def test_replicas_synchronise_at_the_average_of_their_changes(two):
    mine, other = (rank["apart"][0] for rank in two)
    torch.manual_seed(1)
    model = build_model(DecoderOnly(layers=2, d_model=24, d_ff=40, heads=4), V)
    for name, begin in whole_weights(model, True).items():
        mean = (mine[name] + other[name]) / 2
        half = begin + 0.5 * (mean - begin)
        for rank in two:
            torch.testing.assert_close(rank["met"][0][name], mean, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(rank["half"][0][name], half, rtol=1e-5, atol=1e-6)
    assert any(not torch.equal(mine[name], other[name]) for name in mine)
    assert [two[0][name][1] for name in ("met", "half", "apart")] == [1, 1, 0]
