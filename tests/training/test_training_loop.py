"""The training loop: its gradients, its records, its end; the host waits for the device only at steps
whose loss is logged."""

import gc
import math
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.small_training import ODD, Watcher, small_setup, small_spec, small_store
from transformer_core.data.batching.collate import Batch, Known
from transformer_core.data.batching.feeding import GlobalBatch, evaluation_batches
from transformer_core.models.compiled_layers import UNPLAYED
from transformer_core.models.loss import token_loss_sum
from transformer_core.training.evaluation import validation_loss
from transformer_core.training.history import History
from transformer_core.training.loop import Diverged, _record_graphs, optimizer_step, train
from transformer_core.training.optimizer import learning_rate
from transformer_core.training.precision import Precision


def steps_of(history: History, column: str) -> list[Any]:
    return [step[column] for step in history.steps]


def spoil(module: torch.nn.Module, at_call: int, value: float) -> None:
    """Make the loss of the ``at_call``-th forward pass ``value``."""
    calls = count(1)
    module.register_forward_hook(
        lambda *given: given[2] * value if next(calls) == at_call else None
    )


def test_the_gradient_is_that_of_the_mean_over_all_target_tokens():
    spec = small_spec(
        model={"dropout": 0.0}, training={"clip_norm": 0.0, "accumulation": {"micro_batches": 3}}
    )
    setup = small_setup(spec)
    batch = next(setup.feed.batches())
    sizes = {int((micro.source != 0).sum()) for micro in batch.micro_batches}
    assert len(sizes) > 1  # otherwise a mean of means would be right too
    setup.model.zero_grad()
    losses = [
        token_loss_sum(setup.model(b.source, b.target_input), b.target_output, 0.1)
        for b in batch.micro_batches
    ]
    tokens = sum(int((b.target_output != 0).sum()) for b in batch.micro_batches)
    (torch.stack(losses).sum() / tokens).backward()
    expected = [p.grad.clone() for p in setup.model.parameters() if p.grad is not None]
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in expected))

    loss_sum, found = optimizer_step(setup, batch, rate=0.0)
    assert float(loss_sum) == pytest.approx(sum(loss.item() for loss in losses), rel=1e-6)
    assert float(found) == pytest.approx(norm, rel=1e-5)
    for parameter, gradient in zip(setup.model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("clip_norm", "expected"), [(0.0, None), (0.25, 0.25), (100.0, None)])
def test_clipping(clip_norm, expected):
    setup = small_setup(small_spec(training={"clip_norm": clip_norm}))
    _, before = optimizer_step(setup, next(setup.feed.batches()), rate=0.0)
    gradients = [p.grad for p in setup.model.parameters() if p.grad is not None]
    after = float(torch.cat([gradient.flatten() for gradient in gradients]).norm())
    assert after == pytest.approx(expected or float(before), rel=1e-4)
    assert 0.25 < float(before) < 100


@pytest.mark.parametrize("kind", ["none", "layers"])
def test_a_rank_may_compile_its_first_step_for_longer_than_a_peer_may_be_silent(tmp_path, kind):
    setup = small_setup(small_spec(training={"steps": 3, "log_every": 1}))
    setup.model.compile_kind = kind  # nothing is compiled
    told: list[str] = []
    setup.strategy.rest = lambda: told.append("rest")
    setup.module.register_forward_hook(lambda *_: told.append("forward"))
    train(setup, Watcher(), tmp_path, validate_last=False)
    assert told == ["rest"] * (kind == "layers") + ["forward"] * 3


def test_a_step_uses_the_rate_of_the_schedule_times_the_factor_of_the_optimizer(tmp_path):
    schedule = {"kind": "linear", "peak": 1e-2, "warmup": 2}
    optimizer = {"kind": "sgd", "rate_factor": 25.0}
    spec = small_spec(training={"schedule": schedule, "optimizer": optimizer})
    setup, rates = small_setup(spec), []
    group = setup.optimizer.param_groups[0]
    setup.optimizer.register_step_pre_hook(lambda *_: rates.append(group["lr"]))
    history = train(setup, Watcher(), tmp_path)
    expected = [learning_rate(spec.training.schedule, step, 6, 16) for step in range(1, 7)]
    assert steps_of(history, "learning_rate") == expected
    assert rates == [25.0 * rate for rate in expected]


def test_losses_are_read_and_validated_at_their_intervals(tmp_path):
    spec = small_spec(training={"steps": 8, "log_every": 3, "validate_every": 4})
    watcher = Watcher()
    history = train(small_setup(spec), watcher, tmp_path)
    assert list(watcher.losses) == [1, 3, 6, 8]
    for column in ("loss", "grad_norm"):
        assert [s["step"] for s in history.steps if s[column] is not None] == [1, 3, 6, 8]
    assert list(watcher.validations) == [v.step for v in history.validations] == [4, 8]
    assert steps_of(history, "step") == list(range(1, 9))
    assert steps_of(history, "epoch") == [0] * 5 + [1] * 3  # 40 pairs, 8 a step
    assert steps_of(history, "batch") == [0, 1, 2, 3, 4, 0, 1, 2]


def test_validation_is_the_mean_over_all_tokens_without_dropout():
    setup = small_setup(small_spec(), validation_pairs=ODD)
    setup.module.train()
    batches = [batch for _, batch in evaluation_batches(small_store(ODD, seed=1))]
    assert len(batches) % 2  # tests of two ranks then have one batch left over
    counted: list[None] = []
    setup.strategy.progress = lambda: counted.append(None)  # else ranks would seem to stand still
    value = validation_loss(setup)
    assert len(counted) == len(batches)
    assert setup.model.training
    setup.model.eval()
    losses = [
        token_loss_sum(setup.model(b.source, b.target_input), b.target_output) for b in batches
    ]
    tokens = sum(int((b.target_output != 0).sum()) for b in batches)
    assert value == pytest.approx(torch.stack(losses).sum().item() / tokens, rel=1e-6)


@pytest.mark.parametrize(
    ("log_every", "spoiled", "value", "ends_at"),
    [(1, 3, math.nan, 3), (1, 3, math.inf, 3), (4, 2, math.nan, 4)],
)
def test_a_loss_that_is_read_and_not_finite_ends_the_run(
    tmp_path, log_every, spoiled, value, ends_at
):
    setup = small_setup(small_spec(training={"log_every": log_every}))
    spoil(setup.module, at_call=spoiled, value=value)
    watcher = Watcher()
    with pytest.raises(Diverged, match=f"training loss at step {ends_at} is {value}"):
        train(setup, watcher, tmp_path)
    assert list(watcher.losses) == ([1, 2] if log_every == 1 else [1])


def test_a_validation_loss_that_is_not_finite_ends_the_run(tmp_path):
    setup = small_setup(small_spec(training={"validate_every": 2, "log_every": 6}))

    def spoil_weights(*_: Any) -> None:
        next(setup.model.parameters()).data.fill_(math.nan)

    setup.optimizer.register_step_post_hook(spoil_weights)
    with pytest.raises(Diverged, match="validation loss after step 2 is nan"):
        train(setup, Watcher(), tmp_path)


def test_pauses_enclose_all_other_work_and_garbage_is_collected_only_there(tmp_path):
    events: list[str] = []
    collecting: list[bool] = []

    class Listener(Watcher):
        def pause(self) -> None:
            events.append("pause")

        def resume(self) -> None:
            events.append("resume")

        def validated(self, step: int, loss: float) -> None:
            events.append(f"validated {step}")

        def step_done(self, step: int, *counts: float) -> None:
            events.append(f"step {step}")
            collecting.append(gc.isenabled())

        def state(self) -> dict[str, Any]:
            events.append("checkpoint")
            return {}

    training = {"steps": 3, "validate_every": 2, "checkpoint_every": 2}
    spec = small_spec(training=training, machine={"garbage_collection": "off"})
    train(small_setup(spec), Listener(), tmp_path)
    assert collecting == [False] * 3
    assert gc.isenabled()
    assert events == [
        "step 1",
        "step 2",
        *("pause", "validated 2", "resume"),
        *("pause", "checkpoint", "resume"),
        "step 3",
        *("pause", "validated 3", "resume"),
    ]


READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default}


class Reads(TorchDispatchMode):
    """Counts how often the host reads numbers from tensors."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.count = 0
        for name in ("tolist", "numpy"):  # these two call no operator
            monkeypatch.setattr(torch.Tensor, name, self.counting(getattr(torch.Tensor, name)))

    def counting(self, method):
        def counted(*args, **kwargs):
            self.count += 1
            return method(*args, **kwargs)

        return counted

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in READS
        return function(*args, **(kwargs or {}))


class CountingWatcher(Watcher):
    """Records how many numbers had been read after each step and before each validation."""

    def __init__(self, reads):
        super().__init__()
        self.reads = reads
        self.after_update = []

    def step_done(self, step, *counts):
        super().step_done(step, *counts)
        self.after_update.append(self.reads.count)

    def pause(self):
        self.before_validation = self.reads.count


def trained(monkeypatch, tmp_path, **training):
    setup = small_setup(small_spec(training=training))
    with Reads(monkeypatch) as reads:
        watcher = CountingWatcher(reads)
        train(setup, watcher, tmp_path)
    return setup, watcher


def test_the_counter_sees_every_way_to_read(monkeypatch):
    one = torch.ones(())
    with Reads(monkeypatch) as reads:
        found = [float(one), int(one), bool(one), f"{one:.1f}", one.item(), one.tolist()]
        found.append(one.numpy())
    assert reads.count == len(found)


@pytest.mark.parametrize("kind", ["fp32", "bf16", "fp16"])
def test_the_host_reads_at_logged_steps_only_and_reading_changes_no_weight(
    monkeypatch, tmp_path, kind
):
    weights = []
    for log_every, logged in ((1, [1, 2, 3, 4, 5, 6]), (5, [1, 5, 6])):
        settings = {"log_every": log_every, "precision": {"kind": kind}}
        setup, watcher = trained(monkeypatch, tmp_path / str(log_every), **settings)
        assert list(watcher.losses) == logged
        # Each logged step reads two numbers, loss and norm, before it counts as done.
        read = [2 * sum(step <= now for step in logged) for now in range(1, 7)]
        assert watcher.after_update == read
        assert watcher.before_validation == 2 * len(logged)
        weights.append(setup.model.state_dict())
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def test_graphs_of_one_shape_are_recorded_with_and_without_a_mask():
    """Layers get no mask if no source of a batch is padded."""
    ones = torch.ones(2, 3, dtype=torch.int64)
    told = [True, False, True, False]
    made = [
        GlobalBatch(0, number, [Batch(ones, ones, ones, 2, Known(full))], 2, 12, 6, 12)
        for number, full in enumerate(told)
    ]
    called: list[bool] = []

    def module(source: Any, inputs: Any, outputs: Any, known: Known) -> torch.Tensor:
        called.append(known.source_full)
        return torch.zeros((), requires_grad=True)

    setup: Any = SimpleNamespace(
        model=SimpleNamespace(compile_kind="graphs"),
        strategy=SimpleNamespace(devices=[], batches=lambda *_: (batch for batch in made)),
        feed=None,
        spec=SimpleNamespace(training=SimpleNamespace(steps=len(made))),
        optimizer=Mock(),
        module=module,
        precision=Precision(),
    )
    _record_graphs(setup)
    assert called == [True] * UNPLAYED + [False] * UNPLAYED
