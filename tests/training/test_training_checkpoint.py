"""Checkpoints: runs resume exactly, and a usable checkpoint exists at every moment."""

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from schemas.config.run_spec import RunSpec
from schemas.errors import PeerLost
from tests.training.small_training import Watcher, run_small, small_setup, small_spec
from transformer_core.common.digests import NAME, write_result
from transformer_core.parallel.sharded_weights import local
from transformer_core.run.statuses import Outcome
from transformer_core.training import checkpoint
from transformer_core.training.assemble import Setup
from transformer_core.training.loop import train

KINDS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": {"kind": "adamw"}},
    "adamw_unfused": {"optimizer": {"kind": "adamw", "fused": False}},
    "adamw_8bit": {"optimizer": {"kind": "adamw_8bit"}},
    "adamw_schedule_free": {"optimizer": {"kind": "adamw_schedule_free"}},
    "muon": {"optimizer": {"kind": "muon"}},
    "sgd": {"optimizer": {"kind": "sgd"}},
    "masters": {"precision": {"kind": "bf16_weights"}},
    "accumulation": {"accumulation": {"micro_batches": 3}},
    "behind": {"checkpoint_writing": "behind"},
    # The scale doubles every two steps, so a run that forgot it would differ.
    "fp16": {"precision": {"kind": "fp16", "initial_scale": 8.0, "growth_interval": 2}},
}
LIBRARIES = {"adamw_8bit": "bitsandbytes", "adamw_schedule_free": "schedulefree"}
EVERY_STEP = small_spec(training={"checkpoint_every": 1})


def behind(**training: Any) -> RunSpec:
    return small_spec(training={"checkpoint_writing": "behind", **training})


def everything(setup: Setup) -> dict[str, Any]:
    """All that the next step depends on, in a form that compares bitwise."""
    tensors: dict[str, Any] = dict(setup.model.state_dict())
    for number, parameter in enumerate(setup.model.parameters()):
        for key, value in setup.optimizer.state[parameter].items():
            tensors[f"{number}/{key}"] = value
    state = {
        name: local(value).tolist() if isinstance(value, torch.Tensor) else value
        for name, value in tensors.items()
    }
    return state | {"random": torch.get_rng_state().tolist(), "precision": setup.precision.state()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "stop_at", "every"),
    # Stops before the first checkpoint, at the end of an epoch, and within an epoch.
    [("adamw", 1, 3), ("adamw", 5, 1), *((kind, 4, 3) for kind in KINDS)],
)
def test_a_resumed_run_is_the_uninterrupted_one_to_the_last_bit(kind, stop_at, every, tmp_path):
    if kind in LIBRARIES:
        pytest.importorskip(LIBRARIES[kind])
    if kind == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("needs torch 2.9 or newer")
    # Only moments of 4,096 or more elements have 8 bits.
    model = {"d_model": 64, "d_ff": 64} if kind == "adamw_8bit" else {}
    training = KINDS[kind] | {"checkpoint_every": every, "validate_every": 2}
    spec = small_spec(model=model, training=training)
    assert spec.model.dropout > 0
    whole, end = run_small(spec, tmp_path / "whole")
    expected = everything(end)
    run_small(spec, tmp_path / "parts", stop_at)
    torch.manual_seed(99)
    resumed, end = run_small(spec, tmp_path / "parts")
    assert everything(end) == expected
    assert resumed.started_at == [stop_at // every * every]
    assert resumed.losses == whole.losses
    assert list(whole.losses) == [1, 2, 3, 4, 5, 6]
    for step, loss in resumed.validations.items():
        assert loss == whole.validations[step]


def test_training_continues_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    goes_on, write = Event(), checkpoint._write

    def late(*arguments: Any) -> None:
        assert goes_on.wait(60)
        write(*arguments)

    monkeypatch.setattr(checkpoint, "_write", late)
    setup = small_setup(small_spec(training={"checkpoint_writing": "behind"}))
    before = everything(setup)
    assert checkpoint.save(tmp_path, setup, 3, {}) is None
    with torch.no_grad():
        for parameter in setup.model.parameters():
            parameter.add_(1.0)
    assert not list(tmp_path.glob("step-*"))
    goes_on.set()
    path = checkpoint.latest(tmp_path, setup)
    assert path is not None
    checkpoint.load(path, setup)
    assert everything(setup) == before


def test_a_checkpoint_that_cannot_be_written_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_write", Mock(side_effect=OSError("no space left")))
    spec = small_spec(training={"checkpoint_writing": "behind", "checkpoint_every": 2})
    with pytest.raises(OSError, match="no space left"):
        run_small(spec, tmp_path)
    assert not list(tmp_path.glob("step-*"))


def of_two(setup: Setup) -> Setup:
    """``setup`` of the first of two ranks; the other is gone."""
    return replace(setup, process=replace(setup.process, world_size=2))


def test_a_failed_training_hardly_waits_for_the_parts_of_others(tmp_path, monkeypatch):
    def fail(step: int, *_: Any) -> None:
        if step == 2:
            raise RuntimeError("gloo: connection closed by peer")

    monkeypatch.setattr(checkpoint, "_PATIENCE", 20.0)
    monkeypatch.setattr(checkpoint, "_FAREWELL", 0.1)
    setup = of_two(small_setup(behind(checkpoint_every=1)))
    watcher = Watcher()
    monkeypatch.setattr(watcher, "updated", fail)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="closed by peer"):
        train(setup, watcher, tmp_path)
    assert time.monotonic() - began < 10.0
    assert not list(tmp_path.glob("step-*"))


def test_a_rank_that_does_not_write_its_part_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_PATIENCE", 0.1)
    checkpoint.save(tmp_path, of_two(small_setup(behind())), 3, {})
    with pytest.raises(PeerLost, match="rank 1 did not write a part") as found:
        checkpoint.wait()
    assert Outcome.of(found.value).again


def test_a_checkpoint_without_room_says_where(tmp_path, monkeypatch):
    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(SafetensorError) as found:
        checkpoint.save(tmp_path / "kept", small_setup(small_spec()), 3, {})
    outcome = Outcome.of(found.value)
    assert outcome.again
    assert str(tmp_path / "kept") in outcome.reason


def test_the_newest_of_several_is_taken_and_two_are_kept(tmp_path, caplog):
    setup, other = small_setup(small_spec()), small_setup(small_spec(training={"seed": 2}))
    for step in (9, 10, 11):
        checkpoint.save(tmp_path, setup, step, {})
        assert checkpoint.latest(tmp_path, setup) == tmp_path / f"step-{step:08d}"
    kept = sorted(path.name for path in tmp_path.glob("*step*"))
    assert kept == ["step-00000010", "step-00000011"]
    with caplog.at_level("WARNING", "transformer_core"):
        assert checkpoint.latest(tmp_path, other) is None
    assert caplog.text.count("is of another run spec: ignoring this checkpoint") == 2
    path = checkpoint.save(tmp_path, other, 3, {})
    assert checkpoint.latest(tmp_path, other) == path, (
        "later ones of another run do not crowd it out"
    )


def _flip(file: Path) -> None:
    stat, content = file.stat(), bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped": _flip,
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-9]) and None,
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)) and None,
    "missing": Path.unlink,
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Checkpoints of a run that stopped at step 4; losses and final state of a run that did not
    stop and saved none."""
    folder = tmp_path_factory.mktemp("stopped")
    whole, end = run_small(small_spec(), folder / "whole")
    assert not (folder / "whole").exists()
    expected = everything(end)
    run_small(EVERY_STEP, folder / "parts", stop_at=4)
    return folder / "parts", whole.losses, expected


@pytest.mark.parametrize(
    ("damage", "files", "resumed_at"),
    [
        *((damage, "step-00000004/rank-00000.safetensors", 3) for damage in DAMAGES),
        ("flipped", "step-00000004/state.json", 3),
        ("flipped", "step-*/state.json", 0),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    damage, files, resumed_at, stopped, tmp_path, caplog
):
    parts, losses, expected = stopped
    shutil.copytree(parts, tmp_path / "parts")
    damaged = sorted((tmp_path / "parts").glob(files))
    for file in damaged:
        DAMAGES[damage](file)
    with caplog.at_level("WARNING", "transformer_core"):
        resumed, end = run_small(EVERY_STEP, tmp_path / "parts")
    for file in damaged:
        assert str(file.parent) in caplog.text
    assert caplog.text.count("ignoring this checkpoint") == len(damaged) > 0
    assert resumed.started_at == [resumed_at]
    # Saving checkpoints changed nothing either.
    assert everything(end) == expected
    assert resumed.losses == losses


def test_times_of_another_kind_of_device_are_dropped(stopped, tmp_path):
    parts, losses, _ = stopped
    shutil.copytree(parts, tmp_path / "parts")
    file = tmp_path / "parts/step-00000004/state.json"
    write_result(file, file.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    resumed, _ = run_small(EVERY_STEP, tmp_path / "parts")
    assert resumed.started_at == [4]
    assert resumed.losses == {step: loss for step, loss in losses.items() if step > 4}


class Killed(BaseException):
    """The process is killed at this point."""


class Killer:
    """Kills the process before or during its ``moment``-th change of the file system."""

    def __init__(self, moment: int, patch: pytest.MonkeyPatch) -> None:
        self.left = moment
        self.calls: list[str] = []
        places: list[tuple[Any, str, Callable[..., None]]] = [
            (checkpoint, "save_file", _cut_file),
            (shutil, "rmtree", _delete_one),
            (Path, "write_text", lambda path, text, **_: path.write_bytes(text.encode()[:20])),
            (Path, "rename", lambda *_: None),
            (Path, "mkdir", lambda *_, **__: None),
        ]
        for owner, name, half in places:
            patch.setattr(owner, name, self.deadly(getattr(owner, name), half))

    def deadly(self, real: Callable[..., Any], half: Callable[..., None]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.calls.append(real.__name__)
            self.left -= 1
            if self.left == 0:
                half(*args, **options)
                raise Killed
            return real(*args, **options)

        return call


def _cut_file(_: dict[str, torch.Tensor], path: Path, **__: Any) -> None:
    path.write_bytes(b"\x08")


def _delete_one(path: Path) -> None:
    for file in sorted(path.iterdir())[:1]:
        file.unlink()


def test_wherever_a_save_is_killed_a_complete_checkpoint_remains(tmp_path):
    setup = small_setup(small_spec())
    weight = next(setup.model.parameters())
    survivors: list[float] = []
    calls: list[str] = []
    for moment in range(1, 30):
        folder = tmp_path / str(moment)
        with torch.no_grad():
            weight.fill_(2.0)
        for step in (1, 2):
            checkpoint.save(folder, setup, step, {"mark": 2.0})
        with torch.no_grad():
            weight.fill_(4.0)
        with pytest.MonkeyPatch.context() as patch:
            killer = Killer(moment, patch)
            try:
                checkpoint.save(folder, setup, 4, {"mark": 4.0})
            except Killed:
                calls = killer.calls
            else:
                break
        path = checkpoint.latest(folder, setup)
        assert path is not None
        _, state = checkpoint.load(path, setup)
        assert weight.unique().tolist() == [state["mark"]]
        survivors.append(state["mark"])
        # A later save clears up what the killed one left.
        checkpoint.save(folder, setup, 6, {})
        left = sorted(path.name for path in folder.iterdir())
        assert left == [path.name, "step-00000006"]
    assert set(calls) == {"save_file", "rmtree", "write_text", "rename", "mkdir"}
    assert survivors == sorted(survivors)
    assert set(survivors) == {2.0, 4.0}


@pytest.mark.parametrize("model", [{"encoder_layers": 3}, {"d_ff": 64}, {"tied_embeddings": False}])
def test_another_model_is_refused(tmp_path, model):
    path = checkpoint.save(tmp_path, small_setup(small_spec()), 1, {})
    assert path is not None
    with pytest.raises(ValueError, match="of another model"):
        checkpoint.load(path, small_setup(small_spec(model=model)))


def test_nothing_in_a_checkpoint_can_execute(stopped):
    path = stopped[0] / "step-00000004"
    names = [NAME, "rank-00000.safetensors", "state.json"]
    assert sorted(file.name for file in path.iterdir()) == names
    assert json.loads((path / "state.json").read_text())["step"] == 4


def test_the_random_state_of_every_gpu_is_restored(monkeypatch, tmp_path):
    """DataParallel uses several GPUs, each with random numbers of its own for dropout."""
    setup = small_setup(small_spec())
    states = {torch.device("cuda", n): torch.tensor([n, 7], dtype=torch.uint8) for n in range(3)}
    devices = property(lambda self: list(states))
    monkeypatch.setattr(type(setup.strategy), "devices", devices)
    monkeypatch.setattr(type(setup.strategy), "synchronise", lambda self: None)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device])
    found: dict[torch.device, list[int]] = {}
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: found.update({device: state.tolist()})
    )
    path = checkpoint.save(tmp_path, setup, 1, {})
    assert path is not None
    checkpoint.load(path, setup)
    assert found == {device: state.tolist() for device, state in states.items()}
    # A training on the CPU has saved nothing for them.
    monkeypatch.setattr(type(setup.strategy), "devices", property(lambda self: [self.device]))
    path = checkpoint.save(tmp_path, setup, 2, {})
    monkeypatch.setattr(type(setup.strategy), "devices", devices)
    found.clear()
    assert checkpoint.load(path, setup) == (2, {})
    assert found == {}


class Counting(torch.nn.Module):
    """Keeps buffers that it does not save, of which one grows; ``draw`` takes random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self.register_buffer("table", None, persistent=False)
        self.register_buffer("first", self.seen[:1], persistent=False)
        self.register_buffer("same", torch.zeros(1).expand(3), persistent=False)

    def draw(self) -> list[float]:
        return [random.random(), random.gauss(0, 1), float(np.random.normal()), np.random.rand()]


def test_unsaved_buffers_and_draws_outside_torch_are_restored(tmp_path):
    setup, other = small_setup(small_spec()), small_setup(small_spec())
    for one in (setup, other):
        one.model.add_module("mine", Counting())
    mine = setup.model.mine
    mine.seen += 7
    mine.table = torch.arange(5)
    mine.same = torch.ones(1).expand(3)
    mine.register_buffer("late", torch.ones(1), persistent=False)
    mine.draw()
    path = checkpoint.save(tmp_path, setup, 1, {})
    assert path is not None
    drawn = mine.draw()
    seen = other.model.mine.seen
    checkpoint.load(path, other)
    assert (seen.tolist(), other.model.mine.first.tolist()) == ([7, 7], [7])
    assert other.model.mine.same.tolist() == [1, 1, 1]
    assert other.model.mine.table.tolist() == [0, 1, 2, 3, 4]
    assert dict(other.model.mine.named_buffers())["late"].tolist() == [1]
    assert other.model.mine.draw() == drawn
