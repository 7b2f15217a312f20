"""A capture: phases around a training, traces of every rank, DDP's timers beside them."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from capture_builders import spec_of, write_shards
from small_training import Watcher, small_setup, small_spec

from schemas.config.measurement import Profiling
from schemas.config.parallel import Ddp
from schemas.config.run_spec import RunSpec
from schemas.results import Capture, DdpTimes
from tests.orders import job_command
from transformer_core.observe import profiler as capture_worker
from transformer_core.observe.profile_job import CaptureOrder
from transformer_core.observe.profiler import ddp_delay, uninterrupted
from transformer_core.observe.ranges import mark_phases
from transformer_core.trace.events.phases import PHASES, STEP, label
from transformer_core.trace.readers.kineto import read_kineto
from transformer_core.training.loop import train


class Marks:
    """Phases as they begin and end."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __call__(self, phase: str) -> AbstractContextManager[None]:
        @contextmanager
        def lasting() -> Iterator[None]:
            self.told.append(phase)
            yield
            self.told.append(f"/{phase}")

        return lasting()


def told(**training: Any) -> list[str]:
    setup = small_setup(small_spec(training={"steps": 1, **training}))
    marks = Marks()
    mark_phases(setup, marks)
    train(setup, Watcher(), Path("unused"))
    return marks.told


def test_the_phases_of_a_step_in_their_order():
    one = ["data", "/data", "forward", "loss", "/loss", "/forward", "backward", "/backward"]
    # Twice more where strategies may reduce: when a micro-batch ends, and before the update.
    nothing = ["backward", "/backward"]
    assert told() == [*one, *nothing, *nothing, "optimizer", "/optimizer"]


def test_every_micro_batch_has_its_phases():
    phases = told(accumulation={"micro_batches": 2})
    assert phases.count("forward") == phases.count("loss") == 2
    assert phases.count("data") == phases.count("optimizer") == 1


def test_marks_change_nothing_of_the_training():
    losses = []
    for mark in (None, Marks()):
        setup = small_setup(small_spec())
        if mark is not None:
            mark_phases(setup, mark)
        watcher = Watcher()
        train(setup, watcher, Path("unused"))
        losses.append(torch.cat([p.detach().flatten() for p in setup.model.parameters()]))
    assert torch.equal(*losses)


def test_nothing_interrupts_the_profiled_steps():
    spec = small_spec(training={"steps": 3, "validate_every": 1, "checkpoint_every": 1})
    training = uninterrupted(spec, 6).training
    assert (training.validate_every, training.checkpoint_every) == (0, 0)
    assert training.steps > 7, "the last step of a training validates"
    assert (
        training.model_copy(update={"steps": 3, "validate_every": 1, "checkpoint_every": 1})
        == spec.training
    )


def test_the_warm_up_lasts_until_a_technique_is_itself():
    profiling = Profiling(warmup_steps=2)
    powersgd = {"kind": "ddp", "hook": {"kind": "powersgd", "start_step": 10}}
    for spec, steps in ((spec_of(), 2), (spec_of(parallel=powersgd), 11)):
        order = CaptureOrder(
            spec=spec,
            data=Path("data"),
            output=Path("out"),
            command="",
            profiling=profiling,
            profiler="torch",
        )
        assert order.warmup_steps == steps


def test_which_step_the_timers_of_ddp_describe():
    def spec(**accumulation: Any) -> RunSpec:
        return small_spec(parallel={"kind": "ddp"}, training={"accumulation": accumulation})

    assert ddp_delay(spec()) == 1
    assert ddp_delay(spec(micro_batches=4, synchronise="last")) == 1
    assert ddp_delay(spec(micro_batches=4, synchronise="every")) == 0


def test_a_supervisor_starts_without_torch():
    code = "import sys, transformer_core.observe.profile_job; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def run_capture(folder: Path, spec: RunSpec, profiler: str = "torch") -> Capture:
    """Capture ``spec`` as the workflow does."""
    data = folder / "data"
    if not data.exists():
        write_shards(data)
    output = folder / spec.variant
    (folder / "spec.json").write_text(spec.canonical_json())
    profiling = Profiling(profiler=profiler, warmup_steps=2, steps=3)
    command = job_command(
        "profile", spec=folder / "spec.json", data=data, output=output, profiling=profiling
    )
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=250, env=os.environ | {"PYTHONPATH": "."}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Capture.model_validate_json((output / "capture.json").read_text())


def trace_of(path: Path) -> list[dict[str, Any]]:
    """The complete events of a Kineto trace."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


@pytest.mark.slow
def test_two_ranks_are_traced_and_timed_by_ddp(tmp_path):
    machine = {"device": "cpu", "devices_per_node": 2, "threads": 1}
    record = run_capture(tmp_path, spec_of(parallel=Ddp(kind="ddp"), machine=machine))
    assert (record.status, record.profiler) == ("ok", "torch")
    assert record.topology.world_size == 2
    assert (record.first_step, record.last_step) == (3, 5)
    assert [rank.rank for rank in record.ranks] == [0, 1]
    output = tmp_path / "profiled"
    for rank in record.ranks:
        assert [times.step for times in rank.ddp] == [3, 4, 5]
        events = trace_of(output / rank.files[0])
        names = {event["name"] for event in events}
        assert {"gloo:all_reduce", *map(label, PHASES)} <= names
        steps = sorted((e for e in events if e["name"] == label(STEP)), key=lambda e: e["ts"])
        for step, times in zip(steps, rank.ddp, strict=True):
            assert 0 < times.communication_seconds < step["dur"] / 1e6
        read = read_kineto(output / rank.files[0])
        assert [process.rank for process in read.processes] == [rank.rank]
    assert not list(output.glob("outcome-*")) + list(output.glob("rank-*[01].json"))


@pytest.mark.slow
def test_a_run_that_this_machine_cannot_do_is_a_status(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there are CUDA devices here")
    record = run_capture(tmp_path, spec_of("cuda"))
    assert record.status == "unsupported"
    assert "needs 1 CUDA device" in str(record.reason)
    assert record.ranks == []
    assert (record.profiler, record.topology) == (None, None)


@pytest.mark.gpu
def test_torch_profiler_records_kernels_of_every_phase(tmp_path):
    record = run_capture(tmp_path, spec_of("cuda"))
    assert (record.status, record.profiler) == ("ok", "torch")
    (rank,) = record.ranks
    output = tmp_path / "profiled"
    events = trace_of(output / rank.files[0])
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert kernels
    (process,) = read_kineto(output / rank.files[0]).processes
    assert len(process.device) >= len(kernels)
    on_host = [event for event in events if "stream" not in event.get("args", {})]
    assert sum(event["name"] == label(STEP) for event in on_host) >= 3


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("nsys") is None, reason="Nsight Systems is not on the PATH")
def test_both_profilers_see_the_same_kernels(tmp_path):
    from transformer_core.observe.nsys import rows

    spec = spec_of("cuda")
    by_nsys = run_capture(tmp_path, spec, "nsys")
    assert (by_nsys.status, by_nsys.profiler) == ("ok", "nsys")
    kernels, ranges = rows(tmp_path / "profiled" / by_nsys.ranks[0].files[0])
    assert ranges > 0
    by_torch = run_capture(tmp_path, spec, "torch")
    events = trace_of(tmp_path / "profiled" / by_torch.ranks[0].files[0])
    same = sum(event.get("cat") == "kernel" for event in events)
    assert kernels == pytest.approx(same, rel=0.02)


@pytest.mark.skipif(
    torch.cuda.is_available() or shutil.which("nsys") is None,
    reason="needs Nsight Systems on the PATH, and no CUDA device",
)
def test_nsys_without_a_gpu_is_a_status(tmp_path):
    record = run_capture(tmp_path, spec_of(), "nsys")
    assert record.status == "unsupported"
    assert "nsys recorded no kernel on rank 0, but" in str(record.reason)


def test_timers_that_disturb_have_steps_of_their_own(monkeypatch):
    """On CUDA those of DDP make the host wait in every step: none of these is recorded."""
    said: list[tuple[str, int]] = []
    step = 0

    class Recorder:
        def prepare(self) -> None:
            pass

        def start(self) -> None:
            said.append(("start", step))

        def stop(self) -> None:
            said.append(("stop", step))

        @staticmethod
        def range_named(name: str) -> Any:
            return nullcontext()

    monkeypatch.setattr(capture_worker, "has_slow_timers", lambda setup: True)
    monkeypatch.setattr(
        capture_worker, "switch_on_timers", lambda setup: said.append(("timers", step))
    )
    times = DdpTimes(**dict.fromkeys(DdpTimes.model_fields, 1))
    monkeypatch.setattr(
        capture_worker,
        "ddp_times",
        lambda setup, described: times.model_copy(update={"step": described}),
    )
    strategy = SimpleNamespace(synchronise=lambda: None, devices=[])
    setup: Any = SimpleNamespace(spec=spec_of(parallel=Ddp(kind="ddp")), strategy=strategy)
    recorder: Any = Recorder()
    capturing = capture_worker.Capturing(setup, recorder, warmup=2, steps=3)
    for step in range(1, 9):
        capturing.step_done(step, 1, 1, 1, 0.0)
    step = 9
    with pytest.raises(capture_worker.Enough):
        capturing.step_done(step, 1, 1, 1, 0.0)
    assert said == [("start", 2), ("stop", 5), ("timers", 5)]
    assert [found.step for found in capturing.ddp] == [6, 7, 8]
