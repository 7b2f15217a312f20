"""Comparisons on GPUs: long windows, sides that fit into memory, devices that can be shared."""

from pathlib import Path
from typing import Any

import pytest

from schemas.config.measurement import Comparing
from schemas.config.parallel import LocalSteps
from schemas.config.run_spec import RunSpec
from schemas.results import Prediction
from tests.records import prediction
from transformer_core.data.batching.feeding import CUDA_PREFETCH
from transformer_core.measure import memory_fit
from transformer_core.measure import sessions as session
from transformer_core.measure.memory_fit import DoesNotFit, keeping, keeping_here
from transformer_core.measure.sessions import (
    PILOT_STEPS,
    SessionEndedError,
    Sessions,
    Side,
    for_devices,
)
from transformer_core.parallel import nvml
from transformer_core.run.coordinator import Report, Turn, announced

GIB = 2**30


def spec(device: str, variant: str = "single") -> RunSpec:
    return RunSpec.model_validate({"variant": variant, "machine": {"device": device}})


def sessions(comparing: Comparing, folder: Path, device: str = "cuda") -> Sessions:
    sides = [Side(name, spec(device, name)) for name in ("single", "other")]
    none: Any = None
    return Sessions(sides, comparing, folder, folder, none, "", none, lambda text: None)


def test_windows_are_longer_on_gpus_only():
    asked = Comparing(warmup_steps=5, pairs=8, budget=8)
    assert for_devices(asked, [spec("cpu")]) == asked
    found = for_devices(asked, [spec("cpu"), spec("cuda")])
    assert (found.warmup_steps, found.window_steps, found.window_seconds) == (30, 20, 1.0)
    assert found.budget >= 2 * found.sessions_least * found.pairs * found.window_seconds
    assert (found.pairs, found.lead_batch) == (8, 1.0)
    more = asked.model_copy(update={"window_seconds": 3.0, "budget": 500.0})
    found = for_devices(more, [spec("cuda")])
    assert (found.window_seconds, found.budget) == (3.0, 500.0)


@pytest.mark.parametrize(
    ("step_seconds", "every", "steps"),
    [(0.5, 0, 20), (0.01, 0, 100), (0.01, 6, 102), (0.01, 4, 100)],
)
def test_a_turn_has_enough_steps_and_enough_time(tmp_path, step_seconds, every, steps):
    """And the same number of meetings as all others, of replicas that meet after ``every`` steps."""
    comparing = for_devices(Comparing(), [spec("cuda")])
    asked: list[Turn] = []

    def ask(side: Side, task: Turn) -> list[Report]:
        asked.append(task)
        return [Report(task.steps * step_seconds, 1, 1, 0.0)]

    made = sessions(comparing, tmp_path)
    if every:
        apart = LocalSteps(kind="local_steps", every=every)
        other = made.sides[1].spec.model_copy(update={"parallel": apart})
        made.sides = [made.sides[0], Side("other", other)]
    _, found = made._warm_up(ask)
    assert found == steps
    first, *others = (asked[0].steps + asked[1].steps, *(turn.steps for turn in asked[2:]))
    assert [first, *others] == [30] * len(made.sides)
    assert asked[1] == Turn(0, PILOT_STEPS)
    made._rounds(ask, 0.0, found, lambda rounds, seconds: len(rounds) > 0, on_gpu=False, number=1)
    assert asked[-1] == Turn(comparing.lead_steps, steps, comparing.lead_batch)


def test_untimed_steps_use_up_the_batches_of_the_other_sides_turn():
    """Batches prepared in advance would hide what slow input costs. While a step takes one as fast as
    two are made at the most, they last for twice their number."""
    assert Comparing().on_gpu.lead_steps >= 2 * CUDA_PREFETCH


def predicted(variant: str, whole: float, kept: float, context: float = 0.5) -> Prediction:
    """The prediction of a side that needs ``whole`` GiB, and keeps ``kept`` GiB between turns, not
    counting its context."""
    return prediction(
        round((whole - context) * GIB),
        round(kept * GIB),
        variant=variant,
        device="cuda",
        context_bytes=round(context * GIB),
        capacity_bytes=24 * GIB,
    )


def both(reference: float, other: float) -> dict[str, Prediction]:
    return {"single": predicted("single", reference, 1), "other": predicted("other", other, 1)}


def test_sides_free_memory_if_they_do_not_fit_together():
    assert keeping(both(10, 12), 24 * GIB) == "all"
    assert keeping(both(18, 20), 24 * GIB) == "state"
    assert keeping(both(99, 99), None) == "all", "unknown memory does not prevent an attempt"


def test_sides_that_cannot_fit_are_refused_with_numbers_and_a_remedy():
    with pytest.raises(DoesNotFit, match=r"single alone .* 60\.00 GiB .* 24\.00 GiB.*micro-batch"):
        keeping(both(60, 10), 24 * GIB)
    with pytest.raises(DoesNotFit, match="other with the weights and optimizer states") as found:
        keeping(both(10, 22.7), 24 * GIB)  # the context of the other side takes half a GiB
    assert found.value.side == "other"
    third = {"third": predicted("third", 10, 3)}
    with pytest.raises(DoesNotFit, match=r"^single with .* Fewer sides at a time") as found:
        keeping(both(20, 10) | third, 24 * GIB)
    assert found.value.side == "third", "without the reference nothing would be compared"


def test_a_session_that_cannot_fit_ends_with_a_status(monkeypatch, tmp_path):
    monkeypatch.setattr(nvml, "exclusive_gpus", lambda gpus: [])
    monkeypatch.setattr(memory_fit, "available_bytes", lambda spec, device: 24 * GIB)
    monkeypatch.setattr(memory_fit, "_predicted", lambda *_: both(60, 60))
    with pytest.raises(SessionEndedError, match="single: oom, single alone"):
        sessions(Comparing(), tmp_path)._start(1)


def test_a_gpu_for_one_process_only_is_reported_before_anything_starts(monkeypatch, tmp_path):
    monkeypatch.setattr(nvml, "exclusive_gpus", lambda gpus: [0])
    monkeypatch.setattr(session, "start_side", lambda *_: pytest.fail("nothing may start"))
    with pytest.raises(SessionEndedError, match=r"unsupported, 2 processes.*nvidia-smi -i 0 -c"):
        sessions(Comparing(), tmp_path)._start(1)


def test_processes_on_other_hosts_learn_what_sides_keep_and_each_side_has_a_place(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(session, "start_side", lambda side, *_: side.place)
    monkeypatch.setattr(session, "check_start", lambda *_: None)
    monkeypatch.setattr(session, "keeping_here", lambda *_: "state")
    sides = sessions(Comparing(), tmp_path).sides
    with Sessions.opened(sides, Comparing(), tmp_path, tmp_path, "", print) as made:
        assert made._start(2) == {"single": 0, "other": 1}
        known = announced(made.coordinator.file)
    assert (known["session"], known["keeps"]) == (2, "state")


def test_without_gpus_nothing_is_predicted(monkeypatch, tmp_path):
    monkeypatch.setattr(memory_fit, "_predicted", lambda *_: pytest.fail("not needed"))
    specs = {"single": spec("cpu"), "other": spec("cpu")}
    assert keeping_here(specs, tmp_path, tmp_path) == "all"
