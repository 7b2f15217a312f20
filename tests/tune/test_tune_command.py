"""The command: progress, an interruption, the answer for people and programs, the applied diff."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from transformer_core.tune import command
from transformer_core.tune.coordinator import Program
from transformer_core.tune.flow import Answer, Tried, Tuning
from transformer_core.tune.sessions import Outcome, Plan

SCRIPTS = Path(__file__).parent / "scripts"
DIFF = """--- a/train.py
+++ b/train.py
@@ -1 +1 @@
-print("old")
+print("new")
"""
SAME = {"word": "same", "reason": "gradients within 1e-7"}


def answer(**more: Any) -> Answer:
    patched = Tried(("bf16",), certificate=SAME, ratio=1.2, low=1.1, high=1.3, verdict="FASTER")
    whole = {"diff": DIFF, "patched": patched, "recommended": ("bf16",), "tried": [patched]}
    return Answer("train.py", trust="the same", reproducible=True, **(whole | more))


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a script; its workflow has ended already."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text('print("old")\n')
    monkeypatch.setattr(command, "run", lambda folder, quiet: 0)
    return tmp_path


def write(home: Path, found: Answer, name: str = "answer.json") -> None:
    folder = home / "tuned-train/results/tune"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(found.to_json()))
    (folder / "changes.diff").write_text(found.diff)


@pytest.mark.parametrize("nested", [False, True])
def test_a_diff_that_held_is_applied(nested: bool, ended: Path) -> None:
    if nested:
        subprocess.run(["git", "init", "-q", str(ended.parent)], check=True)
    write(ended, answer())
    assert command.main(["--apply", "train.py"]) == 0
    assert (ended / "train.py").read_text() == 'print("new")\n'


def test_a_diff_that_did_not_hold_is_not_applied(
    ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Tried(("bf16",), certificate=SAME | {"word": "different"})
    write(ended, answer(patched=broken))
    assert command.main(["--apply", "train.py"]) == 1
    assert (ended / "train.py").read_text() == 'print("old")\n'
    assert "nothing was applied" in capsys.readouterr().err


def test_programs_get_json_and_people_the_way_to_the_diff(
    ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(ended, answer())
    assert command.main(["--json", "train.py"]) == 0
    assert json.loads(capsys.readouterr().out)["recommended"] == ["bf16"]
    assert command.main(["train.py"]) == 0
    said = capsys.readouterr().out
    assert "git apply tuned-train/results/tune/changes.diff" in said
    assert said.startswith("1.20 [1.10, 1.30] times as fast, and the same training, with bf16.")


def test_a_script_that_cannot_be_tuned_ends_with_1_and_the_reason(
    ended: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(ended, Answer("train.py", status="failed", reason="it ended; remedy: r"), "failed.json")
    monkeypatch.setattr(command, "run", lambda folder, quiet: 1)
    assert command.main(["train.py"]) == 1
    assert "train.py cannot be tuned: it ended; remedy: r" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.py"], "names no script"),
        (["--only", "bf17", "train.py"], "no such technique; did you mean bf16"),
        (["--time", "soon", "train.py"], "soon"),
    ],
)
def test_a_wrong_command_line_ends_with_2(
    arguments: list[str], words: str, ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in ended.iterdir()] == ["train.py"]


def test_progress_has_the_time_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    tuning = Tuning(Program(("train.py",), SCRIPTS), tmp_path, said.append, budget=1000)
    tuning.say("begin")
    # Five sessions to come that take 40 s each; two of them only if there is time.
    tuning.took, tuning.to_come = [30.0, 50.0], (3, 2)
    tuning.say("middle")
    tuning.budget = 0.0
    tuning.say("late")
    assert said == ["begin", "middle (about 3 min left)", "late (about 2 min left)"]

    class Done:
        def run(self, plan: Plan, progress: Any) -> Outcome:
            return Outcome(0)

    tuning.sessions = Done()  # type: ignore[assignment]
    tuning.session(Plan("one", [], 0, 2), "stage")
    assert tuning.to_come == (2, 2)


def started(home: Path, only: str, *command: str) -> subprocess.Popen[str]:
    arguments = ["--time", "1s", "--only", only, "--no-verify", *command]
    return subprocess.Popen(
        [sys.executable, "-m", "transformer_core.tune", *arguments],
        cwd=home,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPTS.parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_the_same_command_goes_on_after_an_interruption(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text((SCRIPTS / "plain.py").read_text())
    first = started(tmp_path, "gc_off", "plain.py")
    kept = tmp_path / "tuned-plain/results/tune/sessions/screen-1.json"
    end = time.monotonic() + 500
    while not kept.exists() and first.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGINT)
    said, _ = first.communicate(timeout=200)
    if first.returncode == 0:
        pytest.skip("it had ended before it could be interrupted")
    assert first.returncode == 130, said
    assert "The same command goes on from here" in said
    written = kept.stat().st_mtime_ns
    second = started(tmp_path, "gc_off", "plain.py")
    said, _ = second.communicate(timeout=500)
    assert second.returncode == 0, said
    # The session that was done before is read, not run again.
    assert kept.stat().st_mtime_ns == written
    assert "run twice: the same losses, gradients and weights" in said
    assert re.search(r"about \d+ (s|min) left", said)
    assert {path.name for path in tmp_path.iterdir()} == {"plain.py", "tuned-plain"}


@pytest.mark.slow
def test_ranks_of_torchrun_get_an_answer(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text((SCRIPTS / "ranks.py").read_text())
    child = started(tmp_path, "tf32", "torchrun", "--nproc-per-node", "2", "ranks.py")
    said, _ = child.communicate(timeout=500)
    assert child.returncode == 0, said
    found = Answer.read(tmp_path / "tuned-ranks/results/tune/answer.json")
    assert found.facts["world"] == 2
    assert found.reproducible
    assert "TensorFloat-32 needs a GPU" in said
