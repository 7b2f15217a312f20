"""Every kind of model trains, resumes, is certified and translates, whatever the strategy."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file

from schemas.config.run_spec import RunSpec
from tests.distributed import run_ranks
from tests.measure.short_runs import recorded
from tests.training.small_training import (
    VOCABULARY,
    run_small,
    small_setup,
    small_spec,
)
from transformer_core.certify.tensors import CanonicalTensors
from transformer_core.models.decoding import beam_search
from transformer_core.models.registry import build_model
from transformer_core.parallel.sharded_weights import whole_weights

pytestmark = pytest.mark.slow

KINDS: dict[str, dict[str, Any]] = {
    "torch_nn": {"kind": "torch_nn"},
    "huggingface": {"kind": "huggingface"},
    "import": {"kind": "import", "factory": "docs.examples.own_model:build"},
}


def spec_of(kind: str, **sections: Any) -> RunSpec:
    model = {"d_model": 16, "d_ff": 32, "heads": 2, "dropout": 0.0}
    return small_spec(model=model | KINDS.get(kind, {}), **sections)


def all_recorded(cases: dict[str, tuple[RunSpec, Path]]) -> dict[str, Any]:
    return {name: recorded(*case).trajectory for name, case in cases.items()}


STRATEGIES = {"torch_nn": ["fsdp"], "huggingface": ["ddp", "fsdp"], "import": ["fsdp"]}
"""DDP only sees parameters; FSDP divides the layers that it finds."""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """Short runs of every kind and strategy in two processes."""
    folder = tmp_path_factory.mktemp("two-ranks")
    cases = {}
    for kind, strategies in STRATEGIES.items():
        for strategy in strategies:
            name = f"{kind}-{strategy}"
            (folder / name).mkdir()
            machine = {"devices_per_node": 2}
            spec = spec_of(kind, parallel={"kind": strategy}, machine=machine)
            cases[name] = (spec, folder / name)
    return run_ranks(all_recorded, 2, cases)[0], folder


def assert_same_training(run: Path, other: Path, atol: float) -> None:
    """The short runs recorded in these folders end with the same weights, except for rounding."""
    mine, theirs = (load_file(folder / "final.safetensors") for folder in (run, other))
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if not name.endswith("key.bias"):
            torch.testing.assert_close(mine[name], tensor, rtol=1e-2, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
def test_every_strategy_trains_the_same_model(kind, two_ranks, tmp_path):
    alone = recorded(spec_of(kind), tmp_path, checked=False).trajectory
    runs, folder = two_ranks
    for strategy in STRATEGIES[kind]:
        run = runs[f"{kind}-{strategy}"]
        assert run.initial_sha256 == alone.initial_sha256
        assert run.losses == pytest.approx(alone.losses, rel=1e-4)
        for point in run.checks.points:
            assert point.norm == pytest.approx(point.expected_norm, rel=1e-4)
        assert_same_training(folder / f"{kind}-{strategy}", tmp_path, atol=1e-3)
    if kind == "torch_nn":  # has this project's layers
        ours = recorded(spec_of(""), tmp_path / "ours", checked=False).trajectory
        assert ours.initial_sha256 == alone.initial_sha256
        assert ours.losses == pytest.approx(alone.losses, rel=1e-5)
        assert_same_training(tmp_path / "ours", tmp_path, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_learns_the_same_and_translates(kind, tmp_path):
    schedule = {"kind": "constant", "peak": 1e-2}
    spec = spec_of(kind, training={"steps": 24, "checkpoint_every": 12, "schedule": schedule})
    watcher, through = run_small(spec, tmp_path / "through")
    assert watcher.losses[24] < 0.9 * watcher.losses[1]
    assert watcher.losses[1] < 1.5 * math.log(VOCABULARY)

    run_small(spec, tmp_path / "stopped", stop_at=18)
    _, resumed = run_small(spec, tmp_path / "stopped")
    weights = whole_weights(through.model, keep=True)
    for name, tensor in whole_weights(resumed.model, keep=True).items():
        assert torch.equal(tensor, weights[name]), name

    save_file(weights, tmp_path / "model.safetensors")
    model = build_model(spec.model, VOCABULARY)
    load_model(model, str(tmp_path / "model.safetensors"))
    source = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
    with torch.inference_mode():
        assert torch.equal(model.eval()(source, source), through.model.eval()(source, source))
        assert len(beam_search(model, source, 2, 0.6, 5)) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_compares_every_weight(kind):
    setup = small_setup(spec_of(kind))
    tensors = CanonicalTensors(setup, VOCABULARY)
    before = tensors.weights()
    with torch.no_grad():
        for parameter in setup.model.parameters():
            parameter.add_(1)
    after = tensors.weights()
    buffers = {name for name, _ in setup.model.named_buffers()}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert before.keys() - changed == buffers & before.keys()
    # Biases of keys, which certificates leave out, are recognised by name.
    assert any(name.endswith("key.bias") for name in before) == (kind != "import")
