"""The tool in other places: a callback, a notebook, a job of a pull request."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from transformer_core.tune import callback
from transformer_core.tune.answer import Answer, Tried
from transformer_core.tune.order import SIDE

ROOT = Path(__file__).resolve().parents[2]


def test_a_callback_tunes_the_command_of_its_process_but_not_in_copies(tmp_path, monkeypatch):
    trainer = pytest.importorskip("transformers").TrainerCallback
    python, told = tmp_path / "python", tmp_path / "told"
    python.write_text(f'#!/bin/sh\necho "$@" >> {told}\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(callback, "started_with", lambda: ["train.py", "--rows", "8"])
    mine = callback.for_transformers("--time", "5min")
    assert isinstance(mine, trainer)
    mine.on_train_begin(None, None, None, model=None)
    monkeypatch.setenv(SIDE, "own")
    mine.on_train_begin(None, None, None, model=None)
    assert told.read_text() == "-m transformer_core.tune --time 5min train.py --rows 8\n"


SAYS = "from transformer_core.tune.callback import started_with; print(*started_with())"


@pytest.mark.parametrize(
    ("start", "ranks", "words"),
    [
        (["train.py", "a b"], "1", "train.py a b"),
        (["-m", "train", "x"], "1", "-m train x"),
        (["train.py"], "2", "one of several ranks"),
        (["-c", SAYS], "1", "no script started this process"),
    ],
)
def test_the_command_of_a_process_is_found(start, ranks, words, tmp_path):
    (tmp_path / "train.py").write_text(SAYS)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "WORLD_SIZE": ranks}
    command = [sys.executable, *start]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert words in ended.stdout + ended.stderr


@pytest.fixture
def with_schemas(tmp_path):
    """The environment of a user who has a package called schemas, too."""
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/__init__.py").write_text("OWN = 7")
    (tmp_path / "schemas/base.py").touch()
    return os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


@pytest.mark.parametrize("module", ["tune", "tune.compare", "audit", "run.job"])
def test_commands_find_their_own_schemas(module, with_schemas, tmp_path):
    command = [sys.executable, "-m", f"transformer_core.{module}", "--help"]
    subprocess.run(command, cwd=tmp_path, env=with_schemas, check=True, capture_output=True)


CALLS = """
import signal
from transformer_core.tune.callback import tune
import schemas

signal.signal(signal.SIGTERM, print)
tune("--help")
assert signal.getsignal(signal.SIGTERM) is print and schemas.OWN == 7
"""


def test_a_callback_leaves_the_script_its_own_schemas_and_signals(with_schemas, tmp_path):
    (tmp_path / "train.py").write_text(CALLS)
    start = {"cwd": tmp_path, "env": with_schemas, "check": True, "capture_output": True}
    ended = subprocess.run([sys.executable, "train.py"], text=True, **start)
    assert ended.stdout.startswith("usage: tune-training")


def test_a_notebook_displays_the_answer_of_a_study(tmp_path):
    same = {"word": "same", "reason": "gradients < 1e-7"}
    best = Tried(("bf16",), certificate=same, ratio=1.2, low=1.1, high=1.3, verdict="FASTER")
    answer = Answer("train.py", tried=[best], recommended=("bf16",), diff="-a < b\n+a > b\n")
    (tmp_path / "results/tune").mkdir(parents=True)
    (tmp_path / "results/tune/answer.json").write_text(json.dumps(answer.to_json()))
    shown = Answer.read(tmp_path)._repr_markdown_()
    assert "\n1.20 [1.10, 1.30] times as fast, and the same training, with bf16.\n" in shown
    assert "| yes: gradients \\< 1e-7 |" in shown
    assert "```diff\n-a < b\n+a > b\n```" in shown


def steps_of_the_action() -> list[dict[str, Any]]:
    """All but the installation."""
    steps: list[dict[str, Any]] = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    return steps[1:]


@pytest.mark.parametrize(
    ("status", "written", "words", "base", "old"),
    [
        (0, True, "**FASTER**", "a1", "f0"),
        (1, True, "**FASTER**", "a2", "a1"),
        (2, False, "compared:\n\n    names no script\n    ```\n", "", "a1"),
    ],
)
def test_the_action_posts_the_report_and_keeps_the_exit_status(
    status, written, words, base, old, tmp_path
):
    """It compares with the commit where the pull request left its base, or with the one given."""
    compare, post = steps_of_the_action()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    report = 'echo "**FASTER**" > "$4"' if written else "printf 'names no script\\n```\\n' >&2"
    for name, lines in {
        "compare-training": f"""printf "%s\\n" "$@" > asked
echo BASH_ENV=x > "$GITHUB_ENV"
{report}
exit {status}""",
        "gh": 'printf "%s\\n" "$@" > posted',
        "git": 'printf "%s\\n" "$@" > based\necho f0',
    }.items():
        (programs / name).write_text(f"#!/bin/bash\n{lines}\n")
        (programs / name).chmod(0o755)
    given = {"SCRIPT": "train.py", "ARGUMENTS": "--rows 8 --name 'a b'", "OLD": "a1", "NEW": "b2"}
    given |= {
        "BASE": base,
        "LAUNCHER": "torchrun -n 2",
        "TIME": "2min",
        "SLOWER": "true",
    }
    assert given.keys() == compare["env"].keys(), "the script gets no token"
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    environment |= {f"GITHUB_{name}": str(tmp_path / name) for name in ("ENV", "PATH")}

    def run(step: dict[str, Any], given: dict[str, str]) -> int:
        command = ["bash", "-eo", "pipefail", "-c", step["run"]]
        return subprocess.run(
            command, cwd=tmp_path, env=environment | given, check=False
        ).returncode

    assert run(post, {"NUMBER": "7"}) == 0, "nothing to post if the installation failed"
    assert not (tmp_path / "posted").exists()
    assert run(compare, given) == status
    asked = (tmp_path / "asked").read_text().split("\n")
    assert asked[4:8] == ["--script", "train.py", "--launcher", "torchrun -n 2"]
    assert asked[8:] == ["--not-slower", old, "b2", "--rows", "8", "--name", "a b", ""]
    assert words in (tmp_path / "summary").read_text()
    assert (tmp_path / "ENV").read_text() == "", "the script changes no later step"
    assert post["if"].startswith("always()")
    assert run(post, {"NUMBER": "7"}) == 0
    posted = (tmp_path / "posted").read_text().split("\n")
    assert posted[:3] == ["pr", "comment", "7"]
    assert words in Path(posted[4]).read_text()
