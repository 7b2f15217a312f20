"""Scripts of many kinds are observed as they are: each session has the script and its twin."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from schemas.config.run_spec import ScriptTask
from transformer_core.tune.certificate import trust
from transformer_core.tune.coordinator import Program, Session, Side, SideEnded, session
from transformer_core.tune.driver import CannotObserve, program_of
from transformer_core.tune.flow import Tuning
from transformer_core.tune.records import Record
from transformer_core.tune.sessions import OWN
from transformer_core.tune.techniques.registry import TECHNIQUES

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parent / "scripts"
TWIN = Side("twin")


@contextmanager
def started(script: str, folder: Path, *sides: Side, **more: str) -> Iterator[Session]:
    """A session of the script and ``sides``, waiting at their first boundary."""
    program = Program(tuple(script.split()), SCRIPTS, boundary=more.get("boundary", "optimizer"))
    with session(program, [Side(OWN), *sides], folder) as run:
        for side in run.sides:
            run.facts(side.name, 100)
        yield run


def recorded(run: Session, side: str, steps: int) -> Record:
    """What a side records in ``steps`` steps."""
    run.steps(side, steps, record=True)
    return Record.read(run.records(side))


def test_closures_are_a_step_whose_first_update_is_seen(tmp_path):
    with started("closure.py", tmp_path, TWIN) as run:
        own, twin = (recorded(run, side, 2) for side in (OWN, "twin"))
        facts = run.facts(OWN)
    assert trust(own, twin)[0]
    assert (facts["optimizers"], facts["modules"]) == (["LBFGS"], ["Sequential"])
    names = {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert {(step, name) for _, step, name in own.keys("update")} == {
        (step, name) for step in (1, 2) for name in names
    }
    # All backward passes of a step belong to it.
    assert own.losses().shape[2] > 8


def test_two_optimizers_are_seen_from_their_first_updates(tmp_path):
    with started("two_optimizers.py", tmp_path, TWIN) as run:
        own, twin = (recorded(run, side, 4) for side in (OWN, "twin"))
        facts = run.facts(OWN)
    assert trust(own, twin)[0]
    assert facts["cycle"] == 2
    assert facts["modules"] == ["Sequential", "Sequential"]
    # The generator is called first and bears no number; the critic, number 1, steps first.
    updates = own.keys("update")
    assert {name for _, step, name in updates if step == 1} == {
        "1.0.weight",
        "1.0.bias",
        "1.2.weight",
        "1.2.bias",
    }
    assert {name for _, step, name in updates if step == 2} >= {"0.weight", "2.bias"}


def test_accumulation_with_scaler_autocast_and_workers_is_a_step(tmp_path):
    with started("accumulation.py", tmp_path, TWIN) as run:
        own, twin = (recorded(run, side, 2) for side in (OWN, "twin"))
        facts = run.facts(OWN)
    assert trust(own, twin)[0]
    assert facts["autocast"]
    assert facts["loaders"] == [{"workers": 1, "pinned": False}]
    assert own.losses().shape == (1, 2, 12)


def test_weights_updated_by_hand_are_noticed(tmp_path):
    with pytest.raises(SideEnded, match="no step"), started("by_hand.py", tmp_path):
        pass
    with started("by_hand.py", tmp_path, boundary="backward") as run:
        own = recorded(run, OWN, 3)
    assert {name for *_, name in own.keys("gradient")} == {"weight", "bias"}


def test_modules_files_pickles_and_copies_of_the_script_stay_its_own(tmp_path):
    folder = SCRIPTS / "modules"
    program = Program(("train.py", "--name", "two words"), folder)
    before = {path.name: path.read_bytes() for path in folder.glob("*.*")}
    sides = [Side(OWN), Side("bf16", ("bf16",))]
    with session(program, sides, tmp_path) as run:
        for side in sides:
            run.facts(side.name, 100)
            run.steps(side.name, 6)
        assert not run.facts("bf16")["without_effect"]
    assert {path.name: path.read_bytes() for path in folder.glob("*.*")} == before


STEPS = """
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
STEP = "loss.backward(); optimizer.step()"


def changed(folder: Path, text: str, *names: str) -> tuple[Record, list[Record]]:
    """Three steps of a script, and of the same with each of some changes."""
    (folder / "train.py").write_text(text, encoding="utf-8")
    program = Program(("train.py",), folder)
    with session(program, [Side(OWN)], folder / "first") as run:
        facts = run.facts(OWN, 100) | {"head": None, "factory": False}
    sides = [Side(OWN), *(Side(name, (name,)) for name in names)]
    with session(program, sides, folder / "again", facts=facts) as run:
        for side in sides:
            run.facts(side.name, 100)
        own, *others = (recorded(run, side.name, 3) for side in sides)
        assert not any(run.facts(name)["without_effect"] for name in names)
    return own, others


def agree(own: Record, others: list[Record]) -> None:
    for other in others:
        for kind in ("gradient", "update"):
            assert own.keys(kind)
            for key in own.keys(kind):
                found, right = other.get(kind, key), own.get(kind, key)
                assert found is not None
                assert right is not None
                assert np.allclose(found, right, rtol=1e-4, atol=1e-7), (kind, key)


@pytest.mark.parametrize(
    "step",
    [
        STEP,
        "optimizer.step(lambda: (loss.backward(), loss)[1])",
        "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
    ],
)
def test_gradients_are_those_before_a_kernel_changes_them(tmp_path, step):
    text = STEPS.replace("STEP", step)
    agree(*changed(tmp_path, text, "foreach_optimizer", "fused_optimizer"))


def test_weights_of_64_bits_are_recorded_as_they_were(tmp_path):
    text = STEPS.replace("torch.manual_seed(1)", "torch.set_default_dtype(torch.float64)")
    own, _ = changed(tmp_path, text.replace("STEP", STEP))
    for key in own.keys("update"):
        assert np.any(own.get("update", key)), key


def test_a_loss_over_many_classes_is_divided(tmp_path):
    agree(*changed(tmp_path, STEPS.replace("STEP", STEP), "chunked_loss"))


def test_ranks_of_torchrun_wait_together_and_options_give_the_same_gradients(tmp_path):
    command = ["torchrun", "--nproc-per-node", "2", "ranks.py", "accumulate"]
    task = {"kind": "script", "command": command, "directory": str(SCRIPTS)}
    program = program_of(ScriptTask.model_validate(task))
    names = ("ddp_bucket_view", "ddp_buckets_100mb", "ddp_no_sync", "freed_gradients")
    changed = {"options": names, "static": ("ddp_static_graph",)}
    sides = [Side(OWN), *(Side(name, techniques) for name, techniques in changed.items())]
    with session(program, sides, tmp_path, facts={"passes": 2}) as run:
        facts = run.facts(OWN, 100)
        own, *others = (recorded(run, side.name, 3) for side in sides)
        seen = {name: run.facts(name) for name in changed}
    assert (facts["world"], facts["ddp"], facts["passes"]) == (2, [{}], 2)
    assert facts["counts"]["zeroed"]
    assert not any(TECHNIQUES[name].obstacle(facts) for name in names)
    assert not any(each["without_effect"] for each in seen.values())
    options = {"gradient_as_bucket_view": "True", "bucket_cap_mb": "100"}
    assert seen["options"]["ddp"] == [options]
    for other in others:
        for key in own.keys("gradient"):
            given = other.get("gradient", key)
            np.testing.assert_allclose(given, own.get("gradient", key), rtol=1e-5)
    first, second = own.ranks
    # Each rank has its own batches and the same gradients, under names without the wrapper's.
    assert (first["inputs"] != second["inputs"]).any()
    assert (first["1 gradient 0.weight"] == second["1 gradient 0.weight"]).all()


def test_a_rank_that_fails_is_named_and_ends_those_that_wait_for_it(tmp_path):
    launcher = ("torchrun", "--nproc-per-node=2")
    program = Program(("ranks.py", "raise"), SCRIPTS, launcher=launcher)
    with session(program, [Side(OWN)], tmp_path) as run:
        run.facts(OWN, 100)
        started = psutil.Process(run.processes[OWN].pid).children(recursive=True)
        assert run.attempt(OWN, lambda: run.steps(OWN, 5)) is None
        _, alive = psutil.wait_procs(started, timeout=5)
        assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
        assert run.failed[OWN].why == "rank 1: ValueError: rank 1 has no data"


def test_the_last_words_of_a_side_are_read_though_another_starts_late(tmp_path, monkeypatch):
    late = "import runpy, time\ntime.sleep(4)\nrunpy.run_module({!r}, run_name='__main__')\n"
    (tmp_path / "late.py").write_text(late.format(Side.module))
    (tmp_path / "nothing.py").write_text("raise ValueError('nothing to train')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    program = Program(("nothing.py",), tmp_path)
    with session(program, [Side(OWN), Side("late", module="late")], tmp_path / "logs") as run:
        assert run.attempt(OWN, lambda: run.facts(OWN, 100)) is None
        assert run.failed[OWN].why == "ValueError: nothing to train"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("early", "ended after 4 steps, and at least"),
        ("nothing", "without a backward pass"),
        ("error", "ValueError: a wrong thing"),
        ("question", "reads from standard input"),
        ("spawn", "cannot be observed: it starts its ranks by torch.multiprocessing"),
    ],
)
def test_an_end_is_one_sentence_with_a_remedy(how, words, tmp_path):
    said: list[str] = []
    tuning = Tuning(Program(("ends.py", how), SCRIPTS), tmp_path, said.append)
    with pytest.raises(CannotObserve, match=words) as caught:
        tuning.run()
    assert how == "error" or "remedy" in str(caught.value)
