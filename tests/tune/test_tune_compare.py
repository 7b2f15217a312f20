"""Certificates from real processes: rounding is the same training, damage is not. A finished session is
read, not repeated. More changes of a script are in test_tune_causes.py."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import transformer_core.tune.versions as tune_versions
from transformer_core.tune import driver
from transformer_core.tune.answer import Answer
from transformer_core.tune.compare import main, parse, programs
from transformer_core.tune.coordinator import Program, Side, SideEnded
from transformer_core.tune.driver import without_logs
from transformer_core.tune.flow import Tuning
from transformer_core.tune.results import together
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
from transformer_core.tune.versions import NEW

SCRIPT = (Path(__file__).parent / "scripts/plain.py").read_text(encoding="utf-8")
CHANGES = {
    "cut": ("x = block(x)", "x = block(x.detach()) + x - x.detach()"),
    "schedule": ("schedule.step()", "pass"),
    "rate": ("lr=RATE", "lr=RATE * 1.01"),
    "moment": ("lr=RATE", "lr=RATE, betas=(0.9, 0.99)"),
    "first": ("RATE, DROP = 1e-2, 0.1", "RATE, DROP, _ = 1e-2, 0.1, torch.rand(1)"),
    "eps": ("nn.LayerNorm(32)", "nn.LayerNorm(32, eps=1e-3)"),
    "autocast": ("(model(tokens)", '(torch.autocast("cpu", torch.bfloat16)(model)(tokens).float()'),
    "seeded": ("lr=RATE", "lr=RATE * (1 + 0.1 * (torch.initial_seed() != 1))"),
}
"""Changes of the script after which it trains another model, except for "autocast"; the last one with
other seeds alone. Some are smaller than rounding to 16 bits."""
CHANGED = {
    name: Side(name, files={Path("plain.py"): SCRIPT.replace(old, new)})
    for name, (old, new) in CHANGES.items()
}
HEALTHY = [Side(name, (name,)) for name in ("bf16", "fused_optimizer")]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """One session with all sides, and one with other seeds for the last of them."""
    folder = tmp_path_factory.mktemp("compare")
    home = folder / "home"
    home.mkdir()
    (home / "plain.py").write_text(SCRIPT)
    sessions = Sessions(Program(("plain.py",), home), folder / "sessions", "key")
    sides = [*HEALTHY, *CHANGED.values()]
    plan = Plan("all", [Side(OWN), *floors(sides), *sides], 0, 2, record=4, late=2)
    found = sessions.run(plan, lambda text: None)
    assert (home / "plain.py").read_text() == SCRIPT
    # A finished session is read.
    assert sessions.run(plan, lambda text: pytest.fail("measured again")) == found
    sides = [CHANGED["seeded"]]
    again = Plan("seeds", [Side(OWN), *floors(sides), *sides], 1000, 0, record=4)
    return [found, sessions.run(again, lambda text: None)]


@pytest.mark.slow
@pytest.mark.parametrize("side", [*HEALTHY, CHANGED["autocast"]], ids=lambda side: side.name)
def test_rounding_is_the_same_training(side, outcomes):
    measured = outcomes[0].sides[side.name]
    assert (measured.status, len(measured.seconds)) == ("ok", 2), measured.reason
    found = measured.certificate
    assert (found["word"], found["identical"]) == ("same", False), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("cut", ""),
        ("schedule", "updates are"),
        ("rate", "updates are 1.01 times"),
        ("moment", "updates are 0.999"),
        ("first", "the first weights of"),
        ("eps", ""),
    ],
)
def test_damage_is_another_training(name, cause, outcomes):
    assert SCRIPT.count(CHANGES[name][0]) == 1
    found = outcomes[0].sides[name].certificate
    assert found["word"] == "different", found
    assert re.search(cause, found["reason"].split("; ")[0]), found


@pytest.mark.slow
def test_the_worst_certificate_of_all_seeds_counts(outcomes):
    for some, word in ((outcomes[:1], "same"), (outcomes, "different")):
        certificate = together(CHANGED["seeded"], some).certificate or {}
        assert certificate["word"] == word, certificate


def test_a_script_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.py").write_text(SCRIPT)
    assert main(["old.py", "new.py"]) == 2
    assert "names no script" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["old.py"])
    assert capsys.readouterr().err.endswith("the following arguments are required: NEW\n")
    assert main(["--script", "train.py", "main", "other"]) == 2
    said = capsys.readouterr().err
    assert "commit = 'main'" in said
    assert "remedy:  give two commits of this folder's repository" in said


@pytest.mark.parametrize("text", ["", "\n  \n", "# nothing yet\n"])
def test_an_empty_script_is_refused_at_once(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.py").write_text(SCRIPT)
    (tmp_path / "new.py").write_text(text)
    assert main(["old.py", "new.py"]) == 2
    said = capsys.readouterr().err
    assert "script = 'new.py'" in said
    assert "problem: is empty" in said


@pytest.mark.parametrize(
    "words", ["torchrun --nproc-per-node 2 old.py", "python", "python -u", "-m"]
)
def test_a_command_in_place_of_a_script_is_refused(words, capsys):
    """Otherwise ``python old.py new.py`` would compare new.py with old.py."""
    with pytest.raises(SystemExit, match="2"):
        main([*words.split(), "old.py", "new.py"])
    assert "give what starts both scripts as --launcher" in capsys.readouterr().err


def test_commits_need_git_and_a_launcher_its_closing_quote(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--script", "train.py", "old", "new"]) == 2
    assert "commit = 'old'\n    problem: cannot be unpacked: [Errno 2]" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["--launcher", "'torchrun", "old.py", "new.py"])
    assert "argument --launcher" in capsys.readouterr().err


def test_a_launcher_starts_both_scripts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    for name in ("python_old.py", "new.py", "package/old.py", "package/new.py"):
        (tmp_path / name).write_text(SCRIPT)
    given = parse(
        ["--launcher", "torchrun --nproc-per-node 2", "python_old.py", "new.py", "-m", "8"]
    )
    found = programs(given, tmp_path)
    assert [each.command for each in found] == [(n, "-m", "8") for n in ("python_old.py", "new.py")]
    assert {each.launcher for each in found} == {("torchrun", "--nproc-per-node", "2")}
    given = parse(["--launcher", "python -m", "package.old", "package.new"])
    assert [each.command[1] for each in programs(given, tmp_path)] == ["package.old", "package.new"]
    assert programs(parse(["python_old.py", "new.py"]), tmp_path)[0].command == ("python_old.py",)


def test_a_failure_names_no_log_that_is_gone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.py").write_text("print('this far')\nraise ValueError('no data')")
    assert main(["old.py", "old.py"]) == 2
    said = capsys.readouterr().err
    assert "itself fails: old.py, line 2: ValueError: no data; the end of its traceback:\n" in said
    assert said.endswith("    raise ValueError('no data')\n    ValueError: no data\n")
    error = SideEnded("new", "RuntimeError: no", {}, tmp_path / "sessions/new/output.txt")
    assert without_logs(status_of(error)[1], str(tmp_path)) == "RuntimeError: no"


FAILED = {AGAIN: SideEnded(AGAIN, "E: no", {"place": "old.py, line 7"}, Path(os.devnull))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("new", "words"),
    [
        (
            "print('no data'); raise SystemExit(3)",
            "fails: exit status 3; its last lines:\n    no data",
        ),
        (SCRIPT.replace("2000", "5"), "ended after 5 steps, but needs at least"),
    ],
)
def test_a_new_version_that_cannot_train_says_why(new, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.py").write_text(SCRIPT)
    (tmp_path / "new.py").write_text(new)
    assert main(["--time", "20s", "old.py", "new.py"]) == 2
    said = capsys.readouterr().err.partition("new.py: ")[2]
    assert words in said
    assert str(tmp_path) not in said


def outcome(certificate: dict[str, Any], rounds: int = 3, took: float = 0.0) -> Outcome:
    seconds = [1.0] * rounds
    sides = {name: Measured("ok", "", seconds, certificate) for name in (OWN, AGAIN, NEW)}
    return Outcome(0, 1, sides, took=took)


@pytest.fixture
def simulated(tmp_path, monkeypatch):
    """Lets ``run`` give the outcomes of sessions of a script with these facts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.py").write_text(SCRIPT)

    def made(run: Callable[[Plan, Any], Outcome], **facts: Any) -> None:
        def trust(tuning: Tuning) -> Answer:
            tuning.sessions = SimpleNamespace(
                run=run, timed_steps=lambda plan: 10, facts={}, failed=FAILED
            )
            return Answer("old.py", reproducible=True, facts=facts)

        monkeypatch.setattr(Tuning, "trust", trust)

    return made


@pytest.mark.parametrize(
    ("words", "without", "headline", "status"),
    [
        (["same", "same"], "", "The same training in 8 steps up to step 40: ", 0),
        (["undecided", "same"], "", "Undecided whether", 2),
        (["undecided", "different"], "", "NOT the same training", 1),
        (["different", "same"], "different", "NOT the same training", 1),
        (["different", "same"], "same", "Undecided whether", 2),
    ],
)
def test_the_status_tells_another_training_from_no_verdict(
    words, without, headline, status, simulated, capsys
):
    """And the worst certificate of all sessions counts, unless only dropout explains it."""

    def run(plan, say):
        word = words[int(plan.name == "compare-2")] if plan.dropout else without
        certificate = {"word": word, "reason": "", "identical": False, "format": "float32"}
        return outcome(certificate | {"steps": 8, "last": 40})

    simulated(run, dropout=["Dropout"] if without else [])
    assert main(["old.py", "old.py"]) == status
    assert headline in capsys.readouterr().out


@pytest.mark.parametrize("batches", [False, True])
def test_batches_that_only_dropout_changes_are_not_blamed_on_its_masks(batches, simulated, capsys):
    def run(plan, say):
        word = "different" if plan.dropout else "same"
        certificate = {"word": word, "reason": "other numbers", "batches": batches}
        return outcome(certificate | {"identical": False, "steps": 8, "last": 40})

    simulated(run, dropout=["Dropout"])
    assert main(["old.py", "old.py"]) == 2
    said = capsys.readouterr().out
    assert ("remedy: draw the batches with a generator of their own" in said) == batches
    assert ("dropout draws different masks" in said) != batches


@pytest.mark.parametrize(
    ("seconds", "verdict"), [([1.0] * 3, "SAME"), ([0.7, 1, 1.4], "UNDECIDED")]
)
def test_a_wide_interval_comes_with_a_remedy(seconds, verdict, simulated, capsys):
    certificate = {"word": "same", "reason": "equal", "identical": True, "steps": 8, "last": 40}

    def run(plan, say):
        found = outcome(certificate, took=200)
        found.sides[NEW].seconds = seconds
        return found

    simulated(run)
    assert main(["old.py", "old.py"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{verdict}: old.py is ")
    assert ("The interval is too wide" in said) == (verdict == "UNDECIDED")


def test_only_the_report_is_markdown(simulated, capsys):
    certificate = {"word": "same", "reason": "equal", "identical": True, "steps": 8, "last": 40}
    simulated(lambda plan, say: outcome(certificate, took=200))
    assert main(["--report", "report.md", "old.py", "old.py"]) == 0
    report, said = Path("report.md").read_text(), capsys.readouterr().out
    assert report.startswith("**SAME**: `old.py` is 1.00 ")
    assert said == report.replace("*", "").replace("`", "")


def test_scripts_that_end_in_the_first_round_are_not_compared(simulated, capsys):
    simulated(lambda plan, say: outcome({}, rounds=1))
    assert main(["old.py", "old.py"]) == 2
    said = capsys.readouterr().err
    assert "old.py or old.py ends before their speeds can be compared; remedy: let them" in said


def test_a_session_too_short_to_tell_speeds_still_tells_another_training(simulated, capsys):
    def run(plan, say):
        first = plan.name == "compare-1"
        word = "different" if first else "same"
        certificate = {"word": word, "reason": "a loss is 0.2 off", "identical": True}
        return outcome(certificate | {"steps": 8, "last": 40}, rounds=1 if first else 3)

    simulated(run)
    assert main(["old.py", "old.py"]) == 1
    assert "NOT the same training: a loss is 0.2 off" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("new", "same"),
    [("old.py", "a script with itself"), ("there/old.py", "other files of theirs"), ("new.py", "")],
)
def test_scripts_of_the_same_text_are_said_to_be(new, same, simulated, tmp_path, capsys):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/old.py").write_text(SCRIPT)
    (tmp_path / "new.py").write_text(SCRIPT + "\n")
    certificate = {"word": "same", "reason": "equal", "identical": True, "steps": 8, "last": 40}
    simulated(lambda plan, say: outcome(certificate, took=200))
    assert main(["old.py", new]) == 0
    said = capsys.readouterr().err
    assert ("have the same text" in said) == bool(same)
    assert same in said


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("side", [OWN, NEW])
def test_memory_too_short_for_all_copies_is_said_with_a_remedy(side, dropout, simulated, capsys):
    def run(plan, say):
        found = outcome({"word": "different", "reason": ""}, took=200)
        if plan.dropout is not dropout:
            for name in [NEW, *([OWN] if side == OWN else [])]:
                found.sides[name] = Measured("oom", "killed by SIGKILL (out of memory?)")
        return found

    simulated(run, dropout=["Dropout"])
    assert main(["old.py", "old.py"]) == 2
    said = capsys.readouterr().err
    assert "out of memory?)\nBoth versions run at the same time, together with 2 copies" in said
    assert "remedy: end other programs that need memory, or give both versions a smaller" in said


def test_a_copy_with_other_rounding_that_fails_says_why(simulated, capsys):
    def run(plan, say):
        found = outcome({}, rounds=1)
        found.sides[AGAIN] = Measured("failed", "E: no")
        return found

    simulated(run)
    assert main(["old.py", "old.py"]) == 2
    said = capsys.readouterr().err
    assert "old.py with other rounding: the script itself fails: old.py, line 7: E: no" in said


@pytest.mark.parametrize(
    ("took", "speeds", "sessions"),
    [
        (1, [1.0], 4),
        (40, [1.0], 2),
        (1, [0.8, 1.25], 30),  # undecided
        (10, [0.8, 1.25], 3),
        (1, [1.0, 1.0, *[1.5] * 6], 8),  # decided at the second look
    ],
)
def test_sessions_begin_until_a_verdict_if_they_fit_into_the_time(
    took, speeds, sessions, simulated, monkeypatch
):
    names: list[str] = []
    monkeypatch.setattr("time.monotonic", lambda: float(took * len(names)))

    def run(plan, say):
        found = outcome({"word": "undecided", "reason": ""}, took=took)
        found.sides[NEW].seconds = [1 / speeds[len(names) % len(speeds)]] * 3
        names.append(plan.name)
        return found

    simulated(run)
    assert main(["--time", "30s", "old.py", "old.py"]) == 2
    assert len(names) == sessions


@pytest.mark.parametrize(("given", "over"), [("30s", ", more than --time"), ("1h", "")])
def test_the_least_time_is_said_before_the_first_session(given, over, simulated, capsys):
    said: list[str] = []

    def run(plan, say):
        said.append(capsys.readouterr().err)
        return outcome({"word": "undecided", "reason": ""}, took=4000)

    simulated(run)
    assert main(["--time", given, "old.py", "old.py"]) == 2
    assert re.search(rf"at least 2 sessions: about \d+ (s|min) in all{over}\n", said[0])


def committed(folder, file, **versions):
    """Commits versions of a file, each with a tag, in a new repository."""
    git = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    for tag, text in versions.items():
        (folder / file).write_text(text)
        for command in (["add", "."], ["commit", "-qm", tag], ["tag", tag]):
            subprocess.run([*git, *command], check=True)


def test_commits_have_their_files_above_the_folder_and_no_others(tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "shared.txt").touch()
    committed(tmp_path, "runs/train.py", old="pass", new="print()")
    monkeypatch.chdir(tmp_path / "runs")
    (tmp_path / "runs" / "data.txt").touch()
    (tmp_path / "link").symlink_to("runs")

    def compare(old, new, *more):
        assert (new.directory / "../shared.txt").exists()
        assert (old.script.read_text(), new.script.read_text()) == ("pass", "print()")
        (old.directory / "data.txt").open()

    monkeypatch.setattr(tune_versions, "compare", compare)
    monkeypatch.setattr(driver, "REFUSED", (OSError, *driver.REFUSED))
    for script in ("train.py", *(str(tmp_path / name / "train.py") for name in ("runs", "link"))):
        assert main(["--script", script, "old", "new"]) == 2
        assert (
            "'old/runs/data.txt'\nEach commit runs in a folder of its own"
            in capsys.readouterr().err
        )
    assert main(["--script", "later.py", "old", "new"]) == 2
    assert "problem: names no script in old/runs\n" in capsys.readouterr().err


def test_commits_have_their_own_modules_in_place_of_those_of_the_working_tree(
    tmp_path, monkeypatch
):
    """Whether a variable names their folder, or pip has installed them for editing."""
    folders = [tmp_path / name for name in ("src", "lib", "flat/own", ".venv", "module")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "part.py").touch()
    (tmp_path / ".gitignore").write_text(".venv\n")
    committed(tmp_path / "module", "part.py", old="", new="pass")
    committed(tmp_path, "runs.py", old="pass", new="print()")
    monkeypatch.chdir(tmp_path / "flat")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'src'}:{tmp_path / 'module'}:/elsewhere")
    monkeypatch.setattr(sys, "path", ["", *map(str, folders), *sys.path])
    hook = SimpleNamespace(MAPPING={"own": str(tmp_path / "flat" / "own")})
    monkeypatch.setitem(sys.modules, "__editable___own_finder", hook)
    programs(parse(["--script", "../runs.py", "old", "new"]), tmp_path / "place")
    found = os.environ["PYTHONPATH"].split(os.pathsep)
    assert found == ["../src", "../module", "/elsewhere", ".", "../lib", "own"]


def test_commits_have_files_of_submodules_and_files_that_archives_lack(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "module/inner").mkdir(parents=True)
    for folder in ("module/inner", "module"):
        committed(tmp_path / folder, "part.py", old=folder)
    (tmp_path / ".gitattributes").write_text("*.py export-ignore eol=crlf\n")
    committed(tmp_path, "runs.py", old="pass\n")
    committed(tmp_path / "module", "part.py", later="later")
    (tmp_path / ".gitattributes").unlink()  # That of each commit counts.
    committed(tmp_path, "runs.py", new="print()\n")
    monkeypatch.chdir(tmp_path)
    found = programs(parse(["--script", "runs.py", "old", "new"]), tmp_path / "place")
    assert [each.script.read_bytes() for each in found] == [b"pass\r\n", b"print()\n"]
    for name, texts in (("part.py", ["module", "later"]), ("inner/part.py", ["module/inner"] * 2)):
        assert [(each.directory / "module" / name).read_text() for each in found] == texts
    lost = subprocess.check_output(["git", "-C", "module", "rev-parse", "later"], text=True).strip()
    (tmp_path / "module/.git/objects" / lost[:2] / lost[2:]).unlink()
    assert main(["--script", "runs.py", "old", "new"]) == 2
    said = capsys.readouterr().err
    assert f"problem: cannot be unpacked: fatal: failed to unpack tree object {lost}" in said
    assert "with its submodules" in said


@pytest.mark.slow
def test_versions_are_called_by_their_commits(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    bad = SCRIPT.replace("schedule.step()", "schedul.step()")
    committed(tmp_path, "plain.py", good=SCRIPT, bad=bad)
    line = 1 + bad[: bad.index("schedul.step()")].count("\n")
    assert main(["--script", "plain.py", "--time", "10s", "good", "bad"]) == 2
    said = capsys.readouterr().err
    assert "bad: the script itself fails: " in said
    assert f"plain.py, line {line}: NameError: name 'schedul' is not defined; the end of" in said


TWO = """
import torch

torch.manual_seed(0)
parts = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
model = torch.nn.Sequential(*parts)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in parts]
for _ in range(400):
    model.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    for each in optimizers:
        each.step()
"""


@pytest.mark.slow
def test_versions_with_other_numbers_of_optimizers_cannot_be_compared(
    tmp_path, monkeypatch, capsys
):
    """A step of one of two optimizers is half a step of the only one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.py").write_text(TWO)
    (tmp_path / "new.py").write_text(TWO.replace("for each in parts]", "for each in [model]]"))
    assert main(["--time", "10s", "old.py", "new.py"]) == 2
    assert "with 2 optimizers as new.py with 1" in capsys.readouterr().err
