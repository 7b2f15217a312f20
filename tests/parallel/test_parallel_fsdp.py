"""Fully sharded training gives the model that one process trains."""

import os
import socket
import tempfile
from collections import Counter
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from safetensors.torch import load_model, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.profiler import profile

from schemas.config.run_spec import RunSpec
from tests.distributed import run_ranks
from tests.training.small_training import ODD, Watcher, run_small, small_setup, small_spec
from transformer_core.parallel.fsdp import FsdpStrategy, repeated_layers
from transformer_core.parallel.sharded_weights import named_tensors, whole, whole_weights
from transformer_core.parallel.topology import Process
from transformer_core.training import checkpoint
from transformer_core.training.assemble import Setup
from transformer_core.training.evaluation import validation_loss
from transformer_core.training.history import History
from transformer_core.training.loop import optimizer_step, train

pytestmark = pytest.mark.slow

RANKS = 2
FSDP: dict[str, Any] = {"kind": "fsdp"}
NO_RESHARD = FSDP | {"reshard_after_forward": False}
BF16 = FSDP | {"bf16": True}


def spec_of(parallel: dict[str, Any], model: Any = None, **training: Any) -> RunSpec:
    """A small run spec without dropout; the last batch of an epoch is smaller."""
    return small_spec(
        batching={"pairs": 13},
        parallel=parallel,
        model={"dropout": 0.0} | (model or {}),
        training=training,
    )


def course(spec: RunSpec, process: Process | None = None) -> dict[str, Any]:
    """The losses of a training, and the state that this rank holds at its end."""
    setup, watcher = small_setup(spec, process, ODD), Watcher()
    with tempfile.TemporaryDirectory() as nowhere:
        validates = spec.training.validate_every > 0
        history = train(setup, watcher, Path(nowhere), validate_last=validates)
    states = [v for entry in setup.optimizer.state.values() for v in entry.values() if v.dim()]
    return {
        "losses": watcher.losses,
        "norms": {step["step"]: step["grad_norm"] for step in history.steps},
        "validations": watcher.validations,
        "weights": whole_weights(setup.model, keep=True),
        "state_elements": sum(v.to_local().numel() for v in states if isinstance(v, DTensor)),
        "parameters": setup.parameters,
        "communication": setup.strategy.communication(),
    }


def assert_same_training(found: dict[str, Any], expected: dict[str, Any], rel: float) -> None:
    for key in ("norms", "losses", "validations"):
        assert found[key] == pytest.approx(expected[key], rel=rel), key


CASES = {
    "fsdp": spec_of(FSDP, validate_every=3),
    "no_reshard": spec_of(NO_RESHARD, validate_every=6),
    "untied": spec_of(FSDP, {"tied_embeddings": False}),
    "unfused": spec_of(FSDP, optimizer={"kind": "adamw", "fused": False}),
    "sgd": spec_of(FSDP, optimizer={"kind": "sgd"}),
    "accumulated": spec_of(FSDP, accumulation={"micro_batches": 3}),
    "synchronised": spec_of(FSDP, accumulation={"micro_batches": 3, "synchronise": "every"}),
    "bf16": spec_of(BF16, validate_every=3),
}


MESSAGES = [
    spec_of(parallel, accumulation={"micro_batches": 2, "synchronise": synchronise})
    for parallel in (FSDP, NO_RESHARD)
    for synchronise in ("last", "every")
]


def messages_of_a_step(spec: RunSpec) -> tuple[list[int], list[int]]:
    """All-gathers and reduce-scatters that the strategy reports, and that the profiler sees."""
    setup = small_setup(spec)
    batch = next(setup.feed.batches())
    with profile() as profiler:
        optimizer_step(setup, batch, 1e-3)
    # The raw events: torch would take seconds to make a tree of them.
    seen = Counter(event.name() for event in profiler.profiler.kineto_results.events())
    told = setup.strategy.communication()["traffic"]
    return (
        [told[kind]["calls"] for kind in ("all_gather", "reduce_scatter")],
        [seen["c10d::_allgather_base_"], seen["c10d::_reduce_scatter_base_"]],
    )


def trainings_and_messages() -> dict[str, Any]:
    found: dict[str, Any] = {name: course(spec) for name, spec in CASES.items()}
    return found | {"messages": [messages_of_a_step(spec) for spec in MESSAGES]}


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(trainings_and_messages, RANKS)


@cache
def single(name: str) -> dict[str, Any]:
    """The training of a case by one process."""
    return course(CASES[name].model_copy(update={"parallel": spec_of({"kind": "single"}).parallel}))


@pytest.mark.parametrize("name", [name for name in CASES if name != "bf16"])
def test_fsdp_trains_the_model_of_one_process(ranks, name):
    expected = single(name)
    for rank in ranks:
        found = rank[name]
        assert_same_training(found, expected, rel=1e-5)
        assert found["weights"].keys() == expected["weights"].keys()
        if name == "sgd":  # Adam makes full-sized updates of rounding where there is no gradient
            torch.testing.assert_close(found["weights"], expected["weights"], rtol=1e-4, atol=1e-6)
        assert found["parameters"] == expected["parameters"]


def test_bf16_follows_the_same_course_in_messages_half_as_long(ranks):
    expected = single("fsdp")
    for rank in ranks:
        found = rank["bf16"]
        assert_same_training(found, expected, rel=0.02)
        assert found["losses"] != pytest.approx(expected["losses"], rel=1e-5)
        assert {w.dtype for w in found["weights"].values()} == {torch.float32}
        wide, narrow = (
            rank[name]["communication"]["traffic"]["all_gather"]["sent_bytes"]
            for name in ("fsdp", "bf16")
        )
        assert wide == [2 * bytes_sent for bytes_sent in narrow]


def test_gloo_sends_as_much_for_a_reduce_scatter_as_for_an_all_reduce(ranks):
    for rank in ranks:
        found = rank["fsdp"]
        told, updates = found["communication"]["traffic"]["reduce_scatter"], len(found["losses"])
        # Two ranks: an all-reduce sends the whole payload.
        assert told["sent_bytes"] == [4 * found["parameters"] * updates] * RANKS


def test_backward_gathers_the_layers_again_if_they_are_resharded(ranks):
    for rank in ranks:
        once, again = (
            rank[name]["communication"]["traffic"]["all_gather"]["sent_bytes"]
            for name in ("no_reshard", "fsdp")
        )
        # Two ranks: each sends half of all weights, and at most half of them again.
        updates = len(rank["fsdp"]["losses"])
        assert once == [2 * rank["fsdp"]["parameters"] * updates] * RANKS
        assert all(one < two < 2 * one for one, two in zip(once, again, strict=True))


def test_ranks_share_parameters_and_optimizer_state(ranks):
    shares = [rank["fsdp"]["state_elements"] for rank in ranks]
    found = ranks[0]["fsdp"]
    assert sum(shares) == 2 * found["parameters"]
    assert max(shares) < 1.1 * found["parameters"]
    assert found["communication"]["parameters_by_rank"] == [share // 2 for share in shares]


def test_the_reported_messages_are_those_sent(ranks):
    for rank in ranks:
        assert all(told == seen for told, seen in rank["messages"])
        # There are five groups: two layers in each stack, and the rest. Backward gathers all but
        # the rest again.
        assert [told for told, _ in rank["messages"]] == [
            [2 * (5 + 4), 5], [2 * (5 + 4), 2 * 5], [2 * 5, 5], [2 * 5, 2 * 5]
        ]  # fmt: skip


def test_layers_are_found_in_any_model():
    model = nn.Transformer(8, 2, num_encoder_layers=3, num_decoder_layers=2, dim_feedforward=8)
    assert list(repeated_layers(model)) == [*model.encoder.layers, *model.decoder.layers]

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            inner = nn.ModuleDict({"parts": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])})
            self.stack = nn.ModuleList([inner, nn.ReLU()])

    nested = Nested()
    assert list(repeated_layers(nested)) == [nested.stack[0]]
    assert list(repeated_layers(nn.Linear(2, 2))) == []


class Tied(nn.Module):
    """A model with its layers in a list, and one matrix under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((3,), 2.0))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(x).sum() * self.scale[0]


def tied_and_sharded(folder: Path) -> tuple[list[str], float, float]:
    """The names in a file of a sharded tied model, and its outputs before saving and after loading."""
    torch.manual_seed(0)
    model, spec = Tied(), spec_of(FSDP)
    process = small_setup(spec).process
    strategy = FsdpStrategy(spec.parallel, process, spec.machine, synchronise_every=False)
    strategy.wrap(nn.ModuleList([model]))
    tokens = torch.arange(7)
    before = model(tokens)
    before.backward()
    weights = whole_weights(model, keep=process.is_main)
    if process.is_main:
        save_file(weights, folder / "model.safetensors")
    dist.barrier()
    fresh = Tied()
    load_model(fresh, folder / "model.safetensors")
    return list(weights), before.item(), fresh(tokens).item()


class Shared(nn.Module):
    """A model that calls one of its layers twice or, if ``tied``, has one matrix in two of them."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        if tied:
            self.layers[2].weight = self.layers[0].weight
        else:
            self.layers[2] = self.layers[0]

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().sum()


def shared_and_sharded(tied: bool) -> tuple[int, dict[str, Tensor], dict[str, Tensor]]:
    """The number of layers that FSDP gathers, and the weights after three steps, without and with it."""
    models, spec, found = [Shared(tied), Shared(tied)], spec_of(FSDP), []
    process = small_setup(spec).process
    strategy = FsdpStrategy(spec.parallel, process, spec.machine, synchronise_every=False)
    strategy.wrap(nn.ModuleList([models[1]]))
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.arange(7)).backward()
            optimizer.step()
        found.append(whole_weights(model, keep=True))
    return len(strategy.layers), found[0], found[1]


def snapshot(setup: Setup) -> dict[str, Tensor]:
    """Weights and optimizer state as whole tensors."""
    tensors = dict(named_tensors(setup.model))
    for name, parameter in list(tensors.items()):
        for key, value in setup.optimizer.state[parameter].items():
            tensors[f"{name}/{key}"] = value
    return {name: whole(tensor).clone() for name, tensor in tensors.items()}


def save_at_3(spec: RunSpec, folder: Path) -> tuple[dict[str, Tensor], Watcher]:
    """Train to step 3, keep a checkpoint, and train on to the end."""
    run_small(spec, folder, stop_at=3)
    setup = small_setup(spec)
    path = checkpoint.latest(folder, setup)
    assert path is not None
    checkpoint.load(path, setup)
    return snapshot(setup), run_small(spec, folder / "whole")[0]


def go_on_from(spec: RunSpec, path: Path) -> tuple[dict[str, Tensor], float, dict[int, float]]:
    """State, validation loss and later losses of a run resumed from any strategy's checkpoint."""
    setup = small_setup(spec)
    done, state = checkpoint.load(path, setup)
    loaded, validation = snapshot(setup), validation_loss(setup)
    setup.module.train()
    losses = {}
    position = History.from_state(state["history"]).position
    for step, batch in enumerate(islice(setup.feed.batches(*position), 3), start=done + 1):
        loss, _ = optimizer_step(setup, batch, spec.training.schedule.peak)
        losses[step] = float(setup.strategy.sum(loss)) / batch.target_tokens
    return loaded, validation, losses


STORING = {
    name: spec_of({"kind": name}, validate_every=3, checkpoint_every=3)
    for name in ("single", "ddp", "fsdp")
}
DIVIDED = ("ddp", "fsdp")


def step_3(folder: Path, writer: str) -> Path:
    return folder / writer / "step-00000003"


POWER_SGD = {"kind": "ddp", "hook": {"kind": "powersgd", "start_step": 2}}


def all_checkpoints(folder: Path) -> dict[str, Any]:
    """Checkpoints by all strategies, and whether any message from another process was unpickled."""
    with patch.object(c10d, "_tensor_to_object", wraps=c10d._tensor_to_object) as unpickle:
        saved = {name: save_at_3(STORING[name], folder / name) for name in DIVIDED}
        read = {
            (writer, reader): go_on_from(STORING[reader], step_3(folder, writer))
            for writer in DIVIDED
            for reader in DIVIDED
        }
        tied, shared = tied_and_sharded(folder), [*map(shared_and_sharded, (False, True))]
        for name, parallel in {"central": {"kind": "central"}, "powersgd": POWER_SGD}.items():
            training = {"steps": 3, "checkpoint_every": 2}
            run_small(small_spec(parallel=parallel, training=training), folder / name)
    found = {"saved": saved, "read": read, "tied": tied, "shared": shared}
    return found | {"unpickled": unpickle.called}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def stored(folder):
    return run_ranks(all_checkpoints, RANKS, folder)


def test_a_tied_matrix_is_written_once_and_read_under_both_names(stored):
    (names, before, after), (others, *_) = (rank["tied"] for rank in stored)
    assert names == list(named_tensors(Tied()))
    assert "output.weight" not in names
    assert "scale" in names
    assert others == []  # only the main rank keeps them
    assert after == pytest.approx(before, rel=1e-6)


def test_layers_that_share_weights_train_as_in_one_process(stored):
    for rank in stored:
        for layers, plain, sharded in rank["shared"]:
            assert layers == 1, "the other layers are gathered with the embedding"
            torch.testing.assert_close(sharded, plain)


@pytest.mark.parametrize("reader", STORING)
@pytest.mark.parametrize("writer", DIVIDED)
def test_every_strategy_resumes_from_a_checkpoint_of_any_other(stored, folder, writer, reader):
    saved, course_of_writer = stored[0]["saved"][writer]
    if reader == "single":
        found = [go_on_from(STORING[reader], step_3(folder, writer))]
    else:
        found = [rank["read"][writer, reader] for rank in stored]
    for loaded, validation, losses in found:
        assert loaded.keys() == saved.keys()
        assert [name for name in saved if not torch.equal(loaded[name], saved[name])] == []
        assert validation == pytest.approx(course_of_writer.validations[3], rel=1e-6)
        later = {step: course_of_writer.losses[step] for step in (4, 5, 6)}
        assert losses == pytest.approx(later, rel=1e-5)


def test_each_rank_writes_its_shards_and_replicas_are_written_once(stored, folder):
    shares, replicas = (
        [file.stat().st_size for file in step_3(folder, writer).glob("rank-*")]
        for writer in ("fsdp", "ddp")
    )
    assert len(shares) == RANKS
    assert max(shares) < 1.2 * min(shares)
    assert sum(replicas) < 1.2 * max(replicas)


def test_no_message_is_unpickled(stored):
    """Anyone who reaches the port could send one."""
    assert not any(rank["unpickled"] for rank in stored)


def on_gpu(spec: RunSpec, port: int) -> dict[str, Any]:
    """:func:`course` with NCCL on the GPU of this rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    return course(spec, Process(rank, world_size, rank, world_size, device))


@pytest.mark.gpu
@pytest.mark.parametrize("parallel", [FSDP, NO_RESHARD, BF16], ids=["reshard", "keep", "bf16"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_fsdp_on_gpus(parallel, gpus):
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} CUDA devices")
    expected = course(spec_of({"kind": "single"}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for found in run_ranks(on_gpu, gpus, spec_of(parallel), port):
        assert_same_training(found, expected, rel=0.02 if parallel == BF16 else 1e-3)
