"""The kernels of a training's first step, and their use in certificates."""

import contextlib
from pathlib import Path
from typing import Any

import torch

from schemas.results.runs import StepKernels
from tests.measure.short_runs import recorded
from tests.training.small_training import small_setup, small_spec
from transformer_core.certify.short_run_worker import STEPS_AS_TIMED
from transformer_core.machine.step_kernels import FirstKernels, FirstStep
from transformer_core.training import checkpoint
from transformer_core.training.history import History
from transformer_core.training.loop import train


def seen(folder: Path, **sections: Any) -> StepKernels:
    setup = small_setup(small_spec(**sections))
    with FirstStep() as kernels:
        train(setup, FirstKernels(kernels), folder / "none", validate_last=False)
    return kernels.read(setup.model)


def test_kernels_show_the_changes_of_a_variant(tmp_path):
    """Attention backend, fused update and number format are observed, not taken from the spec."""

    def seen_with(dropout: float = 0.0, attention: str = "sdpa", **training: Any) -> StepKernels:
        model = {"dropout": dropout, "attention": {"kind": attention}}
        return seen(tmp_path, model=model, training={"steps": 1} | training)

    usual = seen_with()
    assert [name.split(".")[1].split()[0] for name in usual.attention] == [
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ]
    assert "aten._fused_adamw_ float32" in usual.update
    assert not usual.compiled
    assert not usual.deterministic
    plain = seen_with(attention="reference", optimizer={"kind": "adamw", "fused": False})
    assert plain.attention == []
    assert any(name.startswith("aten._foreach_") for name in plain.update)
    reduced = seen_with(precision={"kind": "bf16"})
    assert "aten.addmm bfloat16" in {*reduced.operators} - {*usual.operators}
    # A tiny dropout uses the same kernels: a short run is like a timed run.
    timed, short = seen_with(dropout=0.1), seen_with(dropout=1e-9)
    assert timed == short != usual


def test_a_resumed_training_shows_the_kernels_of_its_first_step(tmp_path):
    setup = small_setup(small_spec())
    checkpoint.save(tmp_path / "none", setup, 3, {"history": History().state(), "observer": {}})
    resumed, whole = seen(tmp_path), seen(tmp_path / "whole")
    assert whole.update == resumed.update != []
    assert {*resumed.operators} <= {*whole.operators}


def test_observation_ends_with_a_failed_step():
    kernels = FirstStep()
    with contextlib.suppress(RuntimeError), kernels:
        kernels.begin()
        raise RuntimeError("in the middle of it")
    small_setup(small_spec())
    assert kernels.seen == set()


def test_some_steps_are_checked_without_deterministic_algorithms(tmp_path):
    """As on CUDA, where a timed run uses other kernels than a deterministic short run."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        found = recorded(small_spec(model={"dropout": 0.0}), tmp_path)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert found.kernels.deterministic
    checks = found.trajectory.as_timed
    assert [point.step for point in checks.points] == [1, 2, STEPS_AS_TIMED]
