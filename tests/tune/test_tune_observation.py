"""Scripts of many kinds are observed without a change."""

import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from worker_builders import gone

from schemas.config.run_spec import ScriptTask
from transformer_core.run import coordinator
from transformer_core.tune import coordinator as tune_coordinator
from transformer_core.tune import isolation
from transformer_core.tune.certificate import trust
from transformer_core.tune.coordinator import Program, Session, Side, SideEnded, session
from transformer_core.tune.driver import CannotObserve, Say, learn, program_given, program_of
from transformer_core.tune.flow import LEAST_STEPS, Tuning
from transformer_core.tune.records import Record
from transformer_core.tune.sessions import (
    AGAIN,
    OWN,
    Measured,
    Outcome,
    Plan,
    Sessions,
    floors,
    status_of,
)
from transformer_core.tune.source import Source
from transformer_core.tune.techniques import TECHNIQUES
from transformer_core.tune.techniques.technique import NOISE

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parent / "scripts"


def recorded(run: Session, side: str, steps: int) -> Record:
    """The record of ``steps`` steps of a side."""
    run.steps(side, steps, record=True)
    return Record.read(run.records(side))


SEEN = {"closure": 2, "two_optimizers": 4, "accumulation": 2, "twin": 2}
"""Scripts, and the steps of each that are recorded; the twin is ``accumulation`` once more."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """The record and the facts of each of these scripts, from one session."""
    names = {name: "accumulation" if name == "twin" else name for name in SEEN}
    programs = {name: Program((f"{script}.py",), SCRIPTS) for name, script in names.items()}
    sides = [Side(name, program=program) for name, program in programs.items()]
    with session(programs["closure"], sides, tmp_path_factory.mktemp("seen")) as run:
        return {name: (recorded(run, name, n), run.facts(name)) for name, n in SEEN.items()}


def test_a_model_that_is_called_inside_vmap_is_observed_and_disturbed(tmp_path):
    sides = [Side("own"), Side("floor", noise=NOISE["bfloat16"])]
    with session(Program(("per_sample.py",), SCRIPTS), sides, tmp_path) as run:
        own, floor = (recorded(run, side.name, 3) for side in sides)
    assert len(own.of("gradient")) == 12
    assert not trust(own, floor)[0]


def test_a_step_with_a_closure_is_seen_from_its_first_update(seen):
    own, facts = seen["closure"]
    assert (facts["optimizers"], facts["modules"]) == (["LBFGS"], ["Sequential"])
    names = {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert {key[1:] for key in own.of("update")} == {(n, name) for n in (1, 2) for name in names}
    # All backward passes of a step belong to it.
    assert own.losses().shape[2] > 8


def test_two_optimizers_are_seen_from_their_first_updates(seen):
    own, facts = seen["two_optimizers"]
    assert facts["cycle"] == 2
    assert facts["modules"] == ["Sequential", "Sequential"]
    # The generator is called first, so its names have no number; the critic, number 1, steps first.
    first, second = ({name for _, n, name in own.of("update") if n == step} for step in (1, 2))
    assert first == {"1.0.weight", "1.0.bias", "1.2.weight", "1.2.bias"}
    assert second >= {"0.weight", "2.bias"}


def test_accumulation_with_scaler_autocast_and_workers_is_a_step(seen):
    own, facts = seen["accumulation"]
    assert trust(own, seen["twin"][0])[0]
    assert facts["autocast"]
    assert facts["loaders"] == [{"workers": 1, "pinned": False}]
    assert own.losses().shape == (1, 2, 12)


def test_weights_updated_by_hand_are_noticed(tmp_path):
    program = Program(("by_hand.py",), SCRIPTS)
    backward = Side("backward", program=replace(program, boundary="backward"))
    with session(program, [Side(OWN), backward], tmp_path) as run:
        with pytest.raises(SideEnded, match="no step") as ended:
            run.facts(OWN)
        own = recorded(run, "backward", 3)
    assert learn(ended.value, program, None, LEAST_STEPS, print) == (backward.program, None)
    assert {name for *_, name in own.of("gradient")} == {"weight", "bias"}


def test_the_folder_of_temporary_files_may_be_in_that_of_the_script(tmp_path, monkeypatch):
    shutil.copy(SCRIPTS / "plain.py", tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with session(Program(("plain.py",), tmp_path), [Side(OWN)], tmp_path / "logs") as run:
        assert run.steps(OWN, 1) > 0


def test_a_full_disk_is_not_the_fault_of_the_script(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setattr(tune_coordinator, "obstacle", lambda folder, threads: "/tmp is full")
    with (
        session(Program(("train.py",), tmp_path), [Side(OWN)], tmp_path / "logs") as run,
        pytest.raises(SideEnded, match="cannot be observed: /tmp is full"),
    ):
        run.facts(OWN)


def test_modules_files_pickles_and_copies_of_the_script_stay_its_own(tmp_path):
    folder = SCRIPTS / "modules"
    program = Program(("train.py", "--name", "two words"), folder)
    before = {path.name: path.read_bytes() for path in folder.glob("*.*")}
    sides = [Side(OWN), Side("bf16", ("bf16",))]
    with session(program, sides, tmp_path) as run:
        for side in sides:
            run.facts(side.name)
            run.steps(side.name, 6)
        assert not run.facts("bf16")["without_effect"]
    assert {path.name: path.read_bytes() for path in folder.glob("*.*")} == before


LOOP = """
import torch
from torch import nn
torch.manual_seed(1)
model = nn.Sequential(nn.Embedding(1200, 16), nn.Tanh(), nn.Linear(16, 1200))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
scaler = torch.amp.GradScaler("cpu", init_scale=1024)
for _ in range(100):
    tokens = torch.randint(0, 1200, (4, 8))
    loss = nn.functional.cross_entropy(model(tokens).view(-1, 1200), tokens.view(-1))
    optimizer.zero_grad()
    STEP
"""
STEPS = {
    "plain": "loss.backward(); optimizer.step()",
    "closure": "optimizer.step(lambda: (loss.backward(), loss)[1])",
    "scaler": "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
    "skipped": """for factor in (1e38, 1) if _ == 1 else (1,):
        optimizer.zero_grad()
        scaler.scale(loss * factor).backward(retain_graph=True)
        scaler.step(optimizer)
        scaler.update()""",
}
"""Steps of one training, written in several ways."""


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """The records of the plain step, and of all others and techniques that leave it the same
    training; of one with weights of 64 bits, too."""
    texts = {name: LOOP.replace("STEP", step) for name, step in STEPS.items()}
    default = "torch.set_default_dtype(torch.float64)\ntorch.manual_seed(1)"
    double = texts["plain"].replace("torch.manual_seed(1)", default)
    checkpoint = "torch.utils.checkpoint.checkpoint(model, tokens, use_reentrant=False)"
    recomputed = texts["plain"].replace("model(tokens)", checkpoint)
    sides = [
        Side(f"{kernel} {name}", (f"{kernel}_optimizer",), files={Path("train.py"): text})
        for name, text in texts.items()
        for kernel in ("foreach", "fused")
    ]
    sides.append(Side("chunked", ("chunked_loss",)))
    more = [
        Side(name, files={Path("train.py"): text})
        for name, text in (("recomputed", recomputed), ("double", double))
    ]
    folder = tmp_path_factory.mktemp("steps")
    (folder / "train.py").write_text(texts["plain"], encoding="utf-8")
    program, logs = Program(("train.py",), folder), tmp_path_factory.mktemp("logs")
    with session(program, [Side(OWN), *sides, *more], logs, facts={"head": "0:2"}) as run:
        found = {}
        for side in [*run.sides]:
            run.facts(side.name)
            found[side.name] = recorded(run, side.name, 3)
        assert run.facts(OWN)["heads"] == ["0:2"]
        assert not any(run.facts(side.name)["without_effect"] for side in sides)
    return found


@pytest.mark.parametrize(
    "side", [*(f"{kernel} {step}" for step in STEPS for kernel in ("foreach", "fused")), "chunked"]
)
def test_gradients_are_recorded_before_a_kernel_changes_them(side, steps):
    own, other = steps[OWN], steps[side]
    for kind in ("gradient", "update"):
        found, right = other.of(kind), own.of(kind)
        assert right
        for key in right:
            words = f"{kind} {key}"
            np.testing.assert_allclose(found[key], right[key], rtol=1e-4, atol=1e-7, err_msg=words)


def test_steps_that_a_scaler_skips_between_compared_ones_are_no_steps(tmp_path):
    """A fused kernel is called for them, and skips them itself."""
    skips = STEPS["skipped"].replace("_ == 1", "_ % 3 == 2")
    (tmp_path / "train.py").write_text(LOOP.replace("STEP", skips), encoding="utf-8")
    sides = [Side(kernel, (f"{kernel}_optimizer",)) for kernel in ("foreach", "fused")]
    with session(Program(("train.py",), tmp_path), sides, tmp_path / "logs") as run:
        late = []
        for side in sides:
            run.steps(side.name, 7)
            late.append(recorded(run, side.name, 2).losses())
    np.testing.assert_allclose(*late, rtol=1e-4)


def test_recomputed_calls_are_not_calls_of_the_script(steps):
    assert steps["recomputed"].equals(steps[OWN])


def test_weights_of_64_bits_are_recorded_as_they_were(steps):
    double = steps["double"]
    assert double.of("update")
    for key, update in double.of("update").items():
        assert np.any(update), key


CHANGED = ("ddp_bucket_view", "ddp_buckets_100mb", "ddp_no_sync", "freed_gradients")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """A session of two ranks, and of two with :data:`CHANGED`."""
    # Sides run at the same time, and may not share the port.
    command = ["torchrun", "--nnodes=1", "--master-port", "29511", "--nproc-per-node", "2"]
    command += ["ranks.py", "accumulate", "raise"]
    task = {"kind": "script", "command": command, "directory": str(SCRIPTS)}
    program = program_of(ScriptTask.model_validate(task))
    sides, logs = [Side(OWN), Side("options", CHANGED)], tmp_path_factory.mktemp("ranks")
    left = tmp_path_factory.mktemp("left")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(left))
        with session(program, sides, logs, facts={"passes": 2}) as run:
            yield run
    assert not [*left.glob("torchelastic*")]


def assert_the_same_gradients(found: Record, own: Record) -> None:
    given = found.of("gradient")
    for key, gradient in own.of("gradient").items():
        np.testing.assert_allclose(given[key], gradient, rtol=1e-5)


def test_ranks_of_torchrun_wait_together_and_options_give_the_same_gradients(ranks):
    facts = ranks.facts(OWN)
    own, other = (recorded(ranks, side, 3) for side in (OWN, "options"))
    assert (facts["world"], facts["ddp"], facts["passes"]) == (2, [{}], 2)
    assert facts["counts"]["zeroed"]
    assert not any(TECHNIQUES[name].obstacle(facts) for name in CHANGED)
    seen = ranks.facts("options")
    assert not seen["without_effect"]
    assert seen["ddp"] == [{"gradient_as_bucket_view": "True", "bucket_cap_mb": "100"}]
    assert_the_same_gradients(other, own)
    first, second = own.ranks
    # Each rank has its own batches and the same gradients, under names without the wrapper's.
    assert (first["inputs"] != second["inputs"]).any()
    assert (first["1 gradient 0.weight"] == second["1 gradient 0.weight"]).all()


def test_a_rank_that_fails_is_named_and_ends_those_that_wait_for_it(ranks, monkeypatch):
    """Even if all ranks have failed before any of them is heard."""

    def wait_for_all(connections, _):
        while not all(connection.poll(1) for connection in connections):
            pass
        return connections

    ranks.facts(OWN)
    started = psutil.Process(ranks.processes[OWN].pid).children(recursive=True)
    monkeypatch.setattr(coordinator, "wait", wait_for_all)
    assert ranks.attempt(ranks.steps, OWN, 20) is None
    assert all(gone(process.pid, 60) for process in started)
    assert ranks.failed[OWN].why == "rank 1: ValueError: rank 1 has no data"


KILLED = """
import os, signal, time
import torch

optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)])
while True:
    optimizer.param_groups[0]["params"][0].sum().backward()
    optimizer.step()
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""


def test_a_rank_that_the_system_kills_is_out_of_memory(tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    launcher = ("torchrun", "--nproc-per-node=2")
    with session(Program(("killed.py",), tmp_path, launcher), [Side(OWN)], tmp_path) as run:
        assert run.attempt(run.steps, OWN, 2) is None
    assert status_of(run.failed[OWN]) == ("oom", "killed by SIGKILL (out of memory?)")


ABOVE = """
import sys
import torch
sys.path.insert(0, "..")
from rates import RATE
print("rate", RATE)
optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], RATE)
while True:
    optimizer.param_groups[0]["params"][0].sum().backward()
    optimizer.step()
"""


def test_a_changed_script_imports_an_edited_module_from_above_its_folder(tmp_path):
    (folder := tmp_path / "projects").mkdir()
    (folder / "train.py").write_text(ABOVE)
    (rates := tmp_path / "rates.py").write_text("RATE = 0.1\n")
    sides = [Side(OWN), Side("changed", files={rates: "RATE = 0.2\n"})]
    logs = tmp_path / "logs"
    with session(Program(("train.py",), folder), sides, logs) as run:
        if not run.overlaid:
            pytest.skip("this system allows no overlays")
        for side in sides:
            run.facts(side.name)
    for name, rate in ((OWN, "0.1"), ("changed", "0.2")):
        assert (logs / name / "output.txt").read_text() == f"rate {rate}\n"
    assert rates.read_text() == "RATE = 0.1\n"


LACKING = """
import os, signal
import torch

weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
for step in range(100):
    if step == 2 and os.environ["TUNE_TRAINING_SIDE"] == "own":
        raise MemoryError
    if step == 2 and os.environ["TUNE_TRAINING_SIDE"] == "again":
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("side", "ended"),
    [
        (OWN, "the script ended (MemoryError)"),
        (AGAIN, "its second copy ended (killed by SIGKILL (out of memory?))"),
    ],
)
def test_memory_too_short_for_a_session_is_no_failure_of_the_script(side, ended, tmp_path):
    other = {OWN: AGAIN, AGAIN: OWN}[side]
    (tmp_path / "lacking.py").write_text(LACKING.replace(f'"{other}"', '""'))
    sessions = Sessions(Program(("lacking.py",), tmp_path), tmp_path / "logs", "key")
    plan = Plan("screen-1", [Side(OWN), Side(AGAIN, noise=1e-7), Side("gc_off", ("gc_off",))], 0, 2)
    found = sessions.run(plan, lambda text: None)
    assert found.short_of_memory
    reason = f"there is too little memory for 3 copies of the script at the same time: {ended}"
    assert found.sides["gc_off"] == Measured("oom", reason)
    assert not list(tmp_path.glob("logs/*.json")), "it may fit another time"


ACCELERATE = """#!{python}
import argparse, importlib, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("launch")
parser.add_argument("--num_processes", default="2")
parser.add_argument("--main_process_port", default="29500")
given, (m, module, *sys.argv[1:]) = parser.parse_known_args()
place = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=given.main_process_port)
place |= dict(WORLD_SIZE=given.num_processes)
# All ranks share one import of torch.
importlib.import_module("torch._dynamo")
program, ranks = importlib.import_module(module), []
for n in range(int(given.num_processes)):
    ranks.append(os.fork())
    if ranks[-1] == 0:
        os.environ.update(place, RANK=str(n), LOCAL_RANK=str(n))
        program.main()
sys.exit(any(os.waitpid(rank, 0)[1] for rank in ranks))
"""
"""Starts ranks as accelerate does: at one port unless told otherwise, and as many as its settings say."""


def test_each_side_of_accelerate_gets_its_own_port_and_as_many_ranks_as_start(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", "7")  # of the shell: a script without a launcher has one rank
    launcher = tmp_path / "accelerate"
    launcher.write_text(ACCELERATE.format(python=sys.executable))
    launcher.chmod(0o755)
    given = [str(launcher), "launch", "ranks.py", "accumulate"]
    static = Side("static", ("ddp_static_graph",))
    alone = Side("alone", program=Program(("plain.py",), SCRIPTS))
    sides = [Side(OWN), static, alone]
    with session(program_given(given, SCRIPTS), sides, tmp_path, facts={"passes": 2}) as run:
        own, other, single = (recorded(run, side.name, 3) for side in sides)
        assert not TECHNIQUES["ddp_static_graph"].obstacle(run.facts(OWN))
        assert not run.facts("static")["without_effect"]
        assert [run.facts(side.name)["world"] for side in sides] == [2, 2, 1]
    assert [len(each.ranks) for each in (own, other, single)] == [2, 2, 1]
    assert_the_same_gradients(other, own)


ITSELF = """
import gc, os, pathlib, random, sys
import numpy, torch

pathlib.Path("written").write_text(os.environ["TUNE_TRAINING_SIDE"])
print("absolute:", os.path.isabs(__file__))  # as python has it
print(sys.argv, sys.path, os.getcwd(), os.getuid(), sorted(os.listdir()))
print(torch.get_num_threads(), torch.rand(1), random.random(), numpy.random.rand(), gc.get_freeze_count())
print(sys.stdin.read(), __name__, [name for name in sys.modules if name.startswith("schemas")])
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
other = ("TUNE_TRAINING_SIDE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")
print({name: os.environ[name] for name in sorted(os.environ) if name not in other})
while True:
    loss = model(torch.rand(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""


def test_a_forked_side_equals_a_new_process(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / "itself.py").write_text(ITSELF)
    said, parents = {}, {}
    monkeypatch.delenv("WARM_STARTS")
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")  # torchrun keeps it
    program = Program(("itself.py", "-x"), home)
    rank = replace(program, launcher=("torchrun", "--nproc-per-node", "1"))
    both = [Side(OWN), Side("rank", program=rank)]
    for offer, sides in (("", [*both, Side("copy")]), ("off", both)):
        if offer:
            monkeypatch.setenv("WARM_STARTS", offer)
        logs = tmp_path / f"logs-{offer}"
        with session(program, sides, logs) as run:
            for side in sides:
                run.steps(side.name, 3)
                said[side.name, offer] = (logs / side.name / "output.txt").read_text()
            running = [child for child in run.processes.values() if child.poll() is None]
            parents[offer] = {psutil.Process(child.pid).ppid() for child in running}
    assert said[OWN, ""] == said["copy", ""] == said[OWN, "off"]
    assert said["rank", ""] == said["rank", "off"] != said[OWN, ""]
    assert "0x1." in said[OWN, ""]
    assert "absolute: True" in said[OWN, ""]
    # Both were forked by one server, or started by this process.
    assert parents["off"] == {os.getpid()} != parents[""]
    assert [path.name for path in home.iterdir()] == ["itself.py"]


# Starts when the other side has ended.
LATE = """
import pathlib, runpy, time
while "nothing to train" not in pathlib.Path("{other}/output.txt").read_text():
    time.sleep(0.05)
runpy.run_module("{module}", run_name="__main__")
"""


def test_a_session_waits_for_a_server_until_its_first_process_has_begun(tmp_path):
    process: Any = SimpleNamespace(pid=None, poll=lambda: None)

    def gather(expected: dict[str, int], check: Callable[[], None], timeout: float) -> None:
        check()
        process.pid, waited = 7, run.waited
        check()
        assert run.waited == waited > 0

    fake: Any = SimpleNamespace(arrived=lambda side: 0, gather=gather)
    run = Session([Side(OWN)], tmp_path, fake, print)
    run.processes[OWN] = process
    run.welcome({OWN: 1})


def test_last_words_of_a_side_are_read_while_another_still_starts(tmp_path):
    (tmp_path / "late.py").write_text(LATE.format(module=Side.module, other=tmp_path / "logs/own"))
    (tmp_path / "nothing.py").write_text("raise ValueError('nothing to train')\n")
    program = Program(("nothing.py",), tmp_path)
    late = Side("late", program=replace(program, modules=tmp_path), module="late")
    with session(program, [Side(OWN), late], tmp_path / "logs") as run:
        assert run.attempt(run.facts, OWN) is None
        assert run.failed[OWN].why == "ValueError: nothing to train"


def test_a_side_that_has_ended_is_not_killed_again(tmp_path, monkeypatch):
    """By then its number may be that of another program."""
    killed: list[SimpleNamespace] = []
    monkeypatch.setattr(tune_coordinator, "kill", killed.append)
    made = Session([], tmp_path, SimpleNamespace(), print)
    made.processes = {name: SimpleNamespace(name=name, wait=print) for name in (OWN, "bf16")}
    made.failed = {"bf16": SideEnded("bf16", "ended", {}, tmp_path)}
    tune_coordinator._stop(made)
    assert [process.name for process in killed] == [OWN]


def test_a_side_that_starts_too_slowly_leaves_the_others_their_session(tmp_path, monkeypatch):
    def gather(expected: dict[str, int], check: Callable[[], None], timeout: float) -> None:
        while "slow" in expected:
            check()

    fake: Any = SimpleNamespace(arrived={OWN: 1, "slow": 0}.get, gather=gather)
    run = Session([Side(OWN), Side("slow")], tmp_path, fake, print)
    waits = [sys.executable, "-c", "input()"]
    run.processes["slow"] = subprocess.Popen(waits, stdin=subprocess.PIPE, start_new_session=True)
    monkeypatch.setattr(tune_coordinator, "HELLO_SECONDS", 0.0)
    run.welcome({OWN: 1, "slow": 1})
    assert [side.name for side in run.sides] == [OWN]
    assert "did not start within" in run.failed["slow"].why
    assert run.processes["slow"].poll() is not None


ENDS = {
    "nothing": "without a backward pass",
    "error": "ValueError: a wrong thing",
    "silent": "exit status 3; it has printed nothing",
    "exit": "ended after 4 steps, but needs at least 12",
    "question": "reads from standard input",
    "spawn": "cannot be observed: it starts its ranks by torch.multiprocessing",
    "ranks": "cannot be observed: it trains on 2 ranks that this command has not started, .*; remedy",
    "exec": r"cannot be observed: it is replaced by .*python.* \(os.exec\); remedy",
    "cudnn": r"memory ran out: ends.py, line \d+: out of memory: RuntimeError: cuDNN error.*; remedy",
    "tensors": "cannot be observed: it updates tensors itself that belong to no module; remedy",
    "threads": "cannot be observed: several of its threads train at the same time; remedy",
    "config": "reads from standard input.*; remedy(.|\\n)*JSONDecodeError",
    "alarm": "cannot be observed: its own alarm raises TimeoutError: its time is over while it waits",
    "notebook": r"exported from a notebook: ends.py, line \d+: NameError.*; remedy: delete its lines",
    "words": "fails: exit status 1; its last lines, from .*:\n    no data",
}


def test_the_reason_of_an_early_end_comes_with_a_remedy(tmp_path):
    programs = {how: Program(("ends.py", how), SCRIPTS) for how in ENDS}
    sides = [Side(how, program=program) for how, program in programs.items()]
    with session(programs["nothing"], sides, tmp_path) as run:
        for how in ENDS:
            while how not in run.failed:
                run.attempt(run.steps, how, 20)
    for how, words in ENDS.items():
        with pytest.raises(CannotObserve, match=words) as caught:
            learn(run.failed[how], programs[how], None, LEAST_STEPS, pytest.fail)
        assert how in ("error", "silent", "words") or "remedy" in str(caught.value)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("late", "itself fails.* a late thing"),
        ("late_exit", "fails: exit status 4"),
        ("early", "ended after 4 steps.*; remedy"),
        ("nan", r"weights of .* are NaN after step 1, .* remedy"),
    ],
)
def test_a_script_that_ends_after_some_steps_is_not_tuned(how, words, tmp_path):
    program = Program(("ends.py", how), SCRIPTS)
    tuning = Tuning(program, tmp_path, lambda text: None, 1000, ["gc_off"])
    with pytest.raises(CannotObserve, match=words):
        tuning.run()


def test_a_process_that_the_script_forks_does_not_end_it(tmp_path):
    with session(Program(("ends.py", "fork"), SCRIPTS), [Side(OWN)], tmp_path) as run:
        assert run.steps(OWN, 20) > 0


@pytest.mark.parametrize("overlay", [True, False])
def test_the_users_own_files_are_edited_wherever_the_script_runs(overlay, tmp_path, monkeypatch):
    if not overlay:
        for module in (isolation, tune_coordinator):
            monkeypatch.setattr(module, "overlay_works", lambda folder, parent: False)
    with session(Program(("plain.py",), SCRIPTS), [Side(OWN)], tmp_path) as run:
        facts = run.facts(OWN)
    assert {call["file"] for call in facts["calls"]} == {str(SCRIPTS / "plain.py")}
    facts |= {"folder": str(SCRIPTS), "script": str(SCRIPTS / "plain.py"), "factory": False}
    assert TECHNIQUES["fused_optimizer"].edit(Source.of(facts), facts)


def test_copies_of_a_script_that_names_a_port_run_at_the_same_time(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    sides = [Side(OWN), Side("twin")]
    with session(Program(("port.py", port), SCRIPTS), sides, tmp_path) as run:
        assert all(run.steps(side.name, 3) > 0 for side in sides)


def test_a_script_spawns_workers_with_its_own_classes_and_saves_its_whole_model(tmp_path):
    sides = [Side(OWN), Side("floor", noise=NOISE["bfloat16"])]
    with session(Program(("spawned.py",), SCRIPTS), sides, tmp_path) as run:
        own, floor = (recorded(run, side.name, 3) for side in sides)
    assert not trust(own, floor)[0]


@pytest.mark.parametrize("how", ["1", "beside"])
def test_one_of_several_processes_that_train_is_observed(how, tmp_path):
    with session(Program(("forks.py", how), SCRIPTS), [Side(OWN)], tmp_path) as run:
        run.deadlines[OWN] = time.monotonic() + 60
        for _ in range(20):
            run.steps(OWN, 1)
        assert len(recorded(run, OWN, 3).losses()[0]) == 3


def test_several_processes_that_train_are_refused(tmp_path):
    with session(Program(("forks.py", "3"), SCRIPTS), [Side(OWN)], tmp_path) as run:
        run.deadlines[OWN] = time.monotonic() + 60
        with pytest.raises(SideEnded, match=r"several processes that it forks; remedy"):
            run.steps(OWN, 50_000)


@pytest.mark.parametrize(("name", "later"), [("gc_off", 0.0), ("compiled_blocks", 1000.0)])
def test_a_change_that_is_not_ready_in_time_is_left_out_and_tried_by_the_next_command(
    name, later, tmp_path
):
    (tmp_path / "slow.py").write_text("import time\n\ntime.sleep(600)\n")
    sessions = Sessions(Program(("accumulation.py",), SCRIPTS), tmp_path, "key")
    sessions.deadline, sessions.later = time.monotonic() + later, later
    slow = Side(name, (name,), program=Program(("slow.py",), tmp_path))
    plan = Plan("screen-1", [Side(OWN), slow], 0, 2, 2)
    found = sessions.run(plan, lambda text: None)
    assert found.sides[name].status == "left out"
    assert found.sides[OWN].seconds == [], "there is nothing to compare with it"
    assert not list(tmp_path.glob("*.json"))


def test_a_script_that_is_not_ready_in_time_ends_its_session(tmp_path):
    """Its steps may be slow, as on a busy machine."""
    (tmp_path / "slow.py").write_text("import time\n\ntime.sleep(600)\n")
    sessions = Sessions(Program(("slow.py",), tmp_path), tmp_path / "logs", "key")
    sessions.deadline = time.monotonic()
    gc_off = Side("gc_off", ("gc_off",))
    plan = Plan("screen-1", [Side(OWN), *floors([gc_off]), gc_off], 0, 2, 2)
    found = sessions.run(plan, lambda text: None)
    assert {side.status for side in found.sides.values()} == {"left out"}


def test_the_profiler_prints_nothing_among_the_lines_of_the_script(tmp_path):
    program, side = Program(("accumulation.py",), SCRIPTS), Side(OWN, profiled=True)
    with session(program, [side], tmp_path) as run:
        run.profile(OWN, 1)
    assert "profiler_st" not in (tmp_path / OWN / "output.txt").read_text()


SMALL = """
import torch
from torch import nn
torch.manual_seed(0)
layers = nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in range(100):
    optimizer.zero_grad()
    logits = model(torch.randn(8, 16))
    nn.functional.cross_entropy(logits, torch.randint(0, 4, (8,))).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_16_bits_in_a_small_model_with_relus_are_the_same_training(name, tmp_path):
    """One input of a ReLU that rounding moves across 0 changes a gradient by a tenth."""
    (tmp_path / "small.py").write_text(SMALL)
    script = Program(("small.py",), tmp_path)
    sessions = Sessions(script, tmp_path / "logs", "key", {"factory": False, "cycle": 1})
    short = Side(name, (name,))
    words = []
    for seed in (7, 9, 17):
        plan = Plan("screen", [Side(OWN), *floors([short]), short], seed, 0, 6)
        certificate = sessions.run(plan, lambda text: None).sides[name].certificate
        words.append(certificate["word"])
    assert words == ["same"] * 3


NORM = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in range(100):
    optimizer.zero_grad()
    (model(torch.randn(32768, 64)) * (0.03 + torch.randn(32768, 64))).sum().backward()
    optimizer.step()
"""


def test_a_layernorm_that_adds_up_its_gradients_in_bfloat16_on_cpus_is_rounding(tmp_path):
    (tmp_path / "norm.py").write_text(NORM)
    sessions = Sessions(Program(("norm.py",), tmp_path), tmp_path / "logs", "key")
    bf16 = Side("bf16", ("bf16",))
    plan = Plan("screen", [Side(OWN), *floors([bf16]), bf16], 0, 0, 2)
    certificate = sessions.run(plan, lambda text: None).sides["bf16"].certificate
    assert certificate["word"] == "same", certificate


def certificates(
    words: list[str], folder: Path, rounding: str = "bfloat16", seconds: float = math.inf
) -> tuple[str, list[Plan]]:
    """The verdict on bf16 if its sessions say these words, one after the other, within so many seconds, and
    their plans."""
    plans = []

    class Said(Sessions):
        def _run(self, plan: Plan, progress: Say) -> Outcome:
            plans.append(plan)
            if len(plans) > len(words):
                raise SideEnded("own", "out of memory", {}, folder)
            word = words[len(plans) - 1]
            certificate = {"word": word, "format": rounding, "floor": 0.1, "reason": word}
            sides = {side.name: Measured(certificate=None) for side in plan.sides}
            return Outcome(plan.seed, sides=sides | {"bf16": Measured(certificate=certificate)})

    bf16 = Side("bf16", ("bf16",))
    plan = Plan("screen", [Side(OWN), *floors([bf16]), bf16], 0, 7, 6)
    sessions = Said(Program(("small.py",), folder), folder, "key")
    sessions.deadline = time.monotonic() + seconds
    certificate = sessions.run(plan, lambda text: None).sides["bf16"].certificate
    return certificate["reason"], plans


@pytest.mark.parametrize("last", ["same", "different", "undecided"])
def test_differences_in_16_bits_are_judged_again_by_more_copies(last, tmp_path):
    word, (plan, again) = certificates(["different", last], tmp_path)
    assert word == last
    assert again.rounds == 0, "no times are taken again"
    more = [side for side in again.sides if side not in plan.sides]
    assert [side.draw for side in more] == [1, 2]
    assert all(side.name.startswith("floor_bfloat16") and side.noise for side in more)


def test_without_time_for_more_copies_the_reason_says_so(tmp_path):
    reason, plans = certificates(["different"], tmp_path, seconds=0.0)
    assert len(plans) == 1
    assert reason == "different; there was no time to measure rounding once more"
    assert not list(tmp_path.glob("*.json")), "the next command looks again"


def test_without_memory_for_more_copies_the_reason_says_so(tmp_path):
    reason, _ = certificates(["different"], tmp_path)
    assert reason.endswith("; rounding could not be measured once more (own: out of memory)")


def test_differences_in_32_bits_and_equal_trainings_are_not_judged_again(tmp_path):
    assert len(certificates(["different"], tmp_path / "a", "float32")[1]) == 1
    assert len(certificates(["same"], tmp_path / "b")[1]) == 1


def test_copies_with_other_numbers_are_disturbed_otherwise(tmp_path):
    (tmp_path / "small.py").write_text(SMALL)
    _, copy = floors([Side("bf16", ("bf16",))])
    other = replace(copy, name="other", draw=1)
    with session(Program(("small.py",), tmp_path), [copy, other], tmp_path / "logs") as run:
        for side in (copy, other):
            run.steps(side.name, 1, record=True)
        one, two = (Record.read(run.records(side.name)).of("weight") for side in (copy, other))
    assert one
    assert not any(np.array_equal(one[key], two[key]) for key in one)


KINK = """
import torch
from torch import nn
weight = nn.Parameter(torch.tensor([1.0, 1e-8]))
optimizer = torch.optim.SGD([weight], 0.0)
for _ in range(9):
    optimizer.zero_grad()
    torch.relu(weight).sum().backward()
    optimizer.step()
    print(int(weight.grad[1]))
"""


def test_only_recorded_steps_of_the_disturbed_copy_are_disturbed(tmp_path):
    """Its timed steps show the noise, so they must be as fast as those of the script."""
    (tmp_path / "kink.py").write_text(KINK)
    (copy,) = floors([Side("gc_off", ("gc_off",))])
    with session(Program(("kink.py",), tmp_path), [copy], tmp_path / "logs") as run:
        for count, record in ((2, True), (3, False), (2, True)):
            run.steps(copy.name, count, record=record)
    printed = (tmp_path / "logs" / copy.name / "output.txt").read_text().split()
    assert [*map(int, printed)][:6] == [0, 0, 1, 1, 1, 0]
