"""A capture: phases of a training, traces of every rank, and DDP's timers."""

import gzip
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from capture_builders import spec_of, write_shards
from small_training import Watcher, small_setup, small_spec

from schemas.config.measurement import Profiling
from schemas.config.parallel import Ddp
from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from schemas.results import Capture, DdpTimes
from tests.orders import run_job
from transformer_core.observe import profiler as capture_worker
from transformer_core.observe.nsys import rows
from transformer_core.observe.profile_job import CaptureOrder
from transformer_core.observe.profiler import ddp_delay, uninterrupted
from transformer_core.observe.ranges import TorchRecording, mark_phases
from transformer_core.trace.events.phases import PHASES, STEP, label
from transformer_core.trace.readers.kineto import read_kineto
from transformer_core.training.loop import train


def test_marks_follow_the_phases_of_every_micro_batch_and_change_nothing():
    told: list[str] = []

    @contextmanager
    def mark(phase: str) -> Iterator[None]:
        told.append(phase)
        yield
        told.append(f"/{phase}")

    spec = small_spec(
        training={"steps": 2, "accumulation": {"micro_batches": 2}},
        model={"encoder_layers": 1, "decoder_layers": 1},
    )
    marked = small_setup(spec)
    mark_phases(marked, mark)
    train(marked, Watcher(), Path("unused"))
    plain = small_setup(spec)
    train(plain, Watcher(), Path("unused"))
    micro_batch = ["forward", "loss", "/loss", "/forward", "backward", "/backward"]
    # Strategies may reduce at the end of a micro-batch, and before the update.
    reducing = ["backward", "/backward"]
    micro_batches = [*micro_batch, *reducing] * 2
    step = ["data", "/data", *micro_batches, *reducing, "optimizer", "/optimizer"]
    assert told == step * 2
    for one, other in zip(marked.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_nothing_interrupts_the_profiled_steps():
    usual = {"steps": 3, "validate_every": 1, "checkpoint_every": 1}
    spec = small_spec(training=usual)
    training = uninterrupted(spec, 6).training
    assert (training.validate_every, training.checkpoint_every) == (0, 0)
    assert training.steps > 7, "the last step of a training validates"
    assert training.model_copy(update=usual) == spec.training


def test_the_warm_up_covers_a_techniques_late_start():
    given = {"data": "data", "output": "out", "command": "", "profiler": "torch"}
    given |= {"profiling": Profiling(warmup_steps=2)}
    powersgd = {"kind": "ddp", "hook": {"kind": "powersgd", "start_step": 10}}
    for spec, steps in ((spec_of(), 2), (spec_of(parallel=powersgd), 11)):
        assert CaptureOrder(spec=spec, **given).warmup_steps == steps


def test_which_step_the_timers_of_ddp_describe():
    def spec(**accumulation: Any) -> RunSpec:
        return small_spec(parallel={"kind": "ddp"}, training={"accumulation": accumulation})

    assert ddp_delay(spec()) == 1
    assert ddp_delay(spec(micro_batches=4, synchronise="last")) == 1
    assert ddp_delay(spec(micro_batches=4, synchronise="every")) == 0
    assert ddp_delay(small_spec()) == 0


def run_capture(folder: Path, spec: RunSpec, profiler: str = "torch") -> Capture:
    """The record of a capture of ``spec`` by the workflow's job, in this process."""
    data = folder / "data"
    if not data.exists():
        write_shards(data)
    output = folder / spec.variant
    (folder / "spec.json").write_text(spec.canonical_json())
    profiling = Profiling(profiler=profiler, warmup_steps=2, steps=3)
    given = {"spec": folder / "spec.json", "data": data, "output": output}
    assert run_job("profile", profiling=profiling, **given) == 0
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


@pytest.mark.parametrize(
    ("slow", "timers", "timed", "ends"),
    [
        (True, [("timers", 5)], [6, 7, 8], 9),
        (False, [("timers", 2)], [3, 4, 5], 6),
        (None, [], [], 5),
    ],
    ids=["slow", "quick", "no timers"],
)
def test_slow_timers_run_in_separate_steps(monkeypatch, slow, timers, timed, ends):
    """On CUDA DDP's timers make the host wait in every step; these steps are not recorded."""
    said: list[tuple[str, int]] = []
    step = 0

    def says(word: str) -> Any:
        return lambda *_: said.append((word, step))

    recorder: Any = SimpleNamespace(
        prepare=lambda: None,
        start=says("start"),
        stop=says("stop"),
        range_named=lambda name: nullcontext(),
    )
    times = dict.fromkeys(DdpTimes.model_fields, 1)
    spec = spec_of()
    if timers:
        spec = spec_of(parallel=Ddp(kind="ddp"))
        for name, stand_in in {
            "has_slow_timers": lambda setup: slow,
            "switch_on_timers": says("timers"),
            "ddp_times": lambda setup, described: DdpTimes(**times | {"step": described}),
        }.items():
            monkeypatch.setattr(capture_worker, name, stand_in)
    strategy = SimpleNamespace(synchronise=lambda: None, devices=[])
    setup: Any = SimpleNamespace(spec=spec, strategy=strategy, module=None)
    capturing = capture_worker.Capturing(setup, recorder, warmup=2, steps=3)
    for step in range(1, ends):
        capturing.step_done(step, 1, 1, 1, 0.0)
    step = ends
    with pytest.raises(capture_worker.Enough):
        capturing.step_done(step, 1, 1, 1, 0.0)
    assert sorted(said) == [("start", 2), ("stop", 5), *timers]
    assert [found.step for found in capturing.ddp] == timed
    assert len(capturing.seconds) == 3


def test_a_torch_that_profiles_only_one_thread_is_too_old(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.profiler._ExperimentalConfig", Mock(side_effect=TypeError))
    with pytest.raises(Unsupported, match=r"needs torch 2\.7 or newer; this is"):
        TorchRecording(tmp_path, 0, torch.device("cpu"))
