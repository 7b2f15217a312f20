"""A training that runs in turns."""

import os
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_training import small_setup, small_spec

from schemas.config.run_spec import RunSpec
from tests.distributed import run_ranks
from transformer_core.measure import turns_worker
from transformer_core.measure.turns_worker import (
    SEEDS,
    PlantedDelay,
    TurnsOver,
    TurnTaker,
    endless,
    of_session,
)
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.topology import Process
from transformer_core.run.coordinator import (
    Leave,
    ProbeDevices,
    Report,
    TellKernels,
    TellMemory,
    Turn,
)
from transformer_core.training.loop import train
from transformer_core.training.optimizer import learning_rate

NOWHERE = Path(tempfile.gettempdir(), f"nowhere-{os.getpid()}")


@pytest.fixture(autouse=True)
def any_core(monkeypatch):
    """Sides do not restrict this process to some cores."""
    monkeypatch.setattr(turns_worker, "keep_to", lambda count: None)


class FakeTurns:
    """Prepared tasks, and the answers to them."""

    def __init__(self, *tasks: Any) -> None:
        self.tasks = list(tasks)
        self.answers: list[Any] = []

    def next(self) -> Any:
        return self.tasks.pop(0)

    def answer(self, value: Any) -> None:
        self.answers.append(value)


class InTurns:
    """A small training that carries out these tasks."""

    def __init__(self, *tasks: Any, spec: RunSpec | None = None, on: Process | None = None) -> None:
        self.spec = spec or small_spec()
        self.setup = small_setup(endless(self.spec), on)
        self.turns: Any = FakeTurns(*tasks, Leave())

    def taker(self, planted: PlantedDelay | None = None, **options: Any) -> TurnTaker:
        return TurnTaker(self.turns, self.spec, self.setup, planted, **options)

    def answers(self, taker: TurnTaker | None = None) -> list[Any]:
        with pytest.raises(TurnsOver):
            train(self.setup, taker or self.taker(), NOWHERE)
        return self.turns.answers


def at_each_step(taker: TurnTaker, see: Callable[..., None]) -> None:
    """Calls ``see`` with the number and the counts of each step, just before ``taker``."""
    step_done = taker.step_done

    def seen(*counts: Any) -> None:
        see(*counts)
        step_done(*counts)

    taker.step_done = seen


def train_in_turns(*tasks: Any, spec: RunSpec | None = None) -> tuple[list[Any], list[float]]:
    """The answers of a small training, and the readings of a clock that counts its steps."""
    made = InTurns(*tasks, spec=spec)
    done, readings = 0.0, []

    def now() -> float:
        readings.append(done)
        return done

    def counted(step: int, *_: Any) -> None:
        nonlocal done
        done = float(step)

    taker = made.taker(now=now)
    at_each_step(taker, counted)
    return made.answers(taker), readings


def test_each_session_has_its_own_seed_and_the_first_has_the_studys():
    spec = small_spec()
    assert of_session(spec, 1) == spec
    seeds = [of_session(spec, session).training.seed for session in (1, 2, 5)]
    assert seeds == [spec.training.seed, spec.training.seed + 1, spec.training.seed + 4]
    assert of_session(small_spec(training={"seed": SEEDS - 1}), 2).training.seed == 0


def test_a_side_gives_memory_back_if_the_coordinator_says_so(tmp_path, monkeypatch):
    given_back: list[Any] = []
    monkeypatch.setattr(turns_worker, "give_memory_back", given_back.append)
    turns = FakeTurns(Turn(0, 1), Leave())
    monkeypatch.setattr(turns_worker, "Turns", lambda *_: turns)
    file = tmp_path / "coordinator.json"
    file.write_text('{"session": 3, "keeps": "state"}')
    order: Any = SimpleNamespace(
        coordinator=file, side="a", planted=None, spec=small_spec(), output=tmp_path
    )
    program: Any = SimpleNamespace(assemble=small_setup, process=small_setup(order.spec).process)
    turns_worker.take_turns(order, program, order.spec)
    assert [setup.spec for setup in given_back] == [of_session(order.spec, 3)]


def test_turns_are_timed_even_beyond_the_steps_of_the_spec():
    spec = small_spec(training={"steps": 2, "validate_every": 1, "checkpoint_every": 1})
    answers, readings = train_in_turns(Turn(0, 3), Turn(1, 2), Turn(2, 5), spec=spec)
    assert [report.seconds for report in answers] == [3.0, 2.0, 5.0]
    # The clock is read only where the timed part of a turn begins and ends.
    assert readings == [0, 3, 4, 6, 8, 13]
    assert not NOWHERE.exists(), "no checkpoint is written"


def test_messages_are_compressed_in_all_timed_turns():
    """The default PowerSGD starts after ten steps, and a session may have five warm-up steps."""
    spec = small_spec(parallel={"kind": "ddp", "hook": {"kind": "powersgd", "start_step": 10}})
    assert endless(spec).parallel.hook.start_step == 2
    assert endless(small_spec()).parallel == small_spec().parallel


def test_a_side_prepares_once_and_rests_before_the_next_side_starts(monkeypatch):
    """It has already read its clock, so freeing memory belongs to no window."""
    made = InTurns(TellMemory(), Turn(0, 2), "look", Turn(1, 1))
    done: list[str] = []
    answer = made.turns.answer
    made.turns.answer = lambda value: (done.append("answer"), answer(value))
    monkeypatch.setattr(turns_worker, "keep_to", lambda count: done.append("prepare"))
    monkeypatch.setattr(turns_worker, "give_memory_back", lambda setup: done.append("rest"))
    made.answers(made.taker(keeps="state", answer=lambda setup, task: done.append(task)))
    first = ["answer", "prepare", "rest", "answer"]
    assert done == [*first, "look", "rest", "answer", "rest", "answer"]


def test_a_side_reports_memory_probes_and_the_kernels_of_its_first_step_only():
    turn_and_reports = Turn(0, 1), TellKernels(), TellMemory()
    made = InTurns(ProbeDevices(), *turn_and_reports, *turn_and_reports)
    taker = made.taker()
    began: list[int] = []
    begin = taker.first.begin
    taker.first.begin = lambda: (began.append(1), begin())[1]
    probes, _, once, memory, _, again, later = made.answers(taker)
    assert probes == [], "the supervisor probes the CPU"
    assert 1 << 20 < memory <= later
    assert once == again
    assert began == [1]
    assert any("_fused_adamw" in name for name in once.update)
    assert any("embedding" in name for name in once.operators)


def test_counts_are_those_of_the_timed_steps():
    (whole,), _ = train_in_turns(Turn(0, 4))
    first, second, third = train_in_turns(Turn(0, 1), Turn(1, 1), Turn(0, 1))[0]
    (skipped,), _ = train_in_turns(Turn(1, 3))
    assert isinstance(whole, Report)
    assert whole.tokens == first.tokens + skipped.tokens
    assert second.tokens + third.tokens < skipped.tokens
    assert whole.padded_tokens >= whole.tokens > 0
    assert whole.input_wait_seconds > 0


def test_the_first_step_takes_the_longest_batch_and_uses_up_no_other():
    batching = {"kind": "fixed_size", "pairs": 2}
    made = InTurns(Turn(0, 3), spec=small_spec(batching=batching))
    with closing(small_setup(made.spec).feed.batches()) as batches:
        planned = [next(batches).padded_tokens for _ in range(len(made.setup.train_store) // 2)]
    trained: list[int] = []
    taker = made.taker()
    at_each_step(taker, lambda step, pairs, tokens, padded, wait: trained.append(padded))
    made.answers(taker)
    assert trained == [max(planned), *planned[:2]]
    assert planned[0] < max(planned)


@pytest.mark.parametrize(("share", "pairs"), [(0.4, 4), (1e-3, 2), (1.0, None)])
def test_untimed_steps_train_on_a_small_batch_and_timed_ones_on_the_same_as_without(share, pairs):
    batching = {"kind": "fixed_size", "pairs": 10}
    (first, plain), _ = train_in_turns(Turn(0, 3), Turn(0, 3), spec=small_spec(batching=batching))
    made = InTurns(Turn(0, 3), Turn(2, 3, share), spec=small_spec(batching=batching))
    trained: list[int] = []
    taker = made.taker()
    at_each_step(taker, lambda step, pairs, *_: trained.append(pairs))
    before, led = made.answers(taker)
    assert trained == [10] * 3 + [pairs or 10] * 2 + [10] * 3
    assert before.tokens == first.tokens
    assert (led.tokens == plain.tokens) == (pairs is not None)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_the_rate_never_becomes_negative(kind):
    schedule = {"kind": kind, "peak": 0.01, "warmup": 2}
    training = endless(small_spec(training={"steps": 4, "schedule": schedule})).training
    rates = [learning_rate(training.schedule, s, training.steps, 16) for s in (3, 50, 5_000)]
    assert all(0.0 < rate <= 0.01 for rate in rates)


def _rank_in_turns() -> list[float]:
    answers, _ = train_in_turns(Turn(1, 2), Turn(1, 2), spec=small_spec(parallel={"kind": "ddp"}))
    return [answer.tokens for answer in answers]


@pytest.mark.slow
def test_all_ranks_of_a_side_stop_at_the_same_step():
    first, second = run_ranks(_rank_in_turns, 2)
    assert first == second, "counts are those of all ranks"


CUDA = Process(0, 1, 0, 1, torch.device("cuda", 0))


@pytest.mark.gpu
def test_turns_on_a_gpu_with_memory_and_probe():
    tasks = ProbeDevices(), Turn(2, 5), Turn(1, 5), TellMemory()
    made = InTurns(*tasks, spec=small_spec(machine={"device": "cuda"}), on=CUDA)
    (probe,), first, second, memory = made.answers()
    assert probe.device == "cuda:0"
    assert first.seconds > 0
    assert second.seconds > 0
    assert 0 < memory < 1 << 30, "the buffers of the probe do not count"


@pytest.mark.gpu
def test_a_planted_delay_on_a_gpu_is_a_share_of_the_step():
    seconds = []
    for share in (0.0, 1.0):
        made = InTurns(*[Turn(5, 20)] * 5, spec=small_spec(machine={"device": "cuda"}), on=CUDA)
        planted = PlantedDelay(share, partial(Strategy.synchronise, made.setup.strategy))
        reports = made.answers(made.taker(planted))
        seconds.append(sorted(report.seconds for report in reports)[2])
    assert seconds[1] / seconds[0] == pytest.approx(2.0, rel=0.2)


def test_a_full_gpu_is_not_probed(monkeypatch):
    """The sides have taken it all, as they were predicted to."""
    made, emptied = InTurns(), []

    def full(device: torch.device) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 MiB.")

    gpu = torch.device("cuda", 1)
    setup = SimpleNamespace(device=gpu, strategy=SimpleNamespace(devices=[gpu]))
    monkeypatch.setattr(turns_worker, "probe_cuda", full)
    monkeypatch.setattr(turns_worker, "reset_peak", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    taker = made.taker()
    taker.setup = setup
    assert taker._probe() == []
    assert emptied == [True]
