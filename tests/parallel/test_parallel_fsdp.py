"""Fully sharded training: the same model as one process trains, in shares."""

import os
import socket
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_model, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.profiler import profile

from schemas.config.run_spec import RunSpec
from tests.distributed import run_ranks
from tests.training.small_training import Watcher, run_small, small_setup, small_spec
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
    """A small run spec without dropout, whose batches leave an unequal last one."""
    return small_spec(
        batching={"pairs": 13},
        parallel=parallel,
        model={"dropout": 0.0} | (model or {}),
        training=training,
    )


def course(spec: RunSpec, process: Process | None = None) -> dict[str, Any]:
    """What a training gives, and what this rank holds at its end."""
    setup, watcher = small_setup(spec, process), Watcher()
    with tempfile.TemporaryDirectory() as nowhere:
        history = train(setup, watcher, Path(nowhere))
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


def courses(specs: dict[str, RunSpec]) -> dict[str, dict[str, Any]]:
    return {name: course(spec) for name, spec in specs.items()}


def assert_same_training(found: dict[str, Any], expected: dict[str, Any], rel: float) -> None:
    for key in ("norms", "losses", "validations"):
        assert found[key] == pytest.approx(expected[key], rel=rel), key


CASES = {
    "fsdp": spec_of(FSDP, validate_every=2),
    "no_reshard": spec_of(NO_RESHARD),
    "untied": spec_of(FSDP, {"tied_embeddings": False}),
    "unfused": spec_of(FSDP, optimizer={"kind": "adamw", "fused": False}),
    "sgd": spec_of(FSDP, optimizer={"kind": "sgd"}),
    "no_clipping": spec_of(FSDP, clip_norm=0.0),
    "accumulated": spec_of(FSDP, accumulation={"micro_batches": 3}),
    "synchronised": spec_of(FSDP, accumulation={"micro_batches": 3, "synchronise": "every"}),
    "bf16": spec_of(BF16, validate_every=2),
}


@pytest.fixture(scope="module")
def trained():
    by_rank = run_ranks(courses, RANKS, CASES)
    return {name: [rank[name] for rank in by_rank] for name in by_rank[0]}


def single(name: str) -> dict[str, Any]:
    return course(CASES[name].model_copy(update={"parallel": spec_of({"kind": "single"}).parallel}))


@pytest.mark.parametrize("name", [name for name in CASES if name != "bf16"])
def test_fsdp_trains_the_model_of_one_process(trained, name):
    expected = single(name)
    for found in trained[name]:
        assert_same_training(found, expected, rel=1e-5)
        assert found["weights"].keys() == expected["weights"].keys()
        if name == "sgd":  # Adam makes full-sized updates of rounding where there is no gradient
            torch.testing.assert_close(found["weights"], expected["weights"], rtol=1e-4, atol=1e-6)
        assert found["parameters"] == expected["parameters"]


def test_bf16_follows_the_same_course_and_is_not_the_same(trained):
    expected = single("fsdp")
    for found in trained["bf16"]:
        assert_same_training(found, expected, rel=0.02)
        assert found["losses"] != pytest.approx(expected["losses"], rel=1e-5)
        assert {w.dtype for w in found["weights"].values()} == {torch.float32}


def test_ranks_share_parameters_and_optimizer_state(trained):
    shares = [found["state_elements"] for found in trained["fsdp"]]
    parameters = trained["fsdp"][0]["parameters"]
    assert sum(shares) == 2 * parameters
    assert max(shares) < 1.1 * parameters
    assert trained["fsdp"][0]["communication"]["parameters_by_rank"] == [s // 2 for s in shares]


def test_traffic_of_the_cases(trained):
    def calls(name: str) -> tuple[int, int]:
        traffic = trained[name][1]["communication"]["traffic"]
        return traffic["all_gather"]["calls"], traffic["reduce_scatter"]["calls"]

    # Two layers in each stack and the rest are five groups; six steps.
    assert calls("fsdp") == (6 * (5 + 4), 6 * 5)
    assert calls("no_reshard") == (6 * 5, 6 * 5)
    assert calls("accumulated") == (18 * (5 + 4), 6 * 5)
    assert calls("synchronised") == (18 * (5 + 4), 18 * 5)
    wide, narrow = (
        trained[name][0]["communication"]["traffic"]["all_gather"]["sent_bytes"]
        for name in ("fsdp", "bf16")
    )
    assert wide == [2 * bytes_sent for bytes_sent in narrow]


def messages_of_a_step(specs: list[RunSpec]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """All-gathers and reduce-scatters as the strategy tells them, and as the profiler sees them."""
    found = []
    for spec in specs:
        setup = small_setup(spec)
        batch = next(setup.feed.batches())
        with profile() as profiler:
            optimizer_step(setup, batch, 1e-3)
        # As they were recorded: torch takes seconds to make a tree of them.
        events = profiler.profiler.kineto_results.events()
        counts = Counter(event.name() for event in events)
        seen = counts["c10d::_allgather_base_"], counts["c10d::_reduce_scatter_base_"]
        told = setup.strategy.communication()
        traffic = told["traffic"]
        calls = traffic["all_gather"]["calls"], traffic["reduce_scatter"]["calls"]
        found.append((calls, seen))
    return found


def test_the_messages_told_are_those_sent():
    specs = [
        spec_of(parallel, accumulation={"micro_batches": 2, "synchronise": synchronise})
        for parallel in (FSDP, NO_RESHARD)
        for synchronise in ("last", "every")
    ]
    for found in run_ranks(messages_of_a_step, RANKS, specs):
        told, seen = zip(*found, strict=True)
        assert told == seen
        assert len(set(told)) == 4


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
    """Layers in a list, and one matrix under two names."""

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
    """Names, and the output of a sharded tied model before and after a way through a file."""
    torch.manual_seed(0)
    model = Tied()
    spec = spec_of(FSDP)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    process = small_setup(spec).process
    strategy = FsdpStrategy(spec.parallel, process, spec.machine, synchronise_every=False)
    strategy.wrap(nn.ModuleList([model]))
    assert world_size == RANKS
    tokens = torch.arange(7)
    before = model(tokens)
    before.backward()
    weights = whole_weights(model, keep=rank == 0)
    if rank == 0:
        save_file(weights, folder / "model.safetensors")
    dist.barrier()
    fresh = Tied()
    load_model(fresh, folder / "model.safetensors")
    return list(weights), before.item(), fresh(tokens).item()


def test_a_tied_matrix_is_written_once_and_read_under_both_names(tmp_path):
    (names, before, after), (others, *_) = run_ranks(tied_and_sharded, RANKS, tmp_path)
    assert names == list(named_tensors(Tied()))
    assert "output.weight" not in names
    assert "scale" in names
    assert others == []  # only the main rank keeps them
    assert after == pytest.approx(before, rel=1e-6)


def snapshot(setup: Setup) -> dict[str, Tensor]:
    """Weights and optimizer state as whole tensors."""
    tensors = dict(named_tensors(setup.model))
    for name, parameter in list(tensors.items()):
        for key, value in setup.optimizer.state[parameter].items():
            tensors[f"{name}/{key}"] = value
    return {name: whole(tensor).clone() for name, tensor in tensors.items()}


def save_at_3(spec: RunSpec, folder: Path) -> tuple[dict[str, Tensor], Watcher]:
    """Train to step 3, keep a checkpoint of it, and go on to the end."""
    run_small(spec, folder, stop_at=3)
    setup = small_setup(spec)
    path = checkpoint.latest(folder, setup)
    assert path is not None
    checkpoint.load(path, setup)
    return snapshot(setup), run_small(spec, folder / "whole")[0]


def go_on_from(spec: RunSpec, path: Path) -> tuple[dict[str, Tensor], float, dict[int, float]]:
    """What a checkpoint of any strategy gives: state, validation loss, losses of later steps."""
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


def run_with(parallel: dict[str, Any], function: Any, *arguments: Any) -> list[Any]:
    """``function`` in as many processes as the strategy takes."""
    spec = spec_of(parallel, validate_every=3, checkpoint_every=3)
    if parallel["kind"] == "single":
        return [function(spec, *arguments)]
    return run_ranks(function, RANKS, spec, *arguments)


STRATEGIES = {"single": {"kind": "single"}, "ddp": {"kind": "ddp"}, "fsdp": FSDP}


@pytest.mark.parametrize("writer", ["ddp", "fsdp"])
def test_a_checkpoint_goes_on_under_every_strategy(tmp_path, writer):
    (saved, course_of_writer), *_ = run_with(STRATEGIES[writer], save_at_3, tmp_path)
    path = tmp_path / "step-00000003"
    for reader, parallel in STRATEGIES.items():
        for loaded, validation, losses in run_with(parallel, go_on_from, path):
            assert loaded.keys() == saved.keys()
            for name, tensor in saved.items():
                assert torch.equal(loaded[name], tensor), f"{name} from {writer} to {reader}"
            assert validation == pytest.approx(course_of_writer.validations[3], rel=1e-6)
            assert losses == pytest.approx(
                {step: course_of_writer.losses[step] for step in (4, 5, 6)}, rel=1e-5
            )
    sizes = [file.stat().st_size for file in sorted(path.glob("rank-*"))]
    if writer == "fsdp":  # each rank writes its share
        assert len(sizes) == RANKS
        assert max(sizes) < 1.2 * min(sizes)
    else:  # replicas are written once
        assert sum(sizes) < 1.2 * max(sizes)


def stop_and_resume(spec: RunSpec, folder: Path) -> list[Any]:
    """Losses and final state of an uninterrupted run, and of one that was stopped."""
    results = []
    for parts in (False, True):
        place = folder / str(parts)
        if parts:
            run_small(spec, place, stop_at=4)
        watcher, setup = run_small(spec, place)
        results.append((watcher.losses, watcher.validations[6], snapshot(setup)))
    return results


def test_two_ranks_resume_to_the_last_bit(tmp_path):
    spec = small_spec(parallel=FSDP, training={"checkpoint_every": 2, "validate_every": 2})
    assert spec.model.dropout > 0
    for whole_run, resumed in run_ranks(stop_and_resume, RANKS, spec, tmp_path):
        assert resumed[:2] == whole_run[:2]
        assert all(torch.equal(resumed[2][name], whole_run[2][name]) for name in whole_run[2])


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
@pytest.mark.parametrize("ranks", [1, 2])
def test_fsdp_on_gpus(parallel, ranks):
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} CUDA devices")
    expected = course(spec_of({"kind": "single"}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for found in run_ranks(on_gpu, ranks, spec_of(parallel), port):
        assert_same_training(found, expected, rel=0.02 if parallel == BF16 else 1e-3)
