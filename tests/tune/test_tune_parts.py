"""Sketches, certificates of made-up records, edits of scripts, techniques in one process, and folders that
stay unchanged."""

import ast
import gc
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import warnings
import weakref
from collections import OrderedDict, UserDict, namedtuple
from copy import deepcopy
from dataclasses import dataclass
from functools import partial, partialmethod
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._utils import ExceptionWrapper
from torch.utils.checkpoint import checkpoint

from tests.forked import output_of
from transformer_core.audit.terms import Terms
from transformer_core.certify.plain_models import Plain
from transformer_core.parallel import nvml
from transformer_core.tune import coordinator, isolation
from transformer_core.tune import side as tune_side
from transformer_core.tune.answer import Answer, applying, larger_batch, notes
from transformer_core.tune.boundaries import BACKWARDS_WITHOUT_STEP, Boundaries, wrap
from transformer_core.tune.causes import explained, other_parts
from transformer_core.tune.certificate import agrees_at_first, certify, spoiled, trust
from transformer_core.tune.coordinator import Program, Session, Side, SideEnded
from transformer_core.tune.driver import CannotObserve, learn, why_ended
from transformer_core.tune.facts import (
    Watch,
    _class_of,
    blocks,
    bytes_of,
    formats_of_products,
    repeated_block,
)
from transformer_core.tune.isolation import inside, isolated
from transformer_core.tune.nested import mapped, tensors
from transformer_core.tune.order import OWN_FAULT, Order
from transformer_core.tune.records import BUCKETS, Record, distance, fingerprint, norm, sketch
from transformer_core.tune.sessions import Plan, Sessions, floors, status_of
from transformer_core.tune.side import raised_here
from transformer_core.tune.source import Source, repository_of
from transformer_core.tune.techniques import TECHNIQUES
from transformer_core.tune.techniques.chunked_loss import LazyLogits
from transformer_core.tune.techniques.compiled import CompiledBlocks
from transformer_core.tune.techniques.data_workers import DataWorkers
from transformer_core.tune.techniques.kernels import KERNELS, FusedOptimizer
from transformer_core.tune.techniques.recomputation import KeptActivations, RecomputedBlocks
from transformer_core.tune.techniques.technique import NOISE


def test_a_sketch_is_linear_and_keeps_distances_and_small_tensors():
    generator = torch.Generator().manual_seed(1)
    one = torch.randn(300, 400, generator=generator)
    other = one + 0.01 * torch.randn(300, 400, generator=generator)
    assert sketch(one).shape == (BUCKETS,)
    assert np.allclose(sketch(one) - sketch(other), sketch(one - other), atol=1e-3)
    # Fixed seeds, so these numbers never vary; 4.5 % is the standard error of a norm.
    assert norm(sketch(one)) == pytest.approx(float(one.norm()), rel=0.15)
    apart = float((one - other).norm())
    assert distance(sketch(one), sketch(other)) == pytest.approx(apart, rel=0.15)
    small = torch.arange(12.0).view(3, 4)
    assert sketch(small).tolist() == small.flatten().tolist()
    assert distance(sketch(small), sketch(small[:2])) == float("inf")


def test_lists_of_layers_may_hold_lists_and_lack_some_and_layers_compiled_parts():
    def layers(width: int) -> nn.Module:
        part = torch.compile(nn.Linear(width, width))  # neither true nor false
        return nn.ModuleList([None, nn.Sequential(part), None])

    model = nn.ModuleList([layers(4), None, layers(4)])
    assert repeated_block([model]) == "Sequential"
    assert len(blocks(model)) == 2


@pytest.mark.parametrize("file", ["statistics.py", "statistics/__init__.py"])
def test_a_module_of_the_script_may_have_the_name_of_one_of_python(file, tmp_path, monkeypatch):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    for each in (file, "os.py", "train.py"):
        (tmp_path / each).write_text("mine = True\n")
    monkeypatch.setitem(sys.modules, "statistics", import_module("statistics"))
    tune_side.forget_shadowed(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert import_module("statistics").mine
    assert sys.modules["os"] is os


def test_weights_are_disturbed_whatever_the_default_device_of_the_script(monkeypatch):
    monkeypatch.setattr(tune_side, "connect", lambda *_: None)
    side = tune_side.Side(Order("floor", ("train.py",), "", "", "", noise=0.1))
    for _ in range(6):  # Some have the ids of others that are gone.
        weights = [nn.Parameter(torch.ones(4)) for _ in range(9)]
        with torch.device("meta"):
            side._disturb(weights)
        assert all(0 < float((weight - 1).abs().max()) < 0.1 for weight in weights)


@pytest.mark.parametrize("launched", [True, False])
def test_ranks_of_the_users_own_shell_are_no_ranks_of_the_script(launched, monkeypatch):
    """Kubernetes gives each pod of a training a RANK."""
    monkeypatch.setattr(tune_side, "connect", lambda *_: None)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    side = tune_side.Side(Order("own", ("train.py",), "", "", "", launched=launched))
    assert (side.rank, side.ranks) == ((1, 2) if launched else (0, 1))


def test_an_error_of_the_tool_is_not_blamed_on_the_script(tmp_path):
    log = tmp_path / "output.txt"
    log.write_text("its last line\n")
    with pytest.raises(AttributeError) as ours:
        repeated_block([3])
    with pytest.raises(ZeroDivisionError) as theirs:
        int("1") // int("0")
    assert raised_here(ours.value)
    assert not raised_here(theirs.value)
    with pytest.raises(NotImplementedError) as inside_torch:
        sketch(torch.empty(2, device="meta"))
    assert raised_here(inside_torch.value)
    with pytest.raises(NotImplementedError) as on_purpose:
        Plain.logits(None, None, None)
    assert not raised_here(on_purpose.value)
    ended = SideEnded("own", f"{OWN_FAULT}a mistake", {"place": "train.py, line 3"}, log)
    with pytest.raises(CannotObserve) as told:
        learn(ended, Program(("train.py",), tmp_path), None, 12, print)
    said = str(told.value)
    assert said.startswith("an error in this tool: a mistake (train.py, line 3); remedy: report it")
    assert said.endswith("its last line")


def test_of_two_versions_the_shorter_one_limits_the_sessions(tmp_path):
    (log := tmp_path / "log").touch()
    program, steps = Program(("train.py",), tmp_path), None
    for ends_after in (800, 400):
        ended = SideEnded("own", "", {"step": ends_after, "backwards": 9}, log)
        program, steps = learn(ended, program, steps, 12, print)
        assert steps == ends_after
    with pytest.raises(CannotObserve, match="ended after 400 steps"):
        learn(ended, program, steps, 12, print)


def test_a_rank_that_lost_another_to_the_kernel_is_out_of_memory(tmp_path, monkeypatch):
    kills = iter([5, 6])
    monkeypatch.setattr(coordinator, "kernel_kills", lambda: next(kills))
    run = Session([], tmp_path, Mock(), print)
    run.welcome({"own": 2})
    status, why = status_of(run._ended("own", "RuntimeError: Connection closed by peer", {}))
    assert (status, why.partition(". ")[0]) == ("oom", "out of memory: the kernel ended a process")
    assert status_of(run._ended("alone", "RuntimeError: no", {}))[0] == "failed"


@pytest.mark.parametrize("why", ["MemoryError: ", "killed by SIGKILL (out of memory?)"])
def test_memory_that_runs_out_in_the_first_runs_comes_with_a_remedy(why, tmp_path):
    log = tmp_path / "output.txt"
    log.touch()
    said = why_ended(SideEnded("own", why, {}, log), Program(("train.py",), tmp_path), 12)
    assert said.startswith(f"memory ran out: {why.rstrip(': ')}. Several copies of the script run")
    assert "remedy: end other programs that need memory" in said


def test_the_error_of_a_script_shows_its_own_line_without_codes_of_a_terminal(tmp_path):
    log = tmp_path / "output.txt"
    log.write_text("10%\r\x1b[31mno data\x1b[0m\n")
    calls = "\n".join(f'  File "/lib/torch/{n}.py", line {n}, in f\n    f()' for n in range(10))
    trace = f'Traceback:\n  File "/x/a/train.py", line 30, in f\n    f()\n  File "/x/a/train.py", line 3, in g\n    \x1b[1mg()\n{calls}\nE: no data'
    said = {"trace": trace, "place": "a/train.py, line 3"}

    def told(why: str, said: dict[str, str]) -> str:
        return why_ended(SideEnded("own", why, said, log), Program(("train.py",), tmp_path), 12)

    assert told("exit status 1", {}).endswith(f"its last lines, from {log}:\n    10%\n    no data")
    shown = told("\x1b[31mE\x1b[0m: no data\nin any file", said)
    assert f"fails: a/train.py, line 3: E: no data; the end of its traceback, from {log}:" in shown
    assert '\n      File "/x/a/train.py", line 3, in g\n        g()\n      ...\n' in shown
    assert shown.endswith('9.py", line 9, in f\n        f()\n    E: no data')
    assert len(told(f"E: {100_000 * 'x'}", said | {"trace": 100_000 * "y"})) < 1000
    short = told("E: no data", said | {"trace": "\n".join(trace.splitlines()[3:5])})
    assert short.count("line 3, in g") == 1


def test_containers_keep_their_type():
    @dataclass(frozen=True)
    class Frozen:
        x: Tensor

    x = torch.ones(2)
    given = [(x,), UserDict(x=x), OrderedDict(x=x), Frozen(x), torch.max(torch.ones(2, 2), 1)]
    for before, after in zip(given, mapped(given, lambda tensor: 2 * tensor), strict=True):
        assert type(after) is type(before)
        assert torch.equal(tensors(after)[0], 2 * tensors(before)[0])


def test_the_memory_of_sparse_gradients_is_that_of_their_numbers():
    embedding = nn.Embedding(1000, 3, sparse=True)
    embedding(torch.tensor([1, 7])).sum().backward()
    assert bytes_of([embedding.weight.grad, embedding.weight.grad]) == 2 * 3 * 4 + 2 * 8


def test_a_fingerprint_sees_order_and_nesting():
    batch = torch.tensor([1, 2, 3])
    assert fingerprint({"x": batch}) == fingerprint([batch])
    assert fingerprint(batch) != fingerprint(batch.flip(0))
    assert fingerprint("no tensor") == []
    # Some models take arrays.
    assert fingerprint(batch.numpy()) == fingerprint(batch)
    # Missing values, which tables are padded with.
    missing = torch.tensor([1, torch.nan, -torch.inf, torch.inf])
    assert np.isfinite(fingerprint(missing)).all()
    assert fingerprint(missing) != fingerprint(missing.flip(0))
    graph = torch.eye(3)
    assert fingerprint(graph.to_sparse()) == fingerprint(graph.to_sparse_csr())
    assert fingerprint(graph.to_sparse()) != fingerprint(graph.flip(0).to_sparse())
    nested = torch.nested.nested_tensor([graph, graph[:2]], layout=torch.jagged)
    assert fingerprint(nested) == fingerprint([graph, graph[:2]])


def test_a_field_or_attribute_of_a_batch_may_have_the_name_items():
    batch = namedtuple("Batch", "users items")(torch.tensor([1]), torch.tensor([2, 3]))
    assert fingerprint(batch) == fingerprint([*batch])
    assert fingerprint(SimpleNamespace(items=batch.items)) == []


@pytest.mark.parametrize(
    "names",
    [
        {"0.": "1.0.", "1.": "1.1.", "1.0.": "0.", "1.1.": "1."},  # two models called in turn
        {"0.": "net.0.", "1.": "net.1.", "1.0.": "1.net.0.", "1.1.": "1.net.1."},  # each in another
    ],
)
@pytest.mark.parametrize("kinds", [("buffer", "running_mean"), ("orphan", "bias")])
def test_models_are_the_same_under_other_names(names, kinds):
    def made(names):
        weights = {f"0 weight {name}weight": np.full(3, i + 1.0) for i, name in enumerate(names)}
        of_layers = [f"1 {kinds[0]} {name}{kinds[1]}" for name in names if name.endswith("1.")]
        return Record([weights | {key: np.full(2, i + 1.0) for i, key in enumerate(of_layers)}])

    own, found = made(names), made(names.values())
    assert not found.equals(own)
    assert found.named_as(own).equals(own)


def record(scale: float = 1.0, noise: float = 0.0, inputs: float = 1.0, passes: int = 1) -> Record:
    """Two steps of two tensors with updates of ``scale`` and relative noise."""
    drawn = np.random.default_rng(0)
    found = {"losses": np.ones((2, passes)), "inputs": np.full((2, 3), inputs)}
    for name in ("a", "b"):
        weight = drawn.standard_normal(500)
        found[f"0 weight {name}"] = weight.copy()
        for step in (1, 2):
            gradient = drawn.standard_normal(500)
            other = noise * np.random.default_rng(step).standard_normal(500)
            found[f"{step} gradient {name}"] = gradient + other
            weight = weight - 0.1 * scale * (gradient + other)
            found[f"{step} weight {name}"] = weight.copy()
    return Record([found])


def joined(of: Record) -> Record:
    """The same training, with one tensor in place of two."""
    (found,) = of.ranks
    both = {k[:-1]: [found.pop(k), found.pop(f"{k[:-1]}b")] for k in [*found] if k.endswith(" a")}
    return Record([found | {f"{key}ab": np.concatenate(two) for key, two in both.items()}])


def scaled(factor: float) -> Record:
    """The same training, with its losses multiplied, as by a GradScaler."""
    (found,) = record(noise=1e-6).ranks
    return Record([found | {"losses": found["losses"] * factor}])


def with_losses(factor: float) -> Record:
    """The same training, with its loss of the second step multiplied."""
    (found,) = record().ranks
    return Record([found | {"losses": found["losses"] * [[1.0], [factor]]}])


def with_tensors(of: Record, tensors: dict[str, Any]) -> Record:
    """The same training with other ``tensors``, by key; None leaves one out."""
    found = of.ranks[0] | tensors
    return Record([{key: value for key, value in found.items() if value is not None}])


def without_first_update(of: Record) -> Record:
    """The same training, with a rate that starts at 0."""
    return with_tensors(of, {f"1 weight {name}": of.ranks[0][f"0 weight {name}"] for name in "ab"})


OWN, FLOOR, JOINED = record(), record(noise=1e-6), joined(record())
WORSE = with_tensors(
    record(noise=1e-3), {"1 gradient b": record(noise=0.1).ranks[0]["1 gradient b"]}
)
SHORTER = with_tensors(OWN, {key: x[:400] for key, x in OWN.ranks[0].items() if key[-1] == "b"})
ELSEWHERE = with_tensors(FLOOR, {"2 gradient b": None, "2 weight b": None})
"""A floor in which rounding chooses other experts, so that one gets no gradient."""
OTHER_BATCHES = Record([record(noise=1e-6).ranks[0] | {"inputs": np.ones((2, 6))}])
"""A floor of a policy whose actions change, so that it draws other batches itself."""
OTHER_INPUTS = record(noise=1e-6, inputs=1.0001)
"""A floor in which a generator passes other inputs to its critic; gradients judge them."""


def followed(data: float, result: float, **more: Any) -> Record:
    """Two steps whose model gets data, and then passes its result to a predictor."""
    row = [10.0, data, data + 1.0, 4.0, result, result + 1.0]
    return Record([record(**more).ranks[0] | {"inputs": np.array([row, row])}])


def test_results_that_rounding_changes_do_not_excuse_other_data():
    own = followed(2.0, 3.0)
    for result, last in ((3.0 + 1e-4, "different"), (2.0, "undecided")):
        copy = followed(2.0, result, noise=1e-6)
        assert certify(followed(2.0, 3.1, noise=2e-6), own, [copy], "float32").word == "same"
        assert certify(followed(1.0, 3.1), own, [copy], "float32").word == last


@pytest.mark.parametrize(
    ("found", "floor", "rounding", "word", "reason"),
    [
        (record(), FLOOR, "float32", "same", "equal to the last bit"),
        (record(noise=2e-6), FLOOR, "float32", "same", "gradients differ by at most"),
        (
            record(noise=1e-3),
            FLOOR,
            "float32",
            "different",
            "of a is .* in step 1.* of b .* step 1",
        ),
        (WORSE, FLOOR, "float32", "different", "^the gradient of b .* of a .* step 1"),
        (SHORTER, FLOOR, "float32", "different", "the gradient of b is inf off in step 1"),
        (record(noise=2e-6), ELSEWHERE, "float32", "same", "gradients differ by at most"),
        (record(scale=1.01), FLOOR, "float32", "different", "1.01 times as large"),
        (record(inputs=2.0), FLOOR, "float32", "different", "gets 2 numbers instead of 1"),
        # One sum in place of several passes, or the reverse, if the gradients are the same.
        (record(passes=2), FLOOR, "float32", "same", "from 2 instead of 1 backward passes"),
        (scaled(65536), FLOOR, "float32", "same", "gradients differ by at most"),
        (scaled(1.1), FLOOR, "float32", "different", "a loss is"),
        (record(passes=2, scale=1.1), FLOOR, "float32", "different", "1.1 times as large"),
        (Record(OWN.ranks * 2), FLOOR, "float32", "different", "2 ranks instead of 1"),
        (OTHER_BATCHES, OTHER_BATCHES, "float32", "undecided", "so does"),
        (record(noise=2e-6), OTHER_BATCHES, "float32", "same", "gradients differ by at most"),
        (JOINED, FLOOR, "float32", "undecided", "ab take the place of a, b: .* losses agree"),
        (joined(record(scale=2.0)), FLOOR, "float32", "different", "together 2 times as large"),
        (
            record(noise=1e-6, inputs=1.001),
            OTHER_INPUTS,
            "float32",
            "same",
            "gradients differ by at most",
        ),
        # Rounding of data is allowed even if rounding the weights changes nothing.
        (record(noise=3e-3), FLOOR, "bfloat16", "same", "gradients differ by at most"),
        (record(noise=5e-2), FLOOR, "bfloat16", "different", "the gradient of"),
        (record(noise=0.9), record(noise=1.0), "bfloat16", "undecided", "no verdict is possible"),
        # Closer than the rounding of one product, however much rounding the weights moves.
        (record(noise=3e-3), record(noise=1.0), "bfloat16", "same", "gradients differ by at most"),
    ],
)
def test_a_certificate_measures_against_the_floor(found, floor, rounding, word, reason):
    certificate = certify(found, OWN, [floor], rounding)
    assert certificate.word == word, certificate
    assert re.search(reason, certificate.reason)
    if word == "same":
        assert (certificate.steps, certificate.last, certificate.tensors) == (2, 2, 2)


def test_the_floor_of_a_tensor_is_that_of_the_copy_which_shows_it_best():
    first, second = record(noise=0.02), record(noise=1e-6)
    for key in list(first.ranks[0]):
        if key.endswith("b"):  # Tensor a moves in one copy, b in the other.
            both = first.ranks[0][key], second.ranks[0][key]
            second.ranks[0][key], first.ranks[0][key] = both
    found = record(noise=0.1)
    assert certify(found, OWN, [first], "bfloat16").word == "different"
    assert certify(found, OWN, [second], "bfloat16").word == "different"
    assert certify(found, OWN, [first, second], "bfloat16").word == "same"


def test_a_step_without_updates_is_compared():
    own, found, floor = map(without_first_update, (OWN, record(noise=2e-6), FLOOR))
    assert certify(found, own, [floor], "float32").word == "same"


def test_a_script_whose_weights_become_nan_is_seen():
    assert spoiled(OWN) is None
    nan = {key: value * np.nan for key, value in OWN.ranks[0].items() if "weight a" in key}
    later = {key: value for key, value in nan.items() if not key.startswith("0")}
    assert spoiled(Record([OWN.ranks[0] | later])) == 1
    assert spoiled(Record([OWN.ranks[0] | nan])) is None, "it is none of the training's weights"


def test_a_script_whose_weights_never_change_is_seen():
    assert "no weight" not in trust(OWN, OWN)[1]
    first = {key[1:]: value for key, value in OWN.ranks[0].items() if key.startswith("0 weight")}
    still = {f"{step}{key}": value for step in range(3) for key, value in first.items()}
    resting = Record([OWN.ranks[0] | still])
    assert "no weight changed" in trust(resting, resting)[1]


SHUFFLED = Record([{**OWN.ranks[0], "0 weight a": OWN.ranks[0]["0 weight b"]}])


@pytest.mark.parametrize(
    ("again", "equal", "words"),
    [
        (record(), True, "to the last bit"),
        (SHUFFLED, False, "call torch.manual_seed"),
        (record(inputs=1.001), False, "seed also generators such as random.Random()"),
        (FLOOR, False, "its gradients or weights differ from run to run"),
        (with_losses(1 + 1e-6), False, "its losses differ by 1e-06 from run to run"),
        (with_losses(1.1), False, "draws random numbers that no seed"),
    ],
)
def test_two_runs_are_equal_or_the_place_where_they_begin_to_differ_is_named(again, equal, words):
    found, reason = trust(OWN, again)
    assert found == equal
    assert words in reason


@pytest.mark.parametrize(
    ("short", "word"), [(True, "same"), (None, "undecided"), (False, "different")]
)
def test_differences_as_of_16_bits_are_rounding_only_where_16_bits_are_seen(short, word, tmp_path):
    plan, new = Plan("all", [], 0, 0), Side("new", files={Path("train.py"): ""})
    records = {"own": OWN, "again": FLOOR, "floor_bfloat16": FLOOR, "new": record(noise=3e-3)}
    sessions = Sessions(Program(("train.py",), tmp_path), tmp_path, "key", {"cycle": 1})
    found = sessions._certificate(plan, new, records, {"own": False, "new": short}, lambda: None)
    assert found["word"] == word
    assert ("hide whether" in found["reason"]) == (short is None)


@pytest.mark.parametrize(
    ("noise", "late", "double", "word"),
    [
        (1e-7, 1e-6, set(), "same"),
        (1e-7, 1e-6, {"own"}, "same"),  # one of them may round to float32
        (1e-7, 1e-6, {"own", "new"}, "different"),
        (1e-12, 1e-6, {"own", "new"}, "same"),
        (1e-7, 0.6, {"own", "new"}, "undecided"),  # rounding to float32 overturns all
    ],
)
def test_bounds_in_64_bits_are_far_smaller(noise, late, double, word, tmp_path):
    plan, new = Plan("all", [], 0, 0), Side("new", files={Path("train.py"): ""})
    records = {"own": OWN, "again": record(noise=late), "new": record(noise=noise)}
    sessions = Sessions(Program(("train.py",), tmp_path), tmp_path, "key", {"cycle": 1})
    short = dict.fromkeys(records, False)
    found = sessions._certificate(plan, new, records, short, lambda: None, double)
    assert found["word"] == word, found
    assert found["format"] == ("float64" if len(double) == 2 else "float32")


@pytest.mark.parametrize("narrow", [False, True])
def test_a_training_in_64_bits_is_seen(narrow):
    watch, model = Watch(Boundaries()), nn.Linear(2, 2).double()
    watch.boundaries.modules.append(model)
    found = model(torch.ones(1, 2, dtype=torch.float64))
    watch.look_at([(found.float() if narrow else found).double().sum()])
    assert watch.facts()["double"] != narrow


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ([], ("undecided", "undecided")),
        (["floor_bfloat16"], ("same", "different")),
        (["floor_bfloat16_1"], ("same", "different")),
    ],
)
def test_without_a_measured_floor_nothing_is_different(kept, words, tmp_path):
    floors = [Side("again", noise=NOISE["float32"])]
    floors += [Side(n, noise=NOISE["bfloat16"]) for n in ("floor_bfloat16", "floor_bfloat16_1")]
    plan, side = Plan("all", floors, 0, 0), Side("bf16", ("bf16",))
    sessions = Sessions(Program(("train.py",), tmp_path), tmp_path, "key", {"cycle": 1})
    short = {"own": False, "bf16": True}
    for scale, word in zip((1.0, 2.0), words, strict=True):
        records = {"own": OWN, "again": record(noise=1e-6), "bf16": record(scale, noise=5e-2)}
        records |= dict.fromkeys(kept, record(noise=2e-2))
        found = sessions._certificate(plan, side, records, short, lambda: None)
        assert found["word"] == word, found["reason"]
        assert ("failed" in found["reason"]) == (word == "undecided")


def test_garbage_of_the_first_step_is_not_that_of_each_backward_pass():
    """A compiler leaves many objects in cycles in the first pass."""
    watch = Watch(Boundaries())
    while gc.collect():  # what finalizers of other tests leave, too
        pass
    for passes, cycles in ((1, 1000), (4, 200)):
        watch.boundaries.backwards += passes
        for _ in range(cycles):
            own: list[Any] = []
            own.append(own)
        if passes == 1:
            watch.count_garbage()
    gc.collect()
    gc.callbacks.remove(watch._collected)
    assert 35 < watch.facts()["garbage"] < 50


@pytest.mark.parametrize(("repeats", "word"), [(True, "different"), (False, "undecided")])
@pytest.mark.parametrize("overturned", [False, True])
def test_other_batches_tell_nothing_if_the_script_itself_draws_them_anew(
    repeats, word, overturned, tmp_path
):
    """Its disturbed copy has drawn the same ones by chance, or others, which is no rounding."""
    plan, side = Plan("all", [], 0, 0), Side("fused", ("fused_optimizer",))
    sessions = Sessions(Program(("train.py",), tmp_path), tmp_path, "key", {"cycle": 1})
    sessions.repeats = repeats
    records = {"own": OWN, "again": FLOOR, "fused": OTHER_BATCHES}
    if overturned:
        records |= {"again": record(noise=3.0, inputs=1.5), "fused": record(noise=2.0, inputs=2.0)}
        word = "undecided"
    short = {"own": False, "fused": False}
    found = sessions._certificate(plan, side, records, short, lambda: None)
    assert found["word"] == word
    assert ("two runs of the script itself differ" in found["reason"]) != repeats


def raised_in_a_worker(error: Exception) -> str:
    """The text of an error that torch raises again in another process or thread."""
    try:
        raise error
    except Exception:
        wrapped = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(type(error)) as again:
        wrapped.reraise()
    return f"RuntimeError: {again.value}"


@pytest.mark.parametrize(
    ("says", "status"),
    [
        (
            "Cannot re-initialize CUDA in forked subprocess. Use the spawn start method",
            "unsupported",
        ),
        ("cannot pin 'torch.cuda.LongTensor' only dense CPU tensors can be pinned", "unsupported"),
        ("no such file", "failed"),
    ],
)
def test_the_error_of_a_worker_is_told_and_not_that_it_was_caught(says, status, tmp_path):
    found, why = status_of(SideEnded("own", raised_in_a_worker(RuntimeError(says)), {}, tmp_path))
    assert found == status
    assert why.startswith(f"RuntimeError: {says}")


@pytest.mark.parametrize("says", ["does not support sparse gradients", "is not supported"])
def test_what_a_kernel_does_not_support_is_no_failure(says, tmp_path):
    why = f"RuntimeError: `_fused_sgd` {says}"
    assert status_of(SideEnded("fused", why, {}, tmp_path)) == ("unsupported", why)
    there = {"place": "train.py, line 3"}
    said = status_of(SideEnded("fused", why, there, tmp_path))
    assert said == ("unsupported", f"train.py, line 3: {why}")


def test_a_gpu_that_takes_only_one_process_is_named_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(nvml, "exclusive_gpus", lambda visible: [1])
    why = "AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    (log := tmp_path / "log").touch()
    error = SideEnded("own", why, {"place": "train.py, line 3"}, log)
    status, reason = status_of(error)
    assert status == "unsupported"
    remedy = "nvidia-smi -i 1 -c DEFAULT"
    assert remedy in reason
    assert remedy in why_ended(error, Program(("train.py",), tmp_path), 4)


def test_a_view_of_another_layout_is_unsupported_with_the_line_and_the_remedy(tmp_path):
    images = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError) as refused:
        images.view(2, -1)
    error = SideEnded("channels_last", str(refused.value), {"place": "net.py, line 9"}, tmp_path)
    status, reason = status_of(error)
    assert status == "unsupported"
    assert reason.startswith("net.py, line 9: ")
    assert ".reshape(...) instead" in reason


@pytest.mark.parametrize(("own", "word"), [(True, "same"), (False, "different")])
def test_a_script_in_16_bits_rounds_the_results_of_a_technique_to_them(own, word, tmp_path):
    plan, side = Plan("all", [], 0, 0), Side("layout", ("channels_last",))
    records = {"own": OWN, "again": FLOOR, "floor_bfloat16": FLOOR, "layout": record(noise=3e-3)}
    sessions = Sessions(Program(("train.py",), tmp_path), tmp_path, "key", {"cycle": 1})
    short = {"own": own, "layout": own}
    assert sessions._certificate(plan, side, records, short, lambda: None)["word"] == word
    assert ("floor_bfloat16" in {each.name for each in floors([side], own)}) == own
    # An update with the script's own gradients is not rounded to 16 bits.
    records["layout"] = record(scale=1.002)
    assert sessions._certificate(plan, side, records, short, lambda: None)["word"] == "different"
    # Unless the weights themselves have 16 bits.
    sessions.facts["formats"] = ["bfloat16"]
    assert sessions._certificate(plan, side, records, short, lambda: None)["word"] == word


def with_gradients(of: Record, factor: float, decay: float = 0.0, losses: float = 1.0) -> Record:
    """The same updates, from gradients of another size or with weight decay added to them."""
    (found,) = of.ranks
    other = {
        key: factor * value + decay * found[key.replace(key[:10], f"{int(key[0]) - 1} weight")]
        for key, value in found.items()
        if " gradient " in key
    }
    return Record([found | other | {"losses": losses * found["losses"]}])


def late(of: Record) -> Record:
    """The same with a step after a gap, so that its update is not known."""
    (found,) = of.ranks
    more = {f"9 {key[2:]}": value for key, value in found.items() if key[:2] == "2 "}
    return Record([found | more])


STILL = record(scale=0.0)


@pytest.mark.parametrize(
    ("found", "own", "rounding", "word"),
    [
        (with_gradients(record(), 1.0, 0.05), OWN, "float32", "same"),
        (late(with_gradients(record(), 1.0, 0.05)), late(OWN), "float32", "same"),
        (with_gradients(record(), 1.0, 0.05), OWN, "bfloat16", "different"),
        (with_gradients(record(scale=1.01), 1.0, 0.05), OWN, "float32", "different"),
        (with_gradients(record(), 1.0, 0.05, losses=1.5), OWN, "float32", "different"),
        (with_gradients(record(), 1.5), OWN, "float32", "undecided"),
        (with_gradients(record(), 1.5, losses=1.5), OWN, "float32", "undecided"),
        (with_gradients(record(scale=1.1), 1.5), OWN, "float32", "different"),
        (scaled(1.1), OWN, "float32", "different"),
        # Without updates, nothing else tells.
        (with_gradients(STILL, 1.0, 0.05), STILL, "float32", "different"),
        (with_gradients(STILL, 1.5), STILL, "float32", "different"),
    ],
)
def test_equal_updates_of_other_gradients_are_not_another_training(found, own, rounding, word):
    certificate = certify(found, own, [own], rounding, by_updates=True)
    assert certificate.word == word, certificate
    assert certify(found, own, [own], rounding).word == "different"


LEFT_STILL = {"2 weight b": OWN.ranks[0]["1 weight b"]}
LEFT_GRADIENT = {"2 gradient b": np.zeros(500)}


@pytest.mark.parametrize(
    ("still", "moved", "word"),
    [
        (LEFT_STILL, {}, "same"),  # b is a critic that steps first, and another optimizer second
        ({}, {}, "undecided"),
        (LEFT_STILL, {"2 weight b": OWN.ranks[0]["2 weight b"]}, "different"),
        (LEFT_STILL | {"1 weight b": OWN.ranks[0]["0 weight b"]}, {}, "different"),
    ],
    ids=["cleared", "used", "moved", "never used"],
)
def test_gradients_that_another_optimizers_step_leaves_are_not_compared(still, moved, word):
    own = with_tensors(OWN, still)
    if "1 weight b" in still:
        own = with_tensors(own, {"2 weight b": still["1 weight b"]})
    found = with_tensors(own, LEFT_GRADIENT | moved)
    certificate = certify(found, own, [own], "float32", by_updates=True)
    assert certificate.word == word, certificate
    assert certify(found, own, [own], "float32").word == "different"


def overflowing(of: Record) -> Record:
    """The same, with a gradient that overflows in the first step, as with a GradScaler."""
    gradient = of.ranks[0]["1 gradient a"].copy()
    gradient[0] = np.inf
    return Record([of.ranks[0] | {"1 gradient a": gradient}])


@pytest.mark.parametrize(
    ("found", "floor", "word"),
    [
        (overflowing(record(noise=2e-6)), overflowing(FLOOR), "same"),
        (overflowing(record(noise=1e-3)), overflowing(FLOOR), "different"),
        (record(noise=2e-6), overflowing(FLOOR), "different"),
        (record(noise=2e-6), FLOOR, "undecided"),  # rounding decides whether it overflows
    ],
)
def test_a_gradient_that_overflows_does_not_hide_other_differences(found, floor, word):
    own = overflowing(OWN)
    certificate = certify(found, own, [floor], "float32")
    assert certificate.word == word, certificate
    assert "nan" not in certificate.reason
    rounded = word == "same" or "is finite in step 1" in certificate.reason
    assert agrees_at_first(found, own, [floor]) == rounded


@pytest.mark.parametrize(("factor", "word"), [(1 + 1e-6, "same"), (1.5, "different")])
def test_an_infinite_loss_does_not_hide_another_loss(factor, word):
    own, floor, found = (
        Record([of.ranks[0] | {"losses": of.losses()[0] * [[np.inf], [1.0]]}])
        for of in (OWN, FLOOR, with_losses(factor))
    )
    assert certify(found, own, [floor], "float32").word == word


@pytest.mark.parametrize(("mean", "word"), [(1.0, "same"), (1.5, "different")])
def test_a_mask_among_the_buffers_does_not_hide_a_running_mean(mean, word):
    def with_buffers(of: Record, mean: float) -> Record:
        mask = np.triu(np.full((4, 4), -np.inf), 1).ravel()
        more = {"1 buffer mask": mask, "1 buffer running_mean": np.full(4, mean)}
        return Record([of.ranks[0] | more])

    found = with_buffers(record(noise=2e-6), mean)
    own, floor = (with_buffers(each, 1.0) for each in (OWN, FLOOR))
    certificate = certify(found, own, [floor], "float32")
    assert certificate.word == word, certificate


@pytest.mark.parametrize(
    ("off", "numbers", "word"),
    [(3e-4, 2, "same"), (5e-3, 2, "different"), (3e-4, 64, "different")],
)
def test_a_copy_shows_little_rounding_of_statistics_of_few_numbers_by_luck(off, numbers, word):
    def with_buffers(of: Record, *apart: float) -> Record:
        more = {
            f"2 buffer {n}.running_mean": np.full(numbers, 1.0 + gap) for n, gap in enumerate(apart)
        }
        return Record([of.ranks[0] | more])

    own, floor = with_buffers(OWN, 0, 0, 0, 0), with_buffers(FLOOR, 1e-4, 1e-5, 1e-5, 1e-5)
    found = with_buffers(record(noise=2e-6), 1e-5, off, 1e-5, 1e-5)
    certificate = certify(found, own, [floor], "float32")
    assert certificate.word == word, certificate


@pytest.mark.parametrize(("off", "word"), [(2e-4, "same"), (2e-3, "different")])
def test_adding_an_update_in_parts_rounds_the_weights_again(off, word):
    """As those of a sparse gradient: of weights 5,000 times as large, rounding to 32 bits is 3e-4 of an update."""
    found, own = record().ranks[0], record().ranks[0]
    for name in ("a", "b"):
        for step in range(3):
            key = f"{step} weight {name}"
            own[key] = own[key] + 500
            found[key] = own[key] + 0.1 * off * step * np.cos(np.arange(500))
    assert certify(Record([found]), Record([own]), [Record([own])], "float32").word == word


@pytest.mark.parametrize(("gradient", "word"), [(0.0, "different"), (1e-6, "same")])
def test_another_optimizer_shows_in_the_updates_of_equal_gradients(gradient, word):
    """Adam makes more of a gradient's rounding, but nothing of none."""
    found, own, floor = record(), record(), record(noise=1e-6)
    step = found.ranks[0]
    for name in ("a", "b"):
        step[f"1 gradient {name}"] = step[f"1 gradient {name}"] * (1 + gradient)
        decay = 1e-5 * step[f"0 weight {name}"]  # 1e-4 of an update
        for each in (1, 2):
            step[f"{each} weight {name}"] = step[f"{each} weight {name}"] - decay
    assert certify(found, own, [floor], "float32").word == word


@pytest.mark.parametrize(("size", "word"), [(1e-6, "same"), (1.0, "different")])
def test_a_number_whose_gradient_is_only_rounding_may_move_anywhere(size, word):
    """Adam makes full-sized updates of its rounding."""

    def moved(of: Record, update: float) -> Record:
        found = {key: value.copy() for key, value in of.ranks[0].items()}
        for step in (1, 2):
            found[f"{step} gradient a"][0] = size
            found[f"{step} weight a"][0] = found["0 weight a"][0] + step * update
        return Record([found])

    own, floor = moved(OWN, 0.1), moved(FLOOR, 0.1)
    certificate = certify(moved(record(noise=2e-6), -0.1), own, [floor], "float32")
    assert certificate.word == word, certificate


def test_rounding_of_the_model_shows_in_the_first_gradients():
    assert agrees_at_first(record(scale=1.1), OWN, [FLOOR])
    lost = certify(record(noise=0.9), OWN, [record(noise=1.0)], "bfloat16")
    assert lost.worst.startswith("step 1,")
    assert not agrees_at_first(record(noise=1e-3), OWN, [FLOOR])


@pytest.mark.parametrize(
    ("size", "word"),
    # Only rounding, as before batch normalization; and a gradient.
    [(1e-4, "same"), (0.1, "different")],
)
def test_a_bias_without_gradient_is_compared_at_the_size_of_its_weight(size, word):
    def with_layer(noise: float, error: float) -> Record:
        (found,) = record(noise=noise).ranks
        for step in (0, 1, 2):
            found[f"{step} weight layer.weight"] = found[f"{step} weight a"]
            found[f"{step} weight layer.bias"] = found[f"{step} weight a"]
        for step in (1, 2):
            found[f"{step} gradient layer.weight"] = found[f"{step} gradient a"]
            found[f"{step} gradient layer.bias"] = size * found[f"{step} gradient a"]
        found["1 gradient layer.bias"] += error * found["2 gradient b"]
        return Record([found])

    own, floor = with_layer(0.0, 0.0), with_layer(1e-3, 0.0)
    certificate = certify(with_layer(1e-3, 0.01), own, [floor], "bfloat16")
    assert certificate.word == word, certificate


WHOLE, PARTS, RANKS = (
    Record(
        [
            OWN.ranks[0] | {"inputs": np.array([row]), "normalized": np.array([count])}
            for row in rows
        ]
    )
    # Of all rows, of two micro-batches, and of two ranks: how many values, their sum, and a number.
    for count, rows in (
        (16, [[16.0, 3.0, 9.0]]),
        (8, [[8.0, 1.0, 4.0, 8.0, 2.0, 5.0]]),
        (8, [[8.0, 1.0, 4.0], [8.0, 2.0, 5.0]]),
    )
)


@pytest.mark.parametrize(
    ("found", "own", "counts"),
    [(PARTS, WHOLE, (8, 16)), (WHOLE, PARTS, (16, 8)), (RANKS, WHOLE, (8, 16))],
)
def test_statistics_of_other_rows_are_named(found, own, counts):
    words = "takes its statistics from {} values of a channel at a time instead of {}"
    assert words.format(*counts) in explained(found, own, own)
    assert "statistics" not in explained(found, found, own)


@pytest.mark.parametrize(("size", "named"), [(1.0, True), (0.0, False)])
def test_a_parameter_that_no_optimizer_updates_is_named_if_the_script_updates_it(size, named):
    steps = {key: size * OWN.ranks[0][key] for key in ("1 gradient a", "2 gradient a")}
    own = OWN.ranks[0] | steps
    found = {key: value for key, value in own.items() if key not in steps}
    found["1 orphan a"] = np.zeros(0)
    words = explained(Record([found]), Record([own]), Record([own]))
    assert ("no optimizer updates a" in words) == named


def test_parts_of_a_batch_are_the_batch():
    assert other_parts(PARTS, WHOLE) == other_parts(WHOLE, PARTS) == ""
    other = Record([PARTS.ranks[0] | {"inputs": PARTS.ranks[0]["inputs"] + 1}])
    assert "ranks together" in other_parts(other, WHOLE)
    larger = [OWN.ranks[0] | {"inputs": np.array([[n, 1.0, 4.0]])} for n in (12.0, 4.0)]
    assert "into equal parts" in other_parts(Record(larger), called([[16, 2, 8]]))
    unrecorded = Record([OWN.ranks[0] | {"inputs": np.zeros((2, 0))}])
    assert other_parts(unrecorded, unrecorded) == ""
    assert "different batches in step 1" in other_parts(unrecorded, WHOLE)


def called(*calls: list[list[float]]) -> Record:
    """A record of one step with these tensors in its calls."""
    return Record([OWN.ranks[0] | {"inputs": np.array([np.ravel(calls)])}])


MASK = [4.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("calls", "others", "same"),
    [
        ([[[6, 1, 1]], [[2, 2, 3]]], [[[4, 4, 1]], [[4, -1, 5]]], True),
        ([[[6, 1, 1], MASK], [[2, 2, 3], MASK]], [[[8, 3, 5], MASK]], True),
        (
            [[[2, 1, 1], MASK], [[2, 2, 3], MASK]],
            [[[1, 3, 5], MASK], *[[[1, 0, 2], MASK]] * 3],
            True,
        ),
        ([[[6, 1, 1]], [[2, 2, 3]]], [[[4, 4, 1]], [[4, 1, 5]]], False),
        ([[[4, 1, 1], MASK]], [[[8, 1, 1], MASK]], False),
        ([[[4, 1, 1]], [[2, 2, 3]]], [[[4, 1, 1]], [[4, 2, 3]]], False),
    ],
)
def test_the_same_rows_come_in_any_order_and_parts(calls, others, same):
    found, own = called(*calls), called(*others)
    assert (other_parts(found, own) == other_parts(own, found) == "") == same


@pytest.mark.parametrize(("noise", "word"), [(2e-6, "same"), (1e-3, "different")])
def test_shards_of_all_ranks_are_compared(noise, word):
    found, own, floor = (Record([OWN.ranks[0], *record(noise=n).ranks]) for n in (noise, 0, 1e-6))
    assert certify(found, own, [floor], "float32", divided=True).word == word


def test_a_difference_that_all_ranks_have_is_said_once():
    found, own, floor = (Record(record(noise=n).ranks * 2) for n in (1e-3, 0, 1e-6))
    reasons = certify(found, own, [floor], "float32").reason.split("; ")
    assert len(reasons) == len({*reasons}) == 2


@pytest.mark.parametrize(("first", "word"), [(1e-6, "same"), (0.4, "different")])
def test_a_lucky_floor_in_a_step_that_rounding_overturns_is_no_bound(first, word):
    def overturned(second: dict[str, float], first: float) -> Record:
        """Noise of the first step of both tensors, and of the second step of each."""
        (found,) = record(noise=first).ranks
        for name, noise in second.items():
            (other,) = record(noise=noise).ranks
            weight = f"2 weight {name}"
            update = other[weight] - other[f"1 weight {name}"]
            found[f"2 gradient {name}"] = other[f"2 gradient {name}"]
            found[weight] = found[f"1 weight {name}"] + update
        return Record([found])

    floor = overturned({"a": 0.9, "b": 0.05}, 1e-6)
    certificate = certify(overturned({"a": 3.0, "b": 0.8}, first), OWN, [floor], "bfloat16")
    assert certificate.word == word, certificate


@pytest.mark.parametrize(("numbers", "word"), [(2, "same"), (500, "different")])
def test_the_floor_of_few_numbers_may_be_several_times_too_small(numbers, word):
    def with_classes(noise: float, error: float) -> Record:
        """Two tensors, and the bias of some classes, whose gradient is off by ``error``."""
        (found,) = record(noise=noise).ranks
        gradient = np.random.default_rng(3).standard_normal(numbers)
        for step in (0, 1, 2):
            found[f"{step} weight classes"] = -0.1 * step * gradient
            found[f"{step} gradient classes"] = gradient * (1 + error)
        del found["0 gradient classes"]
        return Record([found])

    own, floor, found = with_classes(0, 0), with_classes(0.01, 0.13), with_classes(0.01, 0.31)
    certificate = certify(found, own, [floor], "bfloat16")
    assert certificate.word == word, certificate


@pytest.mark.parametrize(
    ("numbers", "sizes", "off", "word"),
    [
        (1, (1.0, 1.0), 4e-3, "same"),
        (1, (1.0, 1.0), 3e-2, "different"),
        (500, (1.0, 1.0), 4e-3, "different"),
        (1, (1.0, 1e-3), 4e-3, "same"),
        (1, (1.0, 1e-3), 1.0, "different"),
    ],
)
def test_one_copy_may_show_no_rounding_of_terms_that_cancel(numbers, sizes, off, word):
    """The gradient of one number, in which large terms cancel, is off by a multiple of one rounding: by none in
    the first step of the copy. In the second one, rounding alone may decide it."""

    def with_offset(noise: float, *errors: float) -> Record:
        (found,) = record(noise=noise).ranks
        found["0 weight offset"] = weight = np.ones(numbers)
        for step, (size, error) in enumerate(zip(sizes, errors, strict=True), 1):
            found[f"{step} gradient offset"] = np.full(numbers, size + error)
            weight = found[f"{step} weight offset"] = weight - 0.1
        return Record([found])

    own, floor = with_offset(0, 0, 0), with_offset(1e-6, 0, 1e-3)
    certificate = certify(with_offset(2e-6, off, 1e-3), own, [floor], "float32")
    assert certificate.word == word, certificate


def source_of(folder: Path, text: str, **lines: int) -> Source:
    """The source of a script with this text, in which (x) calls the model, and the lines of its places."""
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8", newline="")
    places = {place: (str(script), line) for place, line in lines.items()}
    calls = [
        {"file": str(script), "line": line, "end": [line, here.index("(x)") + 3], "direct": True}
        for line, here in enumerate(text.splitlines(), 1)
        if "(x)" in here
    ]
    return Source(folder, script, places, calls)


SCRIPT = """import torch

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    for x in loader:
        logits = model(x)
        step(logits)
"""


@pytest.mark.parametrize("old", ["", "\n"])
@pytest.mark.parametrize("new", ["\n", "\r\n"])
def test_edits_come_back_as_a_diff_that_applies(old, new, tmp_path):
    text = (SCRIPT.rstrip() + old).replace("\n", new)
    source = source_of(tmp_path, text, optimizer=4)
    before = source.script.read_bytes()
    assert source.keyword("optimizer", ["AdamW"], {"fused": "True"})
    assert source.before_loop(["MODEL.compile()"])
    assert source.around_call("with low():", ".float()", True)
    assert source.script.read_bytes() == before
    (tmp_path / "changes.diff").write_text(source.diff(), encoding="utf-8", newline="")
    subprocess.run(["git", "apply", "changes.diff"], cwd=tmp_path, check=True)
    changed = source.script.read_text(encoding="utf-8")
    assert source.script.read_bytes().count(b"\r") == (new == "\r\n") * changed.count("\n")
    assert source.files() == {Path("train.py"): changed}
    assert changed.endswith("step(logits)" + old)
    assert "AdamW(model.parameters(), lr=1e-3, fused=True)" in changed
    assert "model.compile()\nfor epoch" in changed
    around = "        with low():\n            logits = model(x)\n        logits = logits.float()\n"
    assert around in changed


def test_the_diff_of_a_module_above_the_script_applies_to_the_repository(tmp_path):
    """The script itself is in one of its folders, as minGPT's are."""
    (folder := tmp_path / "projects").mkdir()
    library = tmp_path / "library.py"
    library.write_text("optimizer = AdamW(parameters)\n")
    places = {"optimizer": (str(library), 1)}
    for top in (None, tmp_path):
        source = Source(folder, folder / "train.py", places, top=top)
        fused = source.keyword("optimizer", ["AdamW"], {"fused": "True"})
        assert fused == (top is not None)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert repository_of(folder) == source.base == tmp_path
    assert source.files() == {library: "optimizer = AdamW(parameters, fused=True)\n"}
    (folder / "changes.diff").write_text(source.diff(), encoding="utf-8")
    answer = Answer("train.py", recommended=("fused_optimizer",), base=str(source.base))
    command = applying(answer, str(folder / "changes.diff"))
    subprocess.run(shlex.split(command), cwd=folder, check=True)
    assert library.read_text() == source.files()[library]


@pytest.mark.parametrize("level", ["  ", "\t"])
def test_edits_are_indented_as_the_script_is(level, tmp_path):
    text = f'"""Trains\nwith these options:\n   --rate\n"""\n{SCRIPT}'
    text = text.replace("for", "if True:\n    for", 1).replace("\n    for x", "\n        for x")
    text = text.replace("        logits", "            logits").replace(
        "        step", "            step"
    )
    source = source_of(tmp_path, text.replace("    ", level))
    lines = ["for block in MODEL.modules():", "    block.compile()"]
    assert source.before_loop(lines)
    assert source.around_call("with low():", ".float()", True)
    changed = source.files()[Path("train.py")]
    compile(changed, "train.py", "exec")
    assert f"\n{level}for block in model.modules():\n{level * 2}block.compile()\n" in changed
    assert f"{level * 3}with low():\n{level * 4}logits = model(x)\n{level * 3}logits =" in changed


def test_edits_have_the_quotes_and_spaces_of_the_script(tmp_path):
    text = "from a import b\nload = Loader('c', size = 2)\nfor x in load:\n    y = model(x)\n"
    source = source_of(tmp_path, text)
    assert source.keyword("loader", ["Loader"], {"kind": '"d"'})
    assert source.after_imports(['first("e")'])
    assert source.before_loop(['second("f")'])
    assert source.around_call('with low("g"):', "", None)
    changed = source.files()[Path("train.py")]
    assert "Loader('c', size = 2, kind = 'd')\n" in changed
    assert all(each in changed for each in ("first('e')", "second('f')", "with low('g'):"))


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nrate = 1\n\ndef f():\n    pass\n\nimport os\n",
        "def f():\n    pass\n\nimport torch\nrate = 1\n",
        # A notebook may import more at its end.
        "import torch\nrate = 1\noptimizer = SGD(p)\nimport matplotlib\n",
        "import torch; a = dict(\n    b=1)\nrate = 1\n",
    ],
)
def test_settings_follow_the_imports_at_the_top(text, tmp_path):
    """Some scripts import more between their functions."""
    source = source_of(tmp_path, text, **({"optimizer": 3} if "SGD" in text else {}))
    assert source.after_imports(["torch.set()"])
    changed = source.files()[Path("train.py")]
    assert re.search(
        r"^(import torch|    b=1\))\n\ntorch.set\(\)\nrate = 1\n", changed, re.MULTILINE
    )


def test_a_change_of_several_models_is_no_diff_of_the_first_one(tmp_path):
    calls = source_of(tmp_path, SCRIPT).calls
    both = {"places": {}, "calls": calls, "folder": tmp_path, "script": tmp_path / "train.py"}
    source = Source.of(both | {"factory": False, "modules": ["Generator", "Discriminator"]})
    assert not source.before_loop(["MODEL.compile()"])
    assert source.before_loop(["gc.freeze()"])


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        # Lines are counted as Python does.
        ("# \x0c\nload('\u2028')\n".encode(), True),
        ("load('\xe4')\n".encode(), True),
        ("# -*- coding: latin-1 -*-\nload('\xe4')\n".encode("latin-1"), False),
        ("load('\xe4')\n".encode("utf-8-sig"), False),
        (b"load('a')\r\nload('b')\n", False),  # The lines of a diff would not be these.
        (b"load('a')  # \r\n# \r\r\n", False),
    ],
)
def test_only_files_in_plain_utf_8_are_edited(text, edited, tmp_path):
    script = tmp_path / "train.py"
    script.write_bytes(text)
    source = Source(tmp_path, script, {})
    assert source.keyword("loader", ["load"], {"workers": "1"}) == edited
    if edited:
        assert source.files() == {Path("train.py"): text.decode().replace("')", "', workers=1)")}


@pytest.mark.parametrize(
    ("line", "result", "tail"),
    [
        ("loss = model(x)", False, []),
        ("out, state = model(x)", [True, False], ["out = out.float()"]),
        ("out = model(x).logits", True, []),
        ("out = model(x)", [True, True], []),
        ("_, out = model(x)", [True, True], ["out = out.float()"]),
        ("self.out = model(x)", True, ["self.out = self.out.float()"]),
        ("out: Tensor = model(x)", True, ["out = out.float()"]),
    ],
)
def test_only_tensors_that_are_named_are_cast_back(line, result, tail, tmp_path):
    source = source_of(tmp_path, f"{line}\n")
    assert source.around_call("with low():", ".float()", result)
    assert source.files()[Path("train.py")].splitlines() == ["with low():", f"    {line}", *tail]


@pytest.mark.parametrize(
    ("statement", "result", "changed"),
    [
        (
            "return model(x)",
            True,
            ["with low():", "    result1 = model(x)", "return result1.float()"],
        ),
        ("return model(x)", False, ["with low():", "    return model(x)"]),
        ("return model(x), x", True, ["with low():", "    return model(x), x"]),
        ("return model(x)", [True, False], None),
    ],
)
def test_a_result_that_is_only_returned_is_cast_back(statement, result, changed, tmp_path):
    source = source_of(tmp_path, f"def f(x, result):\n    {statement}\n")
    assert source.around_call("with low():", ".float()", result) == (changed is not None)
    if changed:
        text = source.files()[Path("train.py")]
        assert text == "def f(x, result):\n" + "".join(f"    {line}\n" for line in changed)


LOOPS = {
    "in two steps": "for x in r:\n    y = same(same(x) + 1)\n    y = (\n        model(same(x) + 1)\n    )\n",
    "of a function": "for x in r:\n    y = through(model, x)\n",
    "of each": "for model in [model]:\n    y = model(1)\n",
    "of attributes": "for at.x in r:\n    for x in r:\n        y = at.model(x)\n",
    "made in a loop": "for k in r:\n    model = model\n    for x in r:\n        y = model(x)\n",
}


@pytest.mark.parametrize(
    ("first", "name"),
    [
        ("block = 8", "block1"),
        ("x = block + 1", "block1"),
        ("block = block1 = 8", "block2"),
        ("def f(block): return block", "block"),
        ("block_size = 8", "block"),
    ],
)
def test_lines_before_the_loop_change_no_variable_of_the_script(first, name, tmp_path):
    text = f"{first}\nfor x in r:\n    y = model(x)\n"
    source = source_of(tmp_path, text)
    call = {"file": str(tmp_path / "train.py"), "line": 3, "end": [3, 16], "direct": True}
    source.calls = [call]
    lines = [
        "for block in MODEL.modules():",
        '    if type(block).__name__ == "block":',
        "        block.compile()",
    ]
    assert source.before_loop(lines)
    changed = source.files()[Path("train.py")].splitlines()[1:4]
    assert changed[0] == f"for {name} in model.modules():"
    assert changed[1].strip() == f'if type({name}).__name__ == "block":'
    assert changed[2].strip() == f"{name}.compile()"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        *(("in two steps", 0), ("of a function", None), ("of each", None)),
        *(("of attributes", 0), ("made in a loop", 2)),
    ],
)
def test_the_model_is_changed_before_the_loop_in_which_it_stays(name, line, tmp_path):
    """The script runs, and the call is found where torch's own code was called."""
    library: dict[str, Any] = {"__name__": "torch.nn"}
    code = "def __call__(watch, module, x): watch.found(module)\ndef through(model, x): model(x)\n"
    exec(compile(code, "/lib/site-packages/torch/nn.py", "exec"), library)
    script, watch = tmp_path / "train.py", Watch(Boundaries())
    script.write_text(LOOPS[name], encoding="utf-8")
    model = partial(library["__call__"], watch, nn.Linear(2, 2))
    given = {"model": model, "through": library["through"], "same": lambda x: x, "r": [1]}
    exec(compile(LOOPS[name], str(script), "exec"), given | {"at": SimpleNamespace(model=model)})
    source = Source(tmp_path, script, watch.places, watch.calls)
    assert source.before_loop(["MODEL.eval()"]) == (line is not None)
    if line is not None:
        changed = source.files()[Path("train.py")].splitlines()
        assert changed[line].lstrip() in ("model.eval()", "at.model.eval()")
        assert changed[:line] + changed[line + 1 :] == LOOPS[name].splitlines()


@pytest.mark.parametrize(
    ("inside", "after", "edited"),
    [
        ("loss += y", "loss.backward(); optimizer.step()", False),
        ("y.backward()", "optimizer.step()", False),
        ("y.backward(); optimizer.step()", "scheduler.step()", True),
        ("scaler(y, optimizer)", "log(y)", True),
    ],
)
def test_what_runs_once_is_not_put_into_a_function_that_is_called_in_each_step(
    inside, after, edited, tmp_path
):
    body = f"    for x in r:\n        y = model(x)\n        {inside}\n    {after}\n"
    source = source_of(tmp_path, f"def train(r):\n{body}")
    assert source.before_loop(["gc.collect()"]) == edited
    source = source_of(tmp_path, f"def forward(r):\n{body}")
    assert not source.before_loop(["gc.collect()"])


FUTURE = '"""Text."""\nfrom __future__ import annotations\n\n'


@pytest.mark.parametrize(
    ("head", "changed"),
    [
        ("r = [1]\n", "import torch\nimport gc\nr = [1]\n"),
        ("import gc, torch.nn\n", "import gc, torch.nn\n"),
        # What torch reads when it is imported may be set before.
        ("import os\nset()\nimport a\n", "import gc\nimport os\nset()\nimport a\nimport torch\n"),
        ("import torch as t\n", "import gc\nimport torch as t\nimport torch\n"),
        (f"{FUTURE}from a import b\n", f"{FUTURE}import gc\nfrom a import b\nimport torch\n"),
        (f"{FUTURE}r = [1]\n", f"{FUTURE[:-1]}import torch\nimport gc\n\nr = [1]\n"),
    ],
)
def test_what_edits_use_is_imported_once(head, changed, tmp_path):
    source = source_of(tmp_path, f"{head}for x in r:\n    model(x)\nimport later\n")
    assert source.before_loop(["gc.first()"])
    assert source.before_loop(["torch.second()"])
    assert source.around_call("with torch.low():", "", None)
    loop = "torch.second()\ngc.first()\nfor x in r:\n    with torch.low():\n        model(x)\n"
    assert source.files()[Path("train.py")] == f"{changed}{loop}import later\n"


@pytest.mark.parametrize(
    "taken",
    [
        *("gc = 1", "def f(gc): pass", "from a import checkpoint as gc", "from a import gc"),
        *("def gc(): pass", "class gc: pass", "try: pass\nexcept E as gc: pass"),
    ],
)
def test_a_module_whose_name_the_script_gives_to_something_else_gets_another(taken, tmp_path):
    source = source_of(tmp_path, f"import gc\n{taken}\nfor x in r:\n    model(x)\n")
    assert source.before_loop(["gc.freeze()"])
    changed = source.files()[Path("train.py")]
    assert changed.startswith("import gc as gc1\nimport gc\n")
    assert "\ngc1.freeze()\nfor x in r:\n    model(x)\n" in changed


def test_a_call_that_has_one_of_the_keywords_stays(tmp_path):
    source = source_of(tmp_path, "load(data, num_workers=0)\nload(data, batch_size=2)\n")
    workers = {"num_workers": "1", "persistent_workers": "True"}
    assert not source.keyword("loader", ["load"], workers, whole=True)
    assert not source.files()
    assert source.keyword("loader", ["load"], workers)
    changed = source.files()[Path("train.py")]
    new = "load(data, batch_size=2, num_workers=1, persistent_workers=True)"
    assert changed == f"load(data, num_workers=0)\n{new}\n"


@pytest.mark.parametrize("space", ["", "\n"])
def test_a_call_without_arguments_gets_a_keyword(space, tmp_path):
    source = source_of(tmp_path, f"a = Accelerator({space})\n")
    assert source.keyword("accelerator", ["Accelerator"], {"mixed_precision": '"bf16"'})
    changed = source.files()[Path("train.py")]
    assert changed == f'a = Accelerator({space}mixed_precision="bf16")\n'


@pytest.mark.parametrize(
    ("call", "changed"),
    [
        ("load(a, shuffle=(b is None))", "load(a, shuffle=(b is None), workers=1)"),
        ("load((a))  # )", "load((a), workers=1)  # )"),
        ("load(a, b=((1)),)", "load(a, b=((1)), workers=1,)"),
        ("load(\n    a,\n    b=(1),\n)", "load(\n    a,\n    b=(1),\n    workers=1,\n)"),
        ("load(\n    a,\n    b=(\n        1  # )\n    )\n)", None),
        ("load(a for a in b)", "load(a for a in b)"),
    ],
)
def test_a_keyword_follows_the_parentheses_around_the_last_argument(call, changed, tmp_path):
    source = source_of(tmp_path, f"{call}\n")
    added = source.keyword("loader", ["load"], {"workers": "1"})
    text = source.files()[Path("train.py")] if added else f"{call}\n"
    names = [k.arg for k in ast.parse(text).body[0].value.keywords]
    assert ("workers" in names) == (changed != call)
    assert changed is None or text == f"{changed}\n"


@pytest.mark.parametrize(
    ("call", "edited"),
    [
        ("DataLoader(data, 8, True)", True),
        ("DataLoader(data, 8, True, None, None, 4)", False),  # the last one is num_workers
        ("DataLoader(data)\nDataLoader(data, 8, True, None, None, 4)", False),
    ],
)
def test_workers_may_be_given_by_position(call, edited, tmp_path):
    source = source_of(tmp_path, f"{call}\n")
    assert DataWorkers().edit(source, {}) == edited
    assert ("num_workers" in source.diff()) == edited


def test_a_line_after_the_imports_finds_the_module_that_it_uses(tmp_path):
    source = source_of(tmp_path, "from torch import nn\nx = 1\n")
    assert source.after_imports(["torch.seed()"])
    changed = source.files()[Path("train.py")]
    assert changed == "from torch import nn\nimport torch\n\ntorch.seed()\nx = 1\n"


def test_all_calls_of_a_function_get_a_keyword_in_the_layout_that_they_have(tmp_path):
    """Not those of another library, and those that choose other kernels."""
    kept = "if x:\n    c = other.Adam(p)\nd = Adam(p, foreach=True)\n"
    text = "a = Adam(p, lr=1)\nb = Adam(\n    q,\n    lr=2,\n)\n"
    source = source_of(tmp_path, text + kept, optimizer=1)
    assert FusedOptimizer().edit(source, {"optimizers": ["Adam"]})
    new = "a = Adam(p, lr=1, fused=True)\nb = Adam(\n    q,\n    lr=2,\n    fused=True,\n)\n"
    assert source.files() == {Path("train.py"): new + kept}


def test_only_calls_that_made_an_optimizer_are_changed(tmp_path):
    """It may come from a name in a configuration, or from another file."""
    text = "if name:\n    a = getattr(torch.optim, name)(p)\nelse:\n    a = torch.optim.Adam(p)\n"
    source = source_of(tmp_path, text, optimizer=2)
    assert not FusedOptimizer().edit(source, {"optimizers": ["Adam"]})
    (tmp_path / "own.py").write_text("class Own(Optimizer): ...\nb = Adam(p)\n")
    made = {f"optimizer {n}": (str(tmp_path / "own.py"), n) for n in (1, 2)}
    source = Source(tmp_path, source.script, made)
    assert FusedOptimizer().edit(source, {"optimizers": ["own.Own", "Adam"]})
    assert "b = Adam(p, fused=True)" in source.files()[Path("own.py")]


@pytest.mark.parametrize(
    ("line", "edited"),
    [
        ("y = model(x)  # ;", True),
        ("x = x + 1; y = model(x)", False),
        ("y = model(x); y.backward()", False),
        ("loss(model(x), x).mean().backward()", False),
        ("y = z = model(x)", False),
        ("if x: y = model(x)", False),
        ('y = model(x) + f("""a\n""")', False),  # Its text would be indented.
        ("y = model(x)\nz = model(x)", True),
        ("y = model(x)\nif model(x): z = 1", False),
        ("def f():\n    return loss(model(x), x)", True),
        ("def f():\n    return model(x)", True),
    ],
)
def test_all_calls_of_the_model_are_put_under_the_statement_or_none(line, edited, tmp_path):
    source = source_of(tmp_path, f"{line}\n")
    assert source.around_call("with low():", "", None) == edited
    assert source.diff().count("with low") == line.count("model(x)") * edited


class Configuration(UserDict):
    __or__ = None


@pytest.mark.parametrize(
    ("call", "edited"),
    [
        ("load(1, **options)", "load(1, **{{**options, {0}, {1}}})"),
        ("load(1, **options, size=2)", "load(1, **{{**options, {0}, {1}}}, size=2)"),
        (
            "load(\n    1, **dict(\n        options\n    ),\n)",
            "load(\n    1, **{{**dict(\n        options\n    ), {0}, {1}}},\n)",
        ),
        ("load(**options)", "load(**{{**options, {0}, {1}}})"),
        ("load()", "load(workers=1, pinned=True)"),
        (
            "load(load(1, **options))",
            "load(load(1, **{{**options, {0}, {1}}}), workers=1, pinned=True)",
        ),
        ("load(1, **options, **more)", None),
        ("load(1, **(options or {}))", None),
    ],
)
def test_keywords_that_a_call_may_get_from_a_mapping_are_replaced_there(call, edited, tmp_path):
    source = source_of(tmp_path, f"{call}\n")
    for given in ({"workers": "1"}, {"pinned": "True"}):
        assert source.keyword("loader", ["load"], given) == (edited is not None)
    if edited:
        changed = source.files()[Path("train.py")]
        assert changed == edited.format('"workers": 1', '"pinned": True') + "\n"
        # Configurations of OmegaConf are mappings, but no dictionaries.
        here = {"load": lambda *_, **options: options, "options": Configuration(workers=0)}
        assert eval(changed, here).items() >= {("workers", 1), ("pinned", True)}


def test_the_line_that_starts_a_library_is_not_the_call_of_the_model():
    library: dict[str, Any] = {"__name__": "library.loop"}
    code = "def train(watch, model): watch.found(model)"
    exec(compile(code, "/lib/site-packages/library/loop.py", "exec"), library)
    model, watch = nn.Linear(2, 2), Watch(Boundaries())
    library["train"](watch, model)
    assert (watch.places, watch.caller) == ({}, "library")
    watch.found(model)
    assert watch.places["call"][0] == str(Path(__file__).resolve())


@pytest.mark.parametrize(
    ("name", "short"),
    [
        *(("plain", False), ("checkpointed", False), ("autocast", True), ("half", True)),
        *(("a part", False), ("a part in 16 bits", True)),
        *(("compiled", None), ("custom", None), ("unseen", None), ("sharded", False)),
    ],
)
def test_a_training_in_float32_is_told_from_one_that_may_have_fewer_bits(name, short):
    class Custom(torch.autograd.Function):
        forward, backward = staticmethod(lambda ctx, x: x + 0), staticmethod(lambda ctx, g: g)

    model, x = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), torch.ones(2, 2)
    groups = import_module("torch.distributed.fsdp._fully_shard._fsdp_param_group")
    after_backward = groups.RegisterPostBackwardFunction
    low = torch.autocast("cpu", torch.bfloat16)(model[0])
    watch = Watch(Boundaries())
    watch.boundaries.modules.append(model)
    losses = {
        "plain": lambda: model(x),
        "checkpointed": lambda: checkpoint(model, x.requires_grad_(), use_reentrant=True),
        "a part": lambda: model(x)[0].relu_(),
        "a part in 16 bits": lambda: torch.zeros(2, 2)[0].copy_(low(x)[0]),
        "autocast": lambda: low(x).float(),
        "half": lambda: model.bfloat16()(x.bfloat16()).float(),
        "compiled": lambda: torch.compile(model, backend="aot_eager")(x),
        "custom": lambda: Custom.apply(model(x)),
        "sharded": lambda: after_backward.apply(None, model(x))[0],
    }
    if name in losses:
        watch.look_at([losses[name]().sum()])
    assert watch.facts()["short"] is short


@pytest.mark.parametrize(
    ("features", "short"),
    [(["avx2"], False), (["amx_bf16", "avx2"], True), (["asimd"], True), ([], True)],
)
def test_a_cpu_may_ignore_the_precision_of_products(features, short, monkeypatch):
    monkeypatch.setattr("transformer_core.tune.facts.cpu_features", lambda: features)
    watch = Watch(Boundaries())
    watch.boundaries.modules.append(nn.Linear(2, 2))
    watch.look_at([watch.boundaries.modules[0](torch.ones(1, 2)).sum()])
    assert watch.facts()["short"] is False
    torch.set_float32_matmul_precision("medium")
    found = watch.facts()["short"]
    torch.set_float32_matmul_precision("highest")
    assert found is short


@pytest.mark.parametrize(
    ("layer", "capability", "short"),
    [
        (nn.Conv1d(2, 2, 1), (8, 0), True),
        (nn.Conv1d(2, 2, 1), (7, 5), False),  # which ignores the setting
        (nn.LSTM(2, 2), (9, 0), True),
        (nn.Linear(2, 2), (9, 0), False),
    ],
)
def test_layers_on_a_gpu_compute_in_tf32_by_default(layer, capability, short, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = formats_of_products([nn.Sequential(layer)], torch.device("cuda", 1))
    assert ("tf32" in found) == short


def test_kept_activations_drop_all_options_of_a_checkpoint(monkeypatch):
    monkeypatch.setattr(torch.utils.checkpoint, "checkpoint", None)
    technique = KeptActivations()
    technique.prepare(Watch(Boundaries()))
    kept = torch.utils.checkpoint.checkpoint
    assert kept(pow, 2, exp=3, use_reentrant=False, early_stop=False) == 8
    assert technique.without_effect() is None


def test_recomputed_blocks_give_the_same_gradients(tmp_path):
    technique, found = RecomputedBlocks(), []
    for again in (False, True):
        torch.manual_seed(1)
        block = nn.TransformerEncoderLayer(4, 1, 8, dropout=0.5)
        encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        # Larger layers without parts of their own are no blocks.
        model = nn.Sequential(nn.Linear(4, 100), nn.Linear(100, 4), encoder)
        if again:
            technique.module(model)
        torch.manual_seed(2)
        model(torch.randn(3, 1, 4)).exp().sum().backward()
        found.append([p.grad for p in model.parameters()])
    assert technique.applied == 2
    torch.testing.assert_close(found[1], found[0])


def test_blocks_are_recomputed_once_however_often_the_changed_function_is_called(tmp_path):
    text = "def train(model, x):\n    for _ in range(2):\n        y = model(x)\n"
    source = source_of(tmp_path, text)
    assert RecomputedBlocks().edit(source, {"block": "Sequential"})
    changed: dict[str, Any] = {}
    exec(source.files()[Path("train.py")], changed)
    block, checkpoint = nn.Sequential(nn.Linear(2, 2)), torch.utils.checkpoint.checkpoint
    forward = block.forward
    for _ in range(3):
        changed["train"](nn.Sequential(block), torch.ones(2))
    assert block.forward.func is checkpoint
    assert block.forward.args == (forward,)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + x


@pytest.mark.parametrize("call", [nn.Module.__call__, Block.forward])
def test_blocks_are_compiled_only_if_they_are_called(call, monkeypatch):
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="eager"))
    torch._dynamo.utils.counters.clear()
    technique, model = CompiledBlocks(), nn.Sequential(Block(), Block())
    technique.module(model)
    assert technique.without_effect()
    for block in model:
        call(block, torch.ones(2, 2))
    assert (technique.without_effect() is None) == (call is not Block.forward)


def test_settings_of_the_user_are_kept_beside_those_of_an_allocator(monkeypatch):
    monkeypatch.setattr("ctypes.util.find_library", "lib{}.so.2".format)
    own = {"LD_PRELOAD": "libmine.so", "MALLOC_CONF": "thp:never"}
    own |= {"GLIBC_TUNABLES": "glibc.mine=1", "PYTORCH_CUDA_ALLOC_CONF": "roundup:8"}
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    found: dict[str, str] = {}
    for name in ("jemalloc", "allocator_huge_pages", "expandable_segments"):
        found |= TECHNIQUES[name].environment({})
    assert found["LD_PRELOAD"] == "libjemalloc.so.2:libmine.so"
    assert found["MALLOC_CONF"].startswith("thp:never,dirty_decay_ms:-1,")
    assert found["GLIBC_TUNABLES"] == "glibc.mine=1:glibc.malloc.hugetlb=1"
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == "roundup:8,expandable_segments:True"
    assert "PYTORCH_ALLOC_CONF" not in found
    # torch prefers this name to the other.
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    both = TECHNIQUES["expandable_segments"].environment({})
    assert both["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:64,expandable_segments:True"
    assert both["PYTORCH_CUDA_ALLOC_CONF"] == found["PYTORCH_CUDA_ALLOC_CONF"]


def test_a_handwritten_optimizer_of_a_known_name_has_no_fused_kernel():
    own = type("AdamW", (torch.optim.Optimizer,), {"__module__": "mine"})
    extended = type("SGD", (torch.optim.SGD,), {})
    made = [kind([torch.nn.Parameter(torch.ones(2))], {"lr": 0.1}) for kind in (own,)]
    made += [kind([torch.nn.Parameter(torch.ones(2))]) for kind in (extended, torch.optim.AdamW)]
    assert [_class_of(each) for each in made] == ["mine.AdamW", "SGD", "AdamW"]
    why = TECHNIQUES["fused_optimizer"].obstacle({"optimizers": ["mine.AdamW"]})
    assert "uses mine.AdamW; torch has" in why


@pytest.mark.parametrize("name", ["module.1", "1"])
def test_the_output_layer_of_a_model_on_several_ranks_is_found_by_both_names(name):
    wrapped = torch.nn.parallel.DistributedDataParallel.__new__(
        torch.nn.parallel.DistributedDataParallel
    )
    torch.nn.Module.__init__(wrapped)
    wrapped.module = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9))
    made = type(TECHNIQUES["chunked_loss"])()
    made.facts = {"head": None, "heads": [f"0:{name}"]}
    made.prepare(SimpleNamespace(boundaries=SimpleNamespace(modules={wrapped: None})))
    made.module(wrapped)
    assert type(wrapped.module(torch.ones(2, 3, dtype=torch.int64))).__name__ == "LazyLogits"


def test_float8_takes_batches_of_any_size(monkeypatch):
    """Without padding, kernels refuse gradients of weights if a batch has no multiple of 16 tokens."""
    given: list[Any] = []

    def convert(module: nn.Module, config: Any, module_filter_fn: Any) -> None:
        given.append((config, [module_filter_fn(part, "") for part in module.children()]))

    library = SimpleNamespace(Float8LinearConfig=dict, convert_to_float8_training=convert)
    monkeypatch.setitem(sys.modules, "torchao.float8", library)
    technique = type(TECHNIQUES["float8"])()
    technique.module(nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 10)))
    assert given == [({"pad_inner_dim": True}, [True, False])]
    assert technique.without_effect() is None
    assert "pad_inner_dim=True" in technique.lines({"caller": ""})[0]


ADAMW = {"device": "cpu", "optimizers": ["AdamW"], "formats": ["float32"]}
ATTENTION = {"device": "cpu", "counts": {"scaled_dot_product_attention": 2}}
PLAIN = {"device": "cpu", "compiled": False, "block": "Block", "named": []}
LOADERS = {"device": "cpu", "loaders": [{"workers": 0}, {"workers": 2}]}
GPU = {"device": "cuda"}


@pytest.mark.parametrize(
    ("name", "facts", "why"),
    [
        ("float8", {"device": "cpu", "capability": None}, "need a GPU"),
        ("float8", {"device": "cuda", "capability": (8, 6)}, "this GPU has 8.6"),
        ("float8", {"device": "cuda", "capability": (8, 9)}, "pip install torchao"),
        ("fp16", PLAIN, "name it (--only fp16)"),
        ("tf32", PLAIN, "needs a GPU"),
        ("tf32", GPU | {"capability": (9, 0)}, None),
        # torch accepts and ignores the setting.
        ("tf32", GPU | {"capability": (7, 5)}, "this GPU has 7.5"),
        # It would be tf32 under another name, and with the tolerance of bfloat16.
        ("bf16_matmul", GPU, "this is tf32"),
        ("compiled_blocks", PLAIN | {"compiled": True}, "compiles its model already"),
        ("compiled_blocks", PLAIN | {"block": None}, "no layer that repeats"),
        ("compiled_blocks", PLAIN, "apt-get install g++"),
        ("compiled_blocks", PLAIN | GPU, None),
        ("compiled_model", PLAIN, "name it (--only compiled_model)"),
        ("compiled_model", PLAIN | {"named": ["compiled_model"]}, "apt-get install g++"),
        ("compiled_model", PLAIN | GPU | {"block": None}, None),
        ("data_workers", LOADERS, None),
        ("data_workers", {"loaders": []}, "no torch DataLoader"),
        ("data_workers", {"loaders": [{"workers": 2}]}, "workers already"),
        ("pinned_memory", LOADERS, "copies to a GPU"),
        ("pinned_memory", LOADERS | GPU, None),
        ("pinned_memory", GPU | {"loaders": []}, "no torch DataLoader"),
        ("fused_optimizer", ADAMW | {"groups": [{"fused": None, "foreach": None}]}, None),
        ("foreach_optimizer", ADAMW | {"groups": [{"fused": None, "foreach": None}]}, None),
        # As transformers' Trainer does.
        ("fused_optimizer", ADAMW | {"groups": [{"fused": True}]}, "fused already"),
        ("fused_optimizer", ADAMW | {"formats": ["complex64", "float32"]}, "complex64 weights"),
        ("foreach_optimizer", ADAMW | {"groups": [{"fused": True}]}, "chooses the kernels"),
        ("fused_optimizer", ADAMW | {"groups": [{"fused": False}]}, "chooses the kernels"),
        ("sdpa_math", ATTENTION, None),
        ("sdpa_math", ATTENTION | {"counts": {}}, "does not call"),
        ("sdpa_flash", ATTENTION, "first choice"),
        ("sdpa_flash", ATTENTION | {"device": "cuda"}, None),
    ],
)
def test_a_technique_says_why_it_cannot_be_tried(name, facts, why, monkeypatch):
    monkeypatch.setattr("transformer_core.tune.techniques.formats.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    found = TECHNIQUES[name].obstacle(facts)
    assert found is None if why is None else why in str(found)


@pytest.mark.parametrize(
    ("names", "rounding"),
    [
        ([], "exact"),
        (["gc_off"], "exact"),
        (["tf32", "fused_optimizer"], "tf32"),
        (["float8", "bf16"], "float8"),
    ],
)
def test_a_side_rounds_as_its_coarsest_technique(names, rounding):
    side = Side("changed", tuple(names))
    assert side.rounding == rounding
    # The floor that its certificate needs.
    noise = {floor.noise for floor in floors([side])}
    assert noise == {NOISE["float32"], NOISE[rounding]}


def test_lines_where_the_host_waits_are_counted_and_other_warnings_shown(monkeypatch):
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *more: shown.append(str(message)))
    with warnings.catch_warnings():
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        watch = Watch(Boundaries())
        watch.look_for_waits()
        for place, line in (("/home/me/train.py", 7), ("/x/site-packages/y.py", 8)):
            for text in ("called a synchronizing CUDA operation", "something else"):
                warnings.warn_explicit(text, UserWarning, place, line)
    assert dict(watch.waits) == {"train.py:7": 1}
    assert shown == ["something else"] * 2


def test_parts_of_memory_tell_how_much_larger_a_batch_could_be():
    parts = {"libraries": 10, "weights": 5, "gradients": 5, "optimizer": 10}
    assert larger_batch(parts | {"peak": 40, "room": 100}) == 6
    assert larger_batch(parts | {"peak": 30, "room": 100}) == 0
    answer = Answer("train.py", memory=parts | {"peak": 40, "room": 100})
    answer.facts = {"waits": {"train.py:7": 3}}
    waits, batch = notes(answer)
    assert "train.py:7 (3 times)" in waits
    assert "A batch about 6 times as large" in batch


def test_a_folder_stays_as_it_was(tmp_path):
    folder, scratch = tmp_path / "user", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    (folder / "model.pt").write_text("old", encoding="utf-8")
    write = "cat model.pt && echo new > model.pt && echo more > other && cat model.pt"
    place, overlay = isolated(folder, scratch)
    # The process sees the overlay only after it changes into the folder again.
    command = inside(overlay, ["sh", "-c", f"cd {place}; {write}"])
    ended = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
    assert ended.stdout == "oldnew\n"
    assert [path.name for path in folder.iterdir()] == ["model.pt"]
    assert (folder / "model.pt").read_text(encoding="utf-8") == "old"


def test_a_process_sees_edited_files_outside_its_folder_in_place_of_others(tmp_path):
    folder, scratch, library = (tmp_path / name for name in ("user", "scratch", "library.py"))
    folder.mkdir()
    scratch.mkdir()
    library.write_text("old")
    _, overlay = isolated(folder, scratch)
    if not overlay:
        pytest.skip("this system allows no overlays")
    edited = scratch / isolation.OUTSIDE / library.relative_to("/")
    edited.parent.mkdir(parents=True)
    edited.write_text("new")
    command = inside(overlay, ["cat", str(library)])
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (ended.stdout, library.read_text()) == ("new", "old")


def test_folders_that_are_linked_or_mounted_stay_as_they_were(tmp_path):
    folder, scratch, disk = (tmp_path / name for name in ("user", "scratch", "disk"))
    for each in (folder / "data", scratch, disk):
        each.mkdir(parents=True)
    (folder / "checkpoints").symlink_to("../disk")
    (folder / "up").symlink_to("..")
    (disk / "last.pt").write_text("old", encoding="utf-8")
    _, overlay = isolated(folder, scratch)
    if not overlay:
        pytest.skip("this system allows no overlays")
    write = "cat checkpoints/last.pt data/train.txt && echo new | tee checkpoints/last.pt data/train.txt"
    command = inside(overlay, ["sh", "-c", f"cd {folder}; {write}"])
    mount = f"cd {folder}; mount -t tmpfs none data && echo -n tokens > data/train.txt || exit 77"
    outer = ["unshare", "-m", "sh", "-c", f'{mount}; "$@"; cat data/train.txt', "sh", *command]
    ended = subprocess.run(outer, capture_output=True, text=True, check=False)
    assert (disk / "last.pt").read_text(encoding="utf-8") == "old"
    if ended.returncode == 77:
        pytest.skip("only root may mount a file system")
    assert ended.stdout == "oldtokensnew\ntokens"


def test_a_copy_leaves_out_results_and_their_size(tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "overlay_works", lambda folder, parent: False)
    monkeypatch.setattr(isolation, "LARGEST_COPY", 100)
    folder, scratch = tmp_path / "user", tmp_path / "scratch"
    (folder / "results").mkdir(parents=True)
    (folder / "train.py").write_text("pass\n")
    (folder / "results/large").write_bytes(bytes(1000))
    # Without its mark, a folder of this name is the user's.
    with pytest.raises(isolation.TooLarge, match="start in a folder that has the script"):
        isolated(folder, scratch)
    (folder / "results/.study").write_text("mine\n")
    place, overlay = isolated(folder, scratch)
    assert inside(overlay, ["python", "train.py"]) == ["python", "train.py"]
    assert [path.name for path in place.iterdir()] == ["train.py"]


def test_a_copy_leaves_out_what_cannot_be_copied_and_says_what_else_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "overlay_works", lambda folder, parent: False)
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "train.py").touch()
    os.mkfifo(folder / "pipe")
    place, _ = isolated(folder, tmp_path / "scratch")
    assert [path.name for path in place.iterdir()] == ["train.py"]
    (tmp_path / "file").touch()
    with pytest.raises(isolation.TooLarge, match="set TMPDIR"):
        isolated(folder, tmp_path / "file")


def test_temporary_files_are_never_in_the_folder_of_the_script(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    assert isolation.outside([Path("/etc")]) == str(tmp_path / "tmp")
    assert not Path(isolation.outside([Path("/etc"), tmp_path])).is_relative_to(tmp_path)
    with pytest.raises(isolation.TooLarge, match="start in a folder"):
        isolated(tmp_path, Path(tmp_path, "tmp/scratch"))


def test_gradients_in_float16_are_scaled_only_inside_the_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
    data = torch.randn(16, 32, requires_grad=True)

    def gradients(narrow: bool = False) -> list[Tensor]:
        # A loss so small that float16 loses its gradient.
        with torch.autocast("cpu", torch.float16, enabled=narrow):
            logits = model(data)
        loss = logits.float().square().mean() * 1e-5
        return list(torch.autograd.grad(loss, [*model.parameters(), data]))

    own, lost = gradients(), gradients(narrow=True)
    technique = TECHNIQUES["fp16"]
    technique.facts = {"factory": False}
    technique.module(model)
    found = gradients()

    def apart(others: list[Tensor]) -> float:
        return max(float((a - b).norm() / a.norm()) for a, b in zip(own, others, strict=True))

    assert apart(found) < 0.02 < apart(lost)


def test_a_layout_is_set_although_the_module_overrides_to():
    class Layer(nn.Conv2d):
        def to(self, device):
            return super().to(device)

    layer = Layer(3, 4, 3)
    TECHNIQUES["channels_last"].module(layer)
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("kinds", "fits"), [("2", True), ("12", True), ("1", False), ("23", False)]
)
def test_only_a_model_of_images_gets_their_layout(kinds, fits):
    watch = Watch(Boundaries())
    layers = {"1": nn.Conv1d, "2": nn.ConvTranspose2d, "3": nn.Conv3d}
    watch.boundaries.modules.append(nn.Sequential(*(layers[kind](1, 1, 1) for kind in kinds)))
    assert (TECHNIQUES["channels_last"].obstacle(watch.facts()) is None) == fits


def test_the_output_layer_may_be_a_model_of_its_own(monkeypatch):
    """Embedding and output layer are called one after another, without a module around them."""
    boundaries, technique = Boundaries(), TECHNIQUES["chunked_loss"]
    monkeypatch.setattr(technique, "facts", {"head": None, "heads": ["1:"]}, raising=False)
    monkeypatch.setattr(technique, "watch", SimpleNamespace(boundaries=boundaries), raising=False)
    for module in (nn.Embedding(5, 4), nn.Linear(4, 5)):
        boundaries.modules.append(module)
        technique.module(module)
    assert isinstance(boundaries.modules[1](torch.ones(2, 4)), LazyLogits)


@pytest.mark.parametrize("shape", [(-1, 6), (6, -1), (2, -1), (2, 18), (2, -1, 6), (-1,)])
def test_logits_in_another_shape_are_the_same(shape):
    head, hidden = nn.Linear(4, 6), torch.randn(2, 3, 4)
    found = LazyLogits(hidden, head, head).view(*shape)
    lazy = isinstance(found, LazyLogits)
    assert lazy == (shape in [(-1, 6), (6, -1), (2, -1, 6)])
    torch.testing.assert_close(found.computed() if lazy else found, head(hidden).view(shape))


def test_logits_that_are_changed_before_the_loss_are_computed():
    """Gemma divides them, and Python looks operators up in the class."""
    head, hidden = nn.Linear(4, 6), torch.randn(2, 3, 4)
    logits, plain = LazyLogits(hidden, head, head), head(hidden)
    for change in (
        *(lambda x: x / 30, lambda x: 30 * x, lambda x: -x, lambda x: 1 - x, lambda x: x**2),
        *(lambda x: abs(x), lambda x: x > 0, lambda x: x == x, lambda x: x.view(torch.int32)),
    ):
        torch.testing.assert_close(change(logits), change(plain), rtol=0, atol=0)
    assert len(logits) == 2


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_the_loss_in_chunks_goes_with_formats_of_16_bits(name):
    """On GPUs without bfloat16, float16 is the faster one, and the chunks are tried on top of it: the
    gradients of both must have one scale, and logits that the script reads one format."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 50))
    tokens = torch.arange(20).view(2, 10)

    def gradients(model: nn.Module) -> tuple[list[Tensor], Any]:
        logits = model(tokens)
        loss = F.cross_entropy(logits.view(-1, 50), tokens.flatten() + 1)
        assert logits.argmax(-1).shape == tokens.shape
        assert torch.softmax(logits, -1).dtype == torch.float32
        return list(torch.autograd.grad(loss, [*model.parameters()])), logits

    expected, _ = gradients(plain)
    model = deepcopy(plain)
    format_, chunks = (type(TECHNIQUES[each])() for each in (name, "chunked_loss"))
    format_.facts = {"factory": None}
    chunks.facts = {"head": "0:2"}
    chunks.watch = SimpleNamespace(boundaries=SimpleNamespace(modules=[model]))
    for technique in (format_, chunks):
        technique.module(model)
    found, logits = gradients(model)
    assert isinstance(logits, LazyLogits)
    for ours, reference in zip(found, expected, strict=True):
        assert (ours - reference).norm() < 0.02 * reference.norm()


@pytest.fixture
def together(monkeypatch):
    """Applies new techniques to the outermost modules of a side, in the order of its own, and lets torch
    compile nothing."""
    fresh = {name: type(technique)() for name, technique in TECHNIQUES.items()}
    monkeypatch.setattr(tune_side, "TECHNIQUES", fresh)
    monkeypatch.setattr(tune_side, "connect", lambda *_: None)
    monkeypatch.setattr(torch, "compile", lambda call, **_: call)

    def apply(names: tuple[str, ...], *modules: nn.Module, head: str = "") -> None:
        changed = tune_side.Side(Order("own", ("train.py",), "", "", "", names))
        for module in modules:
            changed.boundaries.modules.append(module)
            for technique in changed.techniques:
                technique.facts = {"factory": None, "head": head}
                technique.watch = changed.watch
                technique.module(module)

    return apply


@pytest.mark.slow
@pytest.mark.parametrize(
    "compiles", [lambda m: m.compile(), lambda m: m[0].compile(), torch.compile]
)
def test_a_script_that_compiles_its_model_in_any_way_is_not_compiled_again(compiles):
    """Its own options would be lost."""
    watch, model = Watch(Boundaries()), nn.Sequential(nn.Linear(2, 2))
    watch.boundaries.modules.append(model)
    wrap(model, lambda call, *given: call(*given))  # by a technique that the task has applied
    assert not watch.facts()["compiled"]
    watch.boundaries.modules[0] = compiles(model) or model
    facts = watch.facts() | {"device": "cuda"}
    assert TECHNIQUES["compiled_model"].obstacle(facts) == "the script compiles its model already"


@pytest.mark.parametrize("names", [("bf16", "compiled_model"), ("compiled_model", "fp16")])
def test_a_compiled_model_still_computes_in_16_bits(together, names):
    """The compiler replaces the call of a module; names of a combination are sorted."""
    model, formats = nn.Sequential(nn.Linear(4, 4)), []
    model[0].register_forward_hook(lambda part, given, result: formats.append(result.dtype))
    together(names, model)
    assert model(torch.ones(2, 4)).dtype == torch.float32
    assert formats in ([torch.bfloat16], [torch.float16])


@pytest.mark.slow
@pytest.mark.parametrize("noise", [NOISE["tf32"], NOISE["bfloat16"]])
@pytest.mark.parametrize("in_place", [True, False])
def test_results_inside_a_model_that_compiles_itself_are_not_disturbed(
    monkeypatch, noise, in_place
):
    """The compiler would trace what disturbs them, and refuse with fullgraph. nanoGPT compiles its model before
    DistributedDataParallel holds it."""

    class Model(nn.Module):  # of the script: the compiler enters none of torch's alone
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x)

    monkeypatch.setattr(tune_side, "connect", lambda *_: None)
    model = Model()
    how = {"fullgraph": True, "backend": "eager"}
    made = model.compile(**how) or model if in_place else torch.compile(model, **how)
    weight = model.linear.weight.detach().clone()
    outer = nn.Sequential(made, nn.Linear(4, 4))
    for outermost in (made, outer):
        tune_side.Side(Order("floor", ("train.py",), "", "", "", noise=noise))._found(outermost)
        assert outermost(torch.ones(2, 4)).requires_grad
    assert not torch.equal(model.linear.weight, weight)
    assert not model.linear._forward_hooks
    assert outer[1]._forward_hooks


def test_gradients_of_a_head_that_the_script_calls_itself_have_one_scale(together):
    torch.manual_seed(0)
    plain, hidden = nn.Linear(16, 50), torch.randn(20, 16)

    def gradient(head: nn.Module) -> Tensor:
        logits = head(hidden)
        assert isinstance(logits, Tensor if head is plain else LazyLogits)
        return torch.autograd.grad(F.cross_entropy(logits, torch.arange(20)), head.weight)[0]

    head = deepcopy(plain)
    together(("chunked_loss", "fp16"), head, head="0:")
    expected = gradient(plain)
    assert (gradient(head) - expected).norm() < 0.02 * expected.norm()


def test_an_output_layer_in_float8_still_computes_its_loss_in_chunks(together, monkeypatch):
    def convert(module: nn.Module, config: Any, module_filter_fn: Any) -> None:
        for name, part in module.named_children():
            assert module_filter_fn(part, name)
            setattr(module, name, nn.Linear(part.in_features, part.out_features))  # a new one

    library = SimpleNamespace(Float8LinearConfig=dict, convert_to_float8_training=convert)
    monkeypatch.setitem(sys.modules, "torchao.float8", library)
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 32))
    together(("chunked_loss", "float8"), model, head="0:1")
    assert isinstance(model(torch.ones(2, 16)), LazyLogits)


@pytest.fixture
def patched(monkeypatch):
    """Undoes what boundaries change in torch."""
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(import_module("torch.optim.optimizer"), name, OrderedDict())
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)


def test_optimizers_that_step_in_a_backward_pass_take_one_step_together(patched):
    boundaries = Boundaries()
    ends, updates = [], []
    boundaries.on_boundary = lambda: ends.append(len(boundaries.optimizers))
    boundaries.before_update = updates.append
    boundaries.install()
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    for parameter in model.parameters():
        own = torch.optim.SGD([parameter], lr=0.1)

        def hook(_, own=own):
            own.step()
            own.zero_grad()

        parameter.register_post_accumulate_grad_hook(hook)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
    assert (ends, len(updates), boundaries.cycle()) == ([4, 4, 4], 12, 1)


def test_a_step_whose_error_the_script_catches_is_no_boundary(patched):
    class Outer(torch.optim.SGD):
        """Calls another optimizer, as wrappers do, and fails in its first step."""

        def step(self):
            if self.param_groups[0].pop("fails", False):
                raise RuntimeError("out of memory")
            torch.optim.SGD(self.param_groups[0]["params"], lr=0.1).step()

    boundaries = Boundaries()
    ends = []
    boundaries.on_boundary = lambda: ends.append(boundaries.optimizers)
    boundaries.install()
    outer = Outer([nn.Parameter(torch.ones(1))], lr=0.1)
    outer.param_groups[0]["params"][0].sum().backward()
    outer.param_groups[0]["fails"] = True
    with pytest.raises(RuntimeError):
        outer.step()
    assert ends == []
    outer.step()
    outer.step()
    assert ends == [[outer]] * 2


def test_a_model_that_takes_its_own_steps_runs_unwatched_as_soon_as_others_do(patched):
    class Trainer(nn.Linear):
        def forward(self, x):
            super().forward(x).sum().backward()
            optimizer.step()

    boundaries, trainer, unwatched = Boundaries(), Trainer(2, 2), nn.Module.__call__
    boundaries.on_boundary = boundaries.stop_watching_modules
    optimizer = torch.optim.SGD(trainer.parameters(), lr=0.1)
    boundaries.install()
    trainer(torch.ones(1, 2))
    assert nn.Module.__call__ is unwatched


def test_steps_before_the_first_backward_pass_are_no_training(patched):
    """As of a script that draws the schedule of its rate before it trains."""
    boundaries, ends = Boundaries(), []
    boundaries.on_boundary = lambda: ends.append(boundaries.optimizers)
    boundaries.install()
    drawn, used = (torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1) for _ in range(2))
    drawn.step()
    assert ends == []
    used.param_groups[0]["params"][0].sum().backward()
    used.step()
    assert ends == [[used]]


@pytest.mark.parametrize("compared", [False, True])
def test_optimizers_that_the_script_drops_are_let_go_after_the_compared_steps(compared, patched):
    """Federated averaging makes a new one in each round, for a new copy of the model."""
    boundaries, first, gone = Boundaries(), None, []
    boundaries.compared = lambda: compared
    boundaries.install()
    for _ in range(3):
        weight = nn.Parameter(torch.ones(1))
        gone.append(weakref.ref(weight))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        first = first or optimizer
        weight.sum().backward()
        optimizer.step()
        seen = [parameter for _, parameter in boundaries.parameters()]
    assert boundaries.optimizers[0] is first
    assert boundaries.optimizers[-1] is optimizer
    assert [each is weight for each in seen] == [False] * (1 + compared) + [True]
    assert [ref() is None for ref in gone] == [False, not compared, False]


@pytest.mark.parametrize("step", [0, 9])
def test_late_compared_steps_know_only_the_optimizers_that_step_in_them(step, patched, monkeypatch):
    """Which of the dropped ones are still alive differs between two versions of a script."""
    boundaries, first = Boundaries(), []
    boundaries.install()
    dropped, used = (torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1) for _ in range(2))
    turn = {"steps": 1, "record": True, "profile": False}
    line = SimpleNamespace(recv_bytes=lambda: json.dumps({"kind": "Train", "task": turn}).encode())
    monkeypatch.setattr(tune_side, "signal_children", lambda *numbers: None)
    for optimizer in (dropped, used):
        optimizer.param_groups[0]["params"][0].sum().backward()
        optimizer.step()
    side = SimpleNamespace(line=line, recording=False, step=step, boundaries=boundaries)
    tune_side.Side._wait(side)
    boundaries.on_optimizer = lambda: first.extend(boundaries.parameters())
    used.step()
    assert boundaries.optimizers == ([used] if step else [dropped, used])
    assert [name for name, _ in first] == ["parameter 0"] * (step > 0)


def test_the_inputs_of_calls_inside_a_transformation_of_torch_are_not_read(patched):
    boundaries, model, read = Boundaries(), nn.Linear(4, 2), []
    boundaries.on_inputs = lambda module, args, kwargs: read.append(fingerprint([args, kwargs]))
    boundaries.install()
    torch.func.vmap(model)(torch.ones(3, 4))
    assert (boundaries.modules, read) == ([model], [])
    model(torch.ones(3, 4))
    assert len(read) == 1


def test_nothing_is_read_while_a_cuda_graph_is_captured(patched, monkeypatch):
    """As ``torch.cuda.make_graphed_callables`` does, on an imitated GPU."""
    boundaries, model, read, refused = Boundaries(), nn.Linear(4, 2), [], []
    boundaries.on_inputs = lambda module, args, kwargs: read.append(args)
    boundaries.on_captured_step = lambda: refused.append(True)
    boundaries.install()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for captured in (True, False):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda now=captured: now)
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        assert (len(read), len(refused)) == (not captured, 1)


def test_losses_may_be_overwritten_before_the_end_of_a_step(patched):
    """As by torch.compile(mode="reduce-overhead"), if a step has several backward passes."""
    boundaries, model = Boundaries(), nn.Linear(4, 2)
    boundaries.install()
    values = []
    for _ in range(2):
        loss = model(torch.ones(3, 4)).sum()
        values.append(float(loss))
        loss.backward()
        loss.data.zero_()
    assert [float(each) for each in boundaries.losses] == values
    assert all(values)


def test_parameters_without_values_are_not_read(patched):
    """Keras leaves some in layers whose shapes it has learned; its optimizers are not torch's."""
    boundaries, model = Boundaries(), nn.Sequential(nn.Linear(2, 2))
    model.left_behind = nn.Parameter(torch.empty(2, device="meta"))
    boundaries.install()
    for _ in range(BACKWARDS_WITHOUT_STEP):
        model(torch.ones(1, 2)).sum().backward()
    assert [name for name, _ in boundaries.parameters()] == ["0.weight", "0.bias"]
    assert not boundaries.updated_by_hand()


def test_a_weight_that_was_never_written_or_is_gone_is_not_updated_by_hand(patched):
    """An unused one may be NaN; FSDP2 puts some together for a backward pass, and FSDP1 divides others after it."""
    boundaries, model = Boundaries(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.unused = nn.Parameter(torch.full((2,), torch.nan))
    boundaries.install()
    for _ in range(BACKWARDS_WITHOUT_STEP):
        model(torch.ones(1, 2)).sum().backward()
    assert not boundaries.updated_by_hand()
    whole, model[0].weight = model[0].weight, nn.Parameter(torch.ones(1, 2))
    whole.data.zero_()
    model[1].weight.data = torch.zeros(1, 2)
    assert not boundaries.updated_by_hand()
    model[1].bias.data.neg_()
    assert boundaries.updated_by_hand()


def test_layers_that_have_no_parameters_yet_are_not_asked_for_them(patched):
    """A layer of Keras makes some of its variables if it is asked, and fails while it learns its shapes."""

    class Layer(nn.Module):
        def named_parameters(self, *args, **kwargs):
            raise RuntimeError("not built")

        def forward(self, x):
            return x

    boundaries = Boundaries()
    boundaries.install()
    assert Layer()(1) == 1
    assert not boundaries.modules


def test_a_call_from_which_lazy_layers_learn_their_shapes_is_none_of_the_training(patched):
    boundaries, model = Boundaries(), nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3))
    shapes = []
    boundaries.on_module = lambda module: shapes.extend(p.shape for p in module.parameters())
    boundaries.install()
    for _ in range(2):
        model(torch.ones(1, 2))
    assert shapes == [(2, 2), (2,), (3, 2), (3,)]
    assert boundaries.modules == [model]


def test_a_trace_of_a_model_is_none_of_its_training(patched):
    boundaries, read = Boundaries(), []
    boundaries.on_inputs = lambda module, args, kwargs: read.append(module)
    boundaries.install()
    model = torch.jit.trace(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2))
    assert not boundaries.modules
    model(torch.ones(1, 2))
    assert boundaries.modules == read == [model]


def test_the_parametrization_of_a_weight_is_no_model(patched):
    """It is called when it is registered, and whenever the weight is read."""
    boundaries = Boundaries()
    boundaries.install()
    model = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert model.weight.requires_grad
    model(torch.ones(1, 2))
    assert boundaries.modules == [model]


def test_statistics_that_are_parameters_are_compared_as_buffers(patched):
    """As in a model of Keras, whose optimizers are not torch's."""
    boundaries, model = Boundaries("backward"), nn.Linear(2, 2)
    model.moving_mean = nn.Parameter(torch.zeros(2), requires_grad=False)
    boundaries.install()
    model(torch.ones(1, 2)).sum().backward()
    assert [name for name, _ in boundaries.parameters()] == ["weight", "bias"]
    assert [name for name, _ in boundaries.buffers()] == ["moving_mean"]


WATCHED = """
import torch
from torch import nn
from torch.nn import functional
from transformer_core.tune.boundaries import Boundaries
from transformer_core.tune.disturbance import without_dropout
from transformer_core.tune.facts import Watch

boundaries = Boundaries()
boundaries.install()
watch = Watch(boundaries)
watch.install()
"""


def watched(code: str, folder: Path) -> str:
    """Runs ``code`` in a process that is watched and returns its output."""
    return output_of(WATCHED + code, folder)


@pytest.mark.slow
def test_compiled_code_is_not_compiled_again_because_it_is_watched(tmp_path):
    code = """
def attend(x):
    return functional.dropout(functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1))

def model(x):
    x = torch.utils.checkpoint.checkpoint(attend, x, use_reentrant=False)
    return functional.cross_entropy(x.flatten(0, 1), torch.zeros(8, dtype=torch.int64))

compiled = torch.compile(model, backend="aot_eager")
for _ in range(4):
    compiled(torch.randn(2, 4, 8, requires_grad=True)).backward()
counts = watch.facts()["counts"]
print(torch._dynamo.utils.counters["stats"]["unique_graphs"], *sorted(counts))
print(watch.facts()["classes"], watch.facts()["dropout"])
"""
    found = "1 checkpoint dropout scaled_dot_product_attention\n8 ['functional']\n"
    assert watched(code, tmp_path) == found


@pytest.mark.slow
def test_what_observes_a_compiled_step_is_not_compiled(tmp_path):
    code = """
seen, weight = [], nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight])
boundaries.on_boundary = lambda: seen.append(torch.compiler.is_compiling())
step = torch.compile(lambda: optimizer.step(), backend="eager")
for _ in range(3):
    weight.sum().backward()
    step()
print(*seen, torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""
    assert watched(code, tmp_path) == "False False False 1\n"


@pytest.mark.slow
def test_scripted_models_run_as_without_the_watch(tmp_path):
    code = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x):
        x = self.drop(self.norm(self.first(x))).view(1, 2, 4, 4)
        x = functional.scaled_dot_product_attention(x, x, x).view(8, 4)
        return functional.cross_entropy(x, torch.zeros(8, dtype=torch.int64))

for prepare in (lambda: None, lambda: without_dropout(set())):
    prepare()
    print(torch.jit.script(Model())(torch.randn(8, 4)).requires_grad)
"""
    assert watched(code, tmp_path) == "True\nTrue\n"


def test_the_error_of_a_call_of_the_script_is_its_own(patched):
    Boundaries().install()
    with pytest.raises(RuntimeError, match="does not require grad") as theirs:
        torch.ones(()).backward()
    assert not raised_here(theirs.value)
    with pytest.raises(RuntimeError, match="size of tensor") as of_a_builtin:
        Terms(SimpleNamespace(closely=True))._sum(torch.Tensor.add, torch.ones(2), torch.ones(3))
    assert not raised_here(of_a_builtin.value)


def test_attention_uses_the_chosen_kernel():
    math, flash = TECHNIQUES["sdpa_math"], TECHNIQUES["sdpa_flash"]
    query = torch.randn(1, 2, 8, 16)
    try:
        math.prepare(None)
        with torch.profiler.profile() as profile:
            F.scaled_dot_product_attention(query, query, query)
        assert "aten::_scaled_dot_product_attention_math" in {e.key for e in profile.key_averages()}
        flash.prepare(None)
        with pytest.raises(RuntimeError, match="No available kernel"):
            F.scaled_dot_product_attention(query, query, query, dropout_p=0.5)
    finally:
        for kernel in KERNELS:
            getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(True)


def test_workers_leave_the_order_of_later_passes_as_it_is():
    def passes(**given: Any) -> list[list[int]]:
        torch.manual_seed(0)
        loader = torch.utils.data.DataLoader(range(8), 2, shuffle=True, **given)
        return [[int(n) for batch in loader for n in batch] for _ in range(2)]

    assert passes(**DataWorkers.given) == passes()
