"""Checks of steps during a timed run find faults that begin late."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from schemas.config.facts import AdamRule, MomentumRule
from schemas.config.measurement import Tolerance
from schemas.results.runs import SpotCheck
from tests.distributed import run_ranks
from tests.training.small_training import small_setup, small_spec
from transformer_core.certify.bounds import spot_deviations
from transformer_core.observe.clock import WindowClock
from transformer_core.observe.expected_updates import ExpectedUpdates
from transformer_core.observe.spot_checks import STEPS, SpotChecks
from transformer_core.parallel.topology import Process
from transformer_core.training import loop
from transformer_core.training.loop import train
from transformer_core.training.observer import Observers
from transformer_core.training.precision import Precision

ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1}
FUSED = {"kind": "adamw", "fused": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "adamw with noam": {"schedule": {"kind": "noam", "warmup": 4}},
    "folded": {"optimizer": FUSED, "clipping": "folded"},
    "sgd in bf16": {"optimizer": {"kind": "sgd"}, "precision": {"kind": "bf16"}},
    "bf16 weights": {"optimizer": FUSED, "precision": {"kind": "bf16_weights"}},
    "fp16": {"precision": {"kind": "fp16", "initial_scale": 1024.0}},
}


def checked(folder: Path, training: dict[str, Any], first: int = 4) -> list[SpotCheck]:
    setup = small_setup(small_spec(training=training, model=ONE_LAYER))
    clock = WindowClock(1, 1, setup.strategy.synchronise)
    checks = SpotChecks(setup, clock, first)
    train(setup, Observers(checks, clock), folder, validate_last=False)
    assert len(clock.windows) == 5
    return checks.found


def failed(found: list[SpotCheck]) -> set[str]:
    deviations = spot_deviations(found, Tolerance(kind="tolerance"))
    return {d.quantity for d in deviations if not d.holds}


@pytest.mark.parametrize("training", VARIANTS.values(), ids=list(VARIANTS))
def test_healthy_steps_agree(tmp_path, training):
    found = checked(tmp_path, training)
    assert len(found) == STEPS
    assert all(4 <= check.step <= 6 and not check.skipped for check in found)
    assert not failed(found)
    assert {check.tensor for check in found if not check.update} <= {""}


def test_a_rank_may_check_for_longer_than_a_peer_may_be_silent(tmp_path):
    setup = small_setup(small_spec(model=ONE_LAYER))
    told: list[str] = []
    setup.strategy.rest = lambda: told.append("rest")
    clock = WindowClock(1, 1, lambda: told.append("progress"))
    train(setup, Observers(SpotChecks(setup, clock, 4), clock), tmp_path, validate_last=False)
    # Before and after the update of each step that is checked, and for its clipping.
    assert told.count("rest") == 3 * STEPS
    assert "rest rest" not in " ".join(told), "the wait for peers counts again"


def forgetful_later(real: Any, self: Any, closure: Any = None, tensor: int = 0) -> Any:
    """Momentum of one tensor is lost after step 3."""
    weight = self.param_groups[0]["params"][tensor]
    if self.state[weight].get("step", 0) >= 3:
        self.state[weight]["exp_avg"].zero_()
    return real(self, closure)


def kept_and_found(folder: Path, parallel: str, faulty: tuple[int, ...] = ()) -> Any:
    """The bytes that a check keeps during a step, and what is found if the optimizer of the ``faulty``
    ranks loses a momentum."""
    if faulty and dist.get_rank() in faulty:
        kind = torch.optim.AdamW
        real = getattr(kind.step, "__wrapped__", kind.step)
        kind.step = lambda *given: forgetful_later(real, *given, tensor=1)  # type: ignore[method-assign]
    setup = small_setup(small_spec(model=ONE_LAYER, parallel={"kind": parallel}))
    clock = WindowClock(1, 1, setup.strategy.synchronise)
    checks = SpotChecks(setup, clock, 4)
    kept: list[int] = []

    def see(*_: Any) -> None:
        expected = checks._expected.values()
        kept.append(sum(each.weight.nbytes for each in expected))

    setup.optimizer.register_step_pre_hook(see)
    train(setup, Observers(checks, clock), folder, validate_last=False)
    return max(kept), setup.parameters, checks.found


def test_a_check_keeps_eight_bytes_of_a_number(tmp_path):
    kept, parameters, _ = kept_and_found(tmp_path, "single")
    assert kept == 8 * parameters


@pytest.mark.parametrize(
    ("parallel", "faulty", "shown"),
    [
        ("ddp", (), set()),
        ("ddp", (0, 1), {"timed_update"}),
        ("ddp", (0,), {"timed_replicas"}),
        ("fsdp", (0,), {"timed_update"}),
    ],
)
def test_ranks_share_the_checks_and_miss_no_fault(tmp_path, parallel, faulty, shown):
    found = run_ranks(kept_and_found, 2, tmp_path, parallel, faulty)
    for _, _, checks in found:
        assert failed(checks) == shown
        if "timed_update" in shown:
            assert {check.tensor for check in checks} == {checks[0].tensor} != {""}
    kept = [bytes_ for bytes_, _, _ in found]
    assert sum(kept) == 8 * found[0][1]
    assert max(kept) < sum(kept)


@pytest.mark.gpu
def test_a_check_takes_no_memory_of_the_device(tmp_path):
    device = torch.device("cuda", 0)
    spec = small_spec(machine={"device": "cuda", "devices_per_node": 1})

    def peak(first: int) -> int:
        setup = small_setup(spec, Process(0, 1, 0, 1, device))
        clock = WindowClock(1, 1, setup.strategy.synchronise)
        torch.cuda.reset_peak_memory_stats(device)
        checks = SpotChecks(setup, clock, first)
        train(setup, Observers(checks, clock), tmp_path, validate_last=False)
        assert bool(checks.found) == (first < spec.training.steps)
        return torch.cuda.max_memory_allocated(device)

    assert peak(first=2) == peak(first=spec.training.steps + 1)


def skipped_apart(folder: Path) -> int:
    scale = 2.0**60 if dist.get_rank() else 1024.0
    spec = small_spec(
        parallel={"kind": "local_steps", "every": 3},
        model=ONE_LAYER,
        training={
            "optimizer": {"kind": "adam"},
            "precision": {"kind": "fp16", "initial_scale": scale},
        },
    )
    setup = small_setup(spec)
    clock = WindowClock(1, 1, setup.strategy.synchronise)
    train(setup, Observers(SpotChecks(setup, clock, 1), clock), folder, validate_last=False)
    return (setup.precision.report() or {})["skipped_steps"]


def test_ranks_that_skip_steps_apart_do_not_wait_for_one_another(tmp_path):
    assert run_ranks(skipped_apart, 2, tmp_path) == [0, 6]


def larger_later(real: Any, schedule: Any, step: int, *more: Any) -> float:
    """The rate is too large after step 3."""
    return real(schedule, step, *more) * (1.01 if step > 3 else 1.0)


def unclipped(real: Any, self: Any, optimizer: Any, parameters: Any, clip: float) -> Any:
    return real(self, optimizer, parameters, 0.0)


@pytest.mark.parametrize(
    ("where", "name", "fault", "shown"),
    [
        (loop, "learning_rate", larger_later, "timed_rate"),
        (torch.optim.AdamW, "step", forgetful_later, "timed_update"),
        (Precision, "step", unclipped, "timed_clipping"),
    ],
)
def test_late_faults_are_found(tmp_path, monkeypatch, where, name, fault, shown):
    real = getattr(where, name)
    # torch wraps the optimizer's step in its hooks, which must surround the fault.
    real = getattr(real, "__wrapped__", real)
    monkeypatch.setattr(where, name, lambda *given: fault(real, *given))
    assert shown in failed(checked(tmp_path, {"clip_norm": 1e-3}))


def test_moments_that_are_lost_late_are_found(tmp_path, monkeypatch):
    step = torch.optim.AdamW.step.__wrapped__

    def restarting(self: Any, closure: Any = None) -> None:
        step(self, closure)
        if all(state["step"] == 2 for state in self.state.values()):
            self.state.clear()

    monkeypatch.setattr(torch.optim.AdamW, "step", restarting)
    assert failed(checked(tmp_path, {})) == {"timed_update"}


def test_a_weight_that_becomes_nan_is_found_whatever_the_other_tensors_say(tmp_path, monkeypatch):
    step = torch.optim.AdamW.step.__wrapped__

    def poisoned(self: Any, closure: Any = None) -> None:
        step(self, closure)
        weight = self.param_groups[0]["params"][0]
        if self.state[weight]["step"] == 6:
            weight.data.view(-1)[0] = torch.nan

    monkeypatch.setattr(torch.optim.AdamW, "step", poisoned)
    found = checked(tmp_path, {}, first=5)
    assert failed(found[:1]) == set()
    assert failed(found) == {"timed_update"}


@pytest.mark.parametrize(("optimizer", "steps"), [("adamw", {6}), ("adamw_8bit", set())])
def test_a_resumed_run_is_checked_in_the_steps_that_are_left_unless_it_keeps_8_bits(
    optimizer, steps
):
    setup = small_setup(small_spec(model=ONE_LAYER))
    # The optimizer itself stays the same: importing that of 8 bits takes seconds.
    spec = small_spec(training={"optimizer": {"kind": optimizer}})
    clock = WindowClock(1, 1, setup.strategy.synchronise)
    checks = SpotChecks(replace(setup, spec=spec), clock, 2)
    checks.start(5)
    assert checks._waiting == steps


def test_the_memory_of_a_gradient_may_be_reused():
    rule, gradient, weights = ExpectedUpdates(MomentumRule(0.9, 1.0)), torch.ones(3), torch.zeros(3)
    rule.next(weights, gradient, 0.1)
    gradient.fill_(2.0)
    expected = torch.full((3,), -0.1 * (0.9 + 2.0))
    torch.testing.assert_close(rule.next(weights, gradient, 0.1), expected)


@pytest.mark.parametrize("rule", [AdamRule((0.9, 0.98), 1e-9, 0.1), MomentumRule(0.9, 1.0)])
def test_weights_without_a_gradient_are_passed_over_as_by_torch(rule):
    weights = [torch.nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(3)]
    if isinstance(rule, AdamRule):
        more = {"betas": rule.betas, "eps": rule.eps, "weight_decay": rule.decay}
        optimizer: Any = torch.optim.AdamW(weights, lr=0.1, **more)
    else:
        optimizer = torch.optim.SGD(weights, lr=0.1, momentum=rule.momentum)
    expected, own = ExpectedUpdates(rule), torch.ones(6, dtype=torch.float64)
    for step, unused in enumerate(({0}, set(), {1}, {1, 2}, set()), start=1):
        gradients = [torch.full((2,), float(step + i), dtype=torch.float64) for i in range(3)]
        for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            weight.grad = None if i in unused else gradient
            gradient *= i not in unused
        optimizer.step()
        idle = torch.tensor([i in unused for i in range(3)]).repeat_interleave(2)
        own = own + expected.next(own, torch.cat(gradients), 0.1, idle if unused else None)
        torch.testing.assert_close(own, torch.cat(weights).detach())
