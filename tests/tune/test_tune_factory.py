"""A factory as a program: its parts, its loop, and its batch divided among ranks and micro-batches."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from docs.examples import byte_gpt
from transformer_core.tune.certificate import certify
from transformer_core.tune.coordinator import Program, Side, session
from transformer_core.tune.factory import checked, divided, layers_of, load, next_batch, train
from transformer_core.tune.flow import Tuning
from transformer_core.tune.records import Record
from transformer_core.tune.sessions import OWN, Plan, Sessions, floors
from transformer_core.tune.techniques import TECHNIQUES

MODULE = """
from torch import nn, optim
import time, torch

def loss(module, batch): return module(batch).mean()
def whole(rank, world_size, seed, **given):
    parts = {"module": nn.Linear(3, 1), "batches": [1], "loss": loss, "optimizer": optim.SGD}
    return parts | given
def few(**_): return {"module": nn.Linear(1, 1), "batches": []}
def nothing(**_): return None
def forgets(**given): return whole(**given) | {"optimizer": lambda parameters: None}
def hangs(**_): time.sleep(1000)

def build(rank, world_size, seed):
    generator = torch.Generator().manual_seed(seed)
    def batches():
        while True:
            yield torch.randn(8, 16, generator=generator)[rank::world_size]
    return {
        "module": nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)),
        "batches": batches(),
        "loss": lambda module, batch: module(batch).square().mean(),
        "optimizer": lambda parameters: optim.AdamW(parameters, lr=1e-3),
        "clip_norm": 1.0,
    }

def normalized(rank, world_size, seed):
    module = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 4))
    return build(rank, world_size, seed) | {"module": module}
"""
NAME = "their_own_training"


@pytest.fixture
def home(tmp_path, monkeypatch):
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def settings(factory: str, **options: Any) -> dict[str, Any]:
    found = {"factory": factory, "options": options, "layers": None, "seed": 1}
    return found | {"device": "cpu", "threads": 1}


def program(home: Path, function: str) -> Program:
    factory = f"{NAME}:{function}"
    return Program((factory,), home, factory=settings(factory), devices=2)


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        ("whole", {"clip_nom": 1.0}, "returns clip_nom, which is not known.*clip_norm"),
        ("whole", {"module": 3}, "module is a int"),
        ("whole", {"module": nn.ReLU()}, "module has no parameter to train; remedy"),
        ("whole", {"clip_norm": -1}, "clip_norm is -1; remedy: give a number above 0"),
        ("whole", {"clip_norm": "much"}, "clip_norm is 'much'"),
        ("whole", {"clip_norm": float("nan")}, "clip_norm is nan"),
        ("whole", {"loss": 3}, "loss is a int"),
        ("whole", {"batches": 3}, "batches is a int"),
        ("few", {}, "returns no loss and no optimizer; remedy: return a dictionary of module, b"),
        ("nothing", {}, "returns a NoneType"),
        ("hole", {}, "has no function hole; remedy: .*whole"),
    ],
)
def test_wrong_parts_are_named(function, given, message, home):
    with pytest.raises(ValueError, match=f"task.factory = {NAME}:{function}.*{message}"):
        load(f"{NAME}:{function}", given, 0, 1, 1)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: load("nowhere:build", {}, 0, 1, 1), "no module nowhere; remedy: start snakemake"),
        (lambda: next_batch("a:b", iter([])), "batches have an end"),
        (lambda: checked("a:b", torch.zeros(2)), r"loss gives a torch.float32 \[2\]"),
        (lambda: checked("a:b", 1.0), "loss gives a float"),
        (lambda: checked("a:b", torch.tensor(1.0)), "without a gradient; remedy: compute it"),
        (lambda: layers_of(nn.Linear(2, 2), "Blok"), r"task\.layers = Blok"),
    ],
)
def test_a_wrong_module_batch_loss_or_layer_is_named(work, message):
    with pytest.raises(ValueError, match=message):
        work()


def test_an_optimizer_function_without_a_result_is_named(home):
    given = settings(f"{NAME}:forgets") | {"shift": 0}
    with pytest.raises(ValueError, match="optimizer gives a NoneType; remedy: return a torch"):
        train(given, steps=1)


def test_batches_of_any_shape_are_divided():
    batch = {"x": torch.arange(4), "more": (torch.ones(4, 2), "words", torch.tensor(3))}
    first, second = divided(batch, 2)
    assert first["x"].tolist() == [0, 1]
    assert second["more"][0].shape == (2, 2)
    assert second["more"][1:] == ("words", torch.tensor(3))
    with pytest.raises(ValueError, match="4 samples of a batch do not make 3"):
        list(divided(batch, 3))


def test_the_loop_equals_that_of_the_script_to_the_last_bit(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # as clusters set it for the job
    given = settings("docs.examples.my_training:build", width=24) | {"shift": 0}
    found = train(given, steps=3).state_dict()
    torch.manual_seed(1)
    model = byte_gpt.GPT(width=24)
    optimizer = byte_gpt.optimizer_of(model.parameters())
    data = byte_gpt.batches(byte_gpt.read(byte_gpt.__file__), seed=1)
    for _ in range(3):
        loss = byte_gpt.loss_of(model, next(data))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    expected = model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def compared(home: Path, function: str, names: list[str]) -> dict[str, dict[str, Any]]:
    """Certificates of techniques from one session with two recorded steps."""
    sessions = Sessions(program(home, function), home / "sessions", "key")
    sessions.facts = {"factory": True}
    sides = [Side(name, (name,)) for name in names]
    plan = Plan("all", [Side(OWN), *floors(sides), *sides], 5, 0, record=2)
    found = sessions.run(plan, lambda text: None).sides
    return {name: found[name].certificate or {} for name in names}


@pytest.mark.slow
def test_a_divided_batch_is_certified_as_a_whole(home):
    names = ["ddp_fp16_messages", "fsdp", "fp16"]
    found = compared(home, "build", names)
    for name in names:
        expected = {"word": "same", "identical": False, "tensors": 4, "steps": 2}
        assert found[name] | expected == found[name], name


@pytest.mark.slow
def test_statistics_of_the_rows_of_a_micro_batch_are_named(home):
    certificate = compared(home, "normalized", ["accumulation_2"])["accumulation_2"]
    assert certificate["word"] == "different"
    cause = "takes its statistics from 4 values of a channel at a time instead of 8"
    assert cause in certificate["reason"].split("; ")[0]
    assert not (home / "sessions/all-held").exists()


def record(inputs: list[list[float]], gradient: float = 1.0) -> Record:
    """Ranks with a step of one tensor, and the inputs of each rank."""
    one = np.ones(4)
    step = {"losses": np.ones((1, 1)), "0 weight w": one, "1 weight w": one - gradient / 10}
    step["1 gradient w"] = gradient * one
    return Record([step | {"inputs": np.array([row])} for row in inputs])


PARTS = [[8.0, 3.0, 9.9], [8.0, 2.0, 9.9]]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (record(PARTS), ""),
        (record([[8.0, 3.0, 9.9, 8.0, 2.0, 9.9]]), ""),
        (record([[8.0, 3.0, 9.9], [8.0, 3.0, 9.9]]), "get different numbers in step 1"),
        (record([[9.0, 3.0, 9.9], [7.0, 2.0, 9.9]]), "do not divide the batch of step 1"),
        (record([[16.0, 5.0, 9.9]] * 2), r"get 2 times the batch .*batch\[rank::world_size\]"),
        (record(PARTS, gradient=1.2), "gradient of w"),
    ],
)
def test_parts_of_a_batch_add_up(found, why):
    own = record([[16.0, 5.0, 1.0]])
    certificate = certify(found, own, [own], "float32", divided=True)
    assert certificate.word == ("different" if why else "same")
    assert re.search(why, certificate.reason), certificate.reason


class Said(Exception):
    """A session said something."""


@pytest.mark.slow
def test_a_session_says_which_side_it_waits_for(home, monkeypatch):
    def say(text: str) -> None:
        raise Said(text)

    monkeypatch.setattr("transformer_core.tune.coordinator.PATIENCE", 0.5)
    with (
        pytest.raises(Said, match=r"waiting for the script, \d+ s so far; it has printed nothing"),
        session(program(home, "hangs"), [Side(OWN)], home / "logs", say=say) as run,
    ):
        run.facts(OWN)


def test_techniques_of_the_loop_are_for_factories():
    script, factory = (
        Tuning(Program(("a.py",), Path(), factory=given), Path(), print).names
        for given in (None, settings("a:b"))
    )
    assert {*factory} - {*script} == {"ddp", "fsdp"}
    one_device = {"devices": 1}
    assert "machine.devices_per_node is 1" in str(TECHNIQUES["ddp"].obstacle(one_device))
