"""Whole trainings on a GPU: formats, models, resumption, translation and one NCCL rank."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from schemas.base import merge
from schemas.config.run_spec import RunSpec
from schemas.results import BatchShape
from tests.training.small_training import VOCABULARY, Stopped, Watcher, small_setup, small_spec
from transformer_core.measure.heaviest_batch import blank_batch
from transformer_core.measure.largest_batch import limit_memory
from transformer_core.measure.turns_worker import give_memory_back
from transformer_core.models.decoding import beam_search
from transformer_core.parallel.topology import Process
from transformer_core.training.assemble import Setup
from transformer_core.training.loop import optimizer_step, train

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)
CUDA = {"device": "cuda", "devices_per_node": 1}
MODEL = {"d_model": 64, "d_ff": 128, "heads": 2}
"""Heads have 32 elements, as fused kernels require."""


def on_gpu(**sections: Any) -> RunSpec:
    model = sections.pop("model", {})
    return small_spec(machine=CUDA, model=MODEL | model, **sections)


def setup_of(spec: RunSpec) -> Setup:
    return small_setup(spec, Process(0, 1, 0, 1, DEVICE))


def trained(spec: RunSpec, folder: Path) -> tuple[Setup, Watcher]:
    setup, watcher = setup_of(spec), Watcher()
    train(setup, watcher, folder)
    return setup, watcher


def assert_trains(spec: RunSpec, folder: Path) -> None:
    setup, watcher = trained(spec, folder)
    assert all(torch.tensor(list(watcher.losses.values())).isfinite())
    for parameter in setup.model.parameters():
        assert parameter.isfinite().all()
        assert parameter.device == DEVICE


BF16: dict[str, Any] = {"training": {"precision": {"kind": "bf16"}}}
UNPADDED: dict[str, Any] = {"tokens": {"kind": "unpadded"}}
TRAININGS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "tf32": {"training": {"precision": {"kind": "tf32"}}},
    "fp16": {"training": {"precision": {"kind": "fp16"}}},
    "bf16": BF16,
    "bf16_unpadded": BF16 | {"model": UNPADDED},
    "bf16_flash": BF16 | {"model": UNPADDED | {"attention": {"kind": "sdpa", "backend": "flash"}}},
    "bf16_efficient": BF16 | {"model": {"attention": {"kind": "sdpa", "backend": "efficient"}}},
    "bf16_packed": BF16 | {"batching": {"rows": {"kind": "packed"}}},
    "bf16_chunked": merge(BF16, {"training": {"loss": {"kind": "chunked", "rows": 7}}}),
    "bf16_one_pass": merge(BF16, {"training": {"loss": {"kind": "one_pass"}}}),
}


@pytest.fixture(scope="module")
def losses():
    """Losses of the same training in 32 bits on the CPU; without dropout, whose random numbers
    differ there."""
    spec = small_spec(model=MODEL | {"dropout": 0.0})
    watcher = Watcher()
    train(small_setup(spec), watcher, Path("/nowhere"))
    return watcher.losses


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_follows_that_of_the_cpu(name, losses, tmp_path):
    sections = {key: dict(value) for key, value in TRAININGS[name].items()}
    sections["model"] = sections.get("model", {}) | {"dropout": 0.0}
    _, watcher = trained(on_gpu(**sections), tmp_path)
    assert list(watcher.losses) == list(losses)
    for step, loss in losses.items():
        assert watcher.losses[step] == pytest.approx(loss, rel=0.03), step


@pytest.mark.parametrize("name", TRAININGS)
def test_dropout_and_padding_from_end_to_end(name, tmp_path):
    assert_trains(on_gpu(**TRAININGS[name]), tmp_path)


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_a_resumed_training_is_the_whole_one(name, tmp_path):
    training = TRAININGS[name].get("training", {}) | {"checkpoint_every": 2}
    spec = on_gpu(training=training)
    _, whole = trained(spec, tmp_path / "whole")
    with pytest.raises(Stopped):
        train(setup_of(spec), Watcher(stop_at=3), tmp_path / "parts")
    torch.manual_seed(99)
    resumed_setup, resumed = trained(spec, tmp_path / "parts")
    assert resumed.started_at == [2]
    assert all(whole.losses[step] == loss for step, loss in resumed.losses.items())
    assert resumed_setup.device == DEVICE


@pytest.mark.parametrize("kind", ["torch_nn", "huggingface"])
def test_models_of_other_libraries(kind, tmp_path):
    if kind == "huggingface":
        pytest.importorskip("transformers")
    assert_trains(on_gpu(model={"kind": kind}, **BF16), tmp_path)


@pytest.mark.parametrize("half", [False, True])
def test_translations_are_those_of_the_cpu(half):
    setup = setup_of(on_gpu(model={"dropout": 0.0}))
    model: Any = setup.model.eval()
    source = torch.randint(3, VOCABULARY, (6, 7))
    source[:, -1] = 2
    source[2, 4:] = 0
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=half):
        found = beam_search(model, source.to(DEVICE), 3, 0.6, 12)
    expected = beam_search(model.cpu(), source, 3, 0.6, 12)
    # Rounding may swap hypotheses whose scores are nearly equal.
    same = sum(ours == theirs for ours, theirs in zip(found, expected, strict=True))
    assert same >= (3 if half else 6)


def test_two_sides_on_one_gpu_give_memory_back():
    setup = setup_of(on_gpu())
    shape = BatchShape(rows=512, source_tokens=64, target_tokens=64)
    optimizer_step(setup, blank_batch([shape], DEVICE), 1e-4)
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved(DEVICE)
    give_memory_back(setup)
    assert torch.cuda.memory_reserved(DEVICE) < before / 2
    optimizer_step(setup, blank_batch([shape], DEVICE), 1e-4)


def test_a_batch_beyond_the_limit_is_out_of_memory():
    setup = setup_of(on_gpu())
    torch.cuda.empty_cache()
    try:
        limit_memory(DEVICE, torch.cuda.memory_reserved(DEVICE) + 256 * 2**20)
        shape = BatchShape(rows=1 << 14, source_tokens=64, target_tokens=64)
        with pytest.raises(torch.OutOfMemoryError):
            optimizer_step(setup, blank_batch([shape], DEVICE), 1e-4)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, DEVICE)


@pytest.fixture
def nccl():
    if not dist.is_nccl_available():
        pytest.skip("torch was built without NCCL")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize(
    "parallel",
    [
        {"kind": "ddp"},
        {"kind": "fsdp"},
        {"kind": "central"},
        {"kind": "central", "local_loss": True},
    ],
    ids=["ddp", "fsdp", "central", "central_local_loss"],
)
def test_one_rank_over_nccl_trains_as_without(parallel):
    def steps(parallel: dict[str, Any]) -> list[float]:
        spec = on_gpu(parallel=parallel, model={"dropout": 0.0})
        setup = setup_of(spec)
        with closing(setup.strategy.batches(setup.feed, 0, 0)) as batches:
            return [float(optimizer_step(setup, next(batches), 1e-3)[0]) for _ in range(3)]

    assert steps(parallel) == pytest.approx(steps({"kind": "single"}), rel=1e-4)
