"""The command: progress, interruption, the answer as text and JSON, the applied diff."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import psutil
import pytest
import torch

from schemas.config.run_spec import ScriptTask
from schemas.config.study import Study
from schemas.errors import ConfigError
from schemas.results import Interval
from tests.records import provenance
from transformer_core.audit import __main__ as audit_command
from transformer_core.audit import job as audit_job
from transformer_core.audit.job import AuditJob
from transformer_core.common.files import write_text
from transformer_core.run.warm_start import GIVEN_THREADS, THREADS, keep_given_threads
from transformer_core.tune import command, compare, driver, job
from transformer_core.tune.answer import (
    DISTURBED,
    Answer,
    Tried,
    headline,
    markdown,
    text,
)
from transformer_core.tune.coordinator import Program
from transformer_core.tune.driver import program_given, progress
from transformer_core.tune.results import verdict_beside
from transformer_core.tune.sessions import BEGAN

SCRIPTS = Path(__file__).parent / "scripts"
STUDY = Study(name="mine", task={"kind": "script", "command": ["train.py"]}, variants=["single"])
DIFF = """--- a/train.py
+++ b/train.py
@@ -1 +1 @@
-print("old")
+print("new")
"""
SAME = {"word": "same", "reason": "gradients differ by at most 1e-7"}


def answer(**more: Any) -> Answer:
    patched = Tried(("bf16",), certificate=SAME, ratio=1.2, low=1.1, high=1.3, verdict="FASTER")
    whole = {"diff": DIFF, "patched": patched, "recommended": ("bf16",), "tried": [patched]}
    return Answer("train.py", trust="the same", reproducible=True, **(whole | more))


@pytest.fixture
def ended(tmp_path, monkeypatch):
    """The folder of a script whose workflow has ended."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text('print("old")\n')
    monkeypatch.setattr(command, "run", lambda folder, quiet: 0)
    return tmp_path


def write(home: Path, found: Answer, name: str = "answer.json") -> None:
    folder = home / "tuned-train/results/tune"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(found.to_json()))
    (folder / "changes.diff").write_text(found.diff)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.9, 1.1, "FASTER"), (0.71, 0.97, "UNDECIDED"), (1.1, 1.3, "UNDECIDED")],
)
def test_a_script_that_is_not_as_fast_as_itself_decides_nothing(low, high, verdict):
    noise, ratio = (
        Interval(median=(a * b) ** 0.5, low=a, high=b, samples=4)
        for a, b in ((low, high), (1.02, 1.43))
    )
    assert verdict_beside(noise, ratio, 0.03) == verdict
    shown = text(answer(noise={"ratio": noise.median, "low": low, "high": high}))
    assert (DISTURBED in shown) == (verdict == "UNDECIDED")


@pytest.mark.parametrize(
    ("statuses", "first"),
    [
        (["unsupported", "left out"], "Nothing was tried"),
        (["unsupported", "failed", "left out"], "Nothing that was tried is faster"),
        (["unsupported", "failed"], "Keep the training"),
        (["unsupported"], "Keep the training"),
    ],
)
def test_no_time_is_no_result(statuses, first):
    tried = [Tried((status,), status) for status in statuses]
    assert headline(answer(tried=tried, recommended=())).startswith(first)


@pytest.mark.parametrize("taken", [4, 12])
def test_steps_that_were_not_seen_may_be_lacking_besides_the_time(taken):
    """On a busy machine, the time is over before a short script has reached its end."""
    tried = [Tried(("bf16",), "left out")]
    said = headline(answer(tried=tried, recommended=(), steps_taken=taken, steps_needed=12))
    assert ("only 4 were seen: if the script ends earlier" in said) == (taken == 4)


def undecided(name: str, ratio: float, low: float, high: float) -> Tried:
    times = {"ratio": ratio, "low": low, "high": high, "verdict": "UNDECIDED"}
    return Tried((name,), certificate=SAME, **times)


def test_more_time_is_the_remedy_only_if_time_was_short():
    tried = [undecided("bf16", 1.1, 0.9, 1.3)]
    short = answer(tried=tried, recommended=(), left_out=["2 of 4 sessions"], needs="20min")
    whole = headline(answer(tried=tried, recommended=()))
    assert "--time 20min" in headline(short)
    assert "a quieter machine, or a" in whole
    assert "more time" not in whole


def test_wide_intervals_are_no_advice_to_keep_the_training():
    slower = undecided("fp16", 0.7, 0.6, 0.8)  # as disturbed sessions leave it
    tried = [undecided("gc_off", 0.97, 0.9, 1.05), undecided("bf16", 0.99, 0.8, 1.2), slower]
    said = headline(answer(tried=tried, recommended=()))
    assert said.startswith("Nothing is certain yet")
    assert "bf16, is 0.99 [0.80, 1.20] times as fast. Undecided, too: gc_off." in said
    assert headline(answer(tried=[slower], recommended=())).startswith("Keep the training")


@pytest.mark.parametrize("report", ["train.py/report.md", ".", "/"])
@pytest.mark.parametrize("program", [command, audit_command])
def test_a_report_that_cannot_be_written_is_refused(program, report, ended, capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(["--report", report, "train.py"])
    assert f"--report: {report} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "git", "code", "script"),
    [
        ("same", "none here", 0, "new"),
        ("same", "above", 0, "new"),
        ("different", "above", 1, "old"),
        ("same", "not installed", 1, "old"),
    ],
)
def test_a_diff_is_applied_if_it_held(word, git, code, script, ended, capsys, monkeypatch):
    if git == "above":
        subprocess.run(["git", "init", "-q", str(ended.parent)], check=True)
    if git == "not installed":
        monkeypatch.setenv("PATH", str(ended))
    write(ended, answer(patched=Tried(("bf16",), certificate=SAME | {"word": word})))
    assert command.main(["--apply", "train.py"]) == code
    assert (ended / "train.py").read_text() == f'print("{script}")\n'
    assert ("nothing was applied" in capsys.readouterr().err.lower()) == bool(code)


def test_a_diff_of_files_above_is_applied_to_their_folder(ended, capsys):
    (ended / "projects").mkdir()
    os.chdir(ended / "projects")
    (ended / "projects/train.py").write_text("import torch\n")
    write(ended / "projects", answer(base=str(ended)))
    assert command.main(["--apply", "train.py"]) == 0
    diff = ended / "projects/tuned-train/results/tune/changes.diff"
    assert f"(git -C {ended} apply {diff}):" in capsys.readouterr().out
    assert (ended / "train.py").read_text() == 'print("new")\n'


def test_the_answer_is_json_or_text_with_the_path_of_the_diff(ended, capsys):
    write(ended, answer())
    assert command.main(["--json", "train.py"]) == 0
    assert json.loads(capsys.readouterr().out)["recommended"] == ["bf16"]
    assert command.main(["train.py"]) == 0
    said = capsys.readouterr().out
    assert "git apply tuned-train/results/tune/changes.diff" in said
    assert "audit-training train.py" in said
    assert "audit" not in text(answer(facts={"factory": True}))
    assert command.main(["torchrun", "-m", "train"]) == 0, "its folder is named after the module"
    assert said.startswith("1.20 [1.10, 1.30] times as fast, and the same training, with bf16.")


@pytest.mark.parametrize(
    "patched",
    [
        Tried(("bf16",), certificate=SAME | {"word": "different"}),
        Tried(("bf16",), certificate=SAME | {"word": "undecided"}),
        Tried(("bf16",), "failed", "NameError"),
    ],
)
def test_nobody_is_told_to_apply_a_diff_that_did_not_hold(patched):
    for show in (text, markdown):
        assert "do not apply the diff" not in show(answer())
        assert "do not apply the diff" in show(answer(tried=answer().tried, patched=patched))
    assert "git apply" not in text(answer(tried=answer().tried, patched=patched))


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("program", [command, audit_command, compare])
def test_a_closed_terminal_stops_a_command_like_ctrl_c(program, sent, ended, monkeypatch):
    def stop(*given: Any, **more: Any) -> None:
        signal.raise_signal(sent)

    place = (command, "run") if program is command else (driver, "program_given")
    monkeypatch.setattr(*place, stop)
    before = signal.signal(sent, signal.SIG_DFL)
    try:
        assert program.main(["train.py", "train.py"]) == 130
    finally:
        signal.signal(sent, before)


@pytest.mark.parametrize(("quiet", "out"), [(True, ""), (False, "a job\n")])
def test_progress_is_shown_beside_an_answer_in_json(quiet, out, tmp_path, monkeypatch, capfd):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho a job\necho progress >&2\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert command.run(tmp_path, quiet) == 0
    assert capfd.readouterr() == (out, "progress\n")


def test_a_script_that_cannot_be_tuned_ends_with_1_and_the_reason(ended, monkeypatch, capsys):
    write(ended, Answer("train.py", status="failed", reason="it ended; remedy: r"), "failed.json")
    monkeypatch.setattr(command, "run", lambda folder, quiet: 1)
    assert command.main(["train.py"]) == 1
    assert "train.py cannot be tuned: it ended; remedy: r" in capsys.readouterr().out


def test_messages_name_logs_by_paths_that_hold_in_every_folder(ended, monkeypatch, caplog):
    folders = []

    def find_out(study: object, spec: object, folder: Path, code: str) -> Answer:
        folders.append((folder, code))
        return Answer("train.py", status="failed")

    monkeypatch.setattr(job, "find_out", find_out)
    monkeypatch.setattr(job, "read_record", lambda *_: STUDY)
    here = {name: Path(f"results/tune/{name}") for name in ("study", "spec", "output", "changes")}
    assert job.TuneJob(**here, code="digest").run(None) == 1
    assert folders == [(ended / "results/tune", "digest")]
    assert (ended / "results/tune/failed.json").is_file()
    assert "cannot be tuned" in caplog.text
    caplog.clear()
    monkeypatch.setenv(BEGAN, "0 0")
    assert job.TuneJob(**here).run(None) == 1
    assert "cannot be tuned" not in caplog.text, "tune-training would say it twice"


def test_an_answer_that_is_made_again_measures_again(ended, monkeypatch):
    """After --forcerun, the answer came from the stored sessions."""
    kept = ended / "results/tune/sessions/screen-1.json"
    measured, studies = [], [STUDY]

    def find_out(*_: object) -> Answer:
        if not kept.exists():
            measured.append(studies[0].time)
            write_text(kept, "a session")
        return Answer("train.py")

    monkeypatch.setattr(job, "find_out", find_out)
    monkeypatch.setattr(job, "read_record", lambda *_: studies[0])
    monkeypatch.setattr(job, "collect", lambda *_: provenance())
    names = ("study", "spec", "output", "changes")
    made = job.TuneJob(**{name: ended / f"results/tune/{name}" for name in names})
    for time_given in ("1min", "1min", "2min", "2min"):
        studies[0] = STUDY.model_copy(update={"time": time_given})
        assert not made.run(None)
    assert measured == ["1min", "1min", "2min"], "only another study builds on earlier sessions"


def asked_to_end(*_: object) -> None:
    """A request to end, in the middle of a session."""
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL, "it would leave its session as it is"
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("kind", ["tune", "audit"])
def test_a_job_that_is_asked_to_end_ends_its_copies_of_the_script(kind, ended, monkeypatch):
    """A copy went on until its first step, and its folder stayed, after Ctrl-C."""
    monkeypatch.setattr(job, "find_out", asked_to_end)
    monkeypatch.setattr(job, "read_record", lambda *_: STUDY)
    monkeypatch.setattr(audit_job, "read_record", asked_to_end)
    files = {
        name: Path(f"results/{kind}/{name}") for name in ("study", "spec", "output", "changes")
    }
    made = (
        job.TuneJob(**files)
        if kind == "tune"
        else AuditJob(spec=files["spec"], data=Path("data"), output=files["output"])
    )
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit):
            made.run(None)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nothing.py", "command line: script = 'nothing.py'"),
        (f"train.py {'x' * 20_000}", "remedy:  give at most 10000 characters"),
        ("--folder train.py train.py", "(File exists): name another with --folder"),
        ("torchrun -m", "names no module"),
        ("-m package.train", "names no module that is found from"),
        ("-m train.py", "with dots and without .py"),
        ("torchrun --nproc-per-node train.py", "starts an unknown number of processes"),
        ("torchrun --nnodes 2 train.py", "starts processes on several hosts"),
        ("deepspeed --num_gpus 2 train.py --lr 1", "torchrun --nproc-per-node=N train.py --lr 1"),
        ("/usr/bin/mpirun -n 2 python train.py", "torchrun --nproc-per-node=N train.py"),
        ("uv run python train.py", "put uv run before this command"),
        (
            "CUDA_VISIBLE_DEVICES=0 python train.py",
            "put CUDA_VISIBLE_DEVICES=0 before this command",
        ),
        ("python -m torch.distributed.launch train.py", "add --use-env or use torchrun"),
    ],
)
def test_a_wrong_command_line_ends_with_2(arguments, words, ended, capsys):
    assert command.main(arguments.split()) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in ended.iterdir()] == ["train.py"]


@pytest.mark.parametrize("program", [command, audit_command, compare])
def test_a_deleted_folder_is_named(program, ended, monkeypatch, capsys):
    (ended / "gone").mkdir()
    monkeypatch.chdir(ended / "gone")
    (ended / "gone").rmdir()
    with pytest.raises(SystemExit) as end:
        program.main(["train.py", "train.py"])
    assert end.value.code == 2
    assert "the current folder no longer exists" in capsys.readouterr().err


def test_a_terminal_of_another_encoding_does_not_lose_the_answer(monkeypatch):
    shown = TextIOWrapper(BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    given = Namespace(json=False, report=None)
    driver.answer(given, {}, "tr\u00e9.py is fine", "")
    shown.flush()
    assert shown.buffer.getvalue() == b"tr\\xe9.py is fine\n"


def test_an_unknown_technique_is_named_and_blanks_between_names_do_not_count(ended, capsys):
    assert command.parse(["--only", "bf16, gc_off", "train.py"]).only == ["bf16", "gc_off"]
    with pytest.raises(SystemExit):
        command.main(["--only", "bf17", "train.py"])
    assert "argument --only: bf17: no such technique; did you mean bf16" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--only", ",", "train.py"])
    assert "argument --only: names no technique; choose from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "time"),
    [(command, "soon"), (audit_command, "5"), (compare, "0.1s"), (command, "200h")],
)
def test_an_impossible_time_is_named_with_the_remedy(program, time, ended, capsys):
    with pytest.raises(SystemExit) as end:
        program.main(["--time", time, "train.py", "train.py"])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert f"argument --time: '{time}' is not a duration from 1 s to 168 h: write a number" in said
    assert [path.name for path in ended.iterdir()] == ["train.py"]


def test_the_path_of_an_installed_command_is_named(ended, monkeypatch, capsys):
    made = ended / "bin/train"
    made.parent.mkdir()
    made.write_text("#!/usr/bin/python3\nimport train\n")
    made.chmod(0o755)
    monkeypatch.setenv("PATH", str(made.parent))
    assert command.main(["train", "--steps", "3"]) == 2
    assert f"give its path: {made}" in capsys.readouterr().err
    assert command.main([str(made)]) == 1, "the workflow was not run"


def test_a_study_is_named_after_folder_and_script(ended):
    for folder in ("9x", "Ä", "tuned-train", f"tuned-{80 * 'x'}"):
        study = command.study_of(command.parse(["train.py"]), "train.py", ended / folder)
        assert Study.model_validate(study).name.startswith("tuned_")
    for file in ("src/train.py", "package/train.py", "train"):
        (ended / file).parent.mkdir(exist_ok=True)
        (ended / file).write_text("import torch\n")
    for line, name in {
        "train.py config/small.py --lr 1": "train.py",
        "torchrun --nproc-per-node 2 src/train.py": "train.py",
        "torchrun --nproc-per-node 2 -m train": "train",
        "torchrun --module train": "train",
        "python -m torch.distributed.run --nproc-per-node 2 src/train.py": "train.py",
        "-m package.train config.py": "package.train",
        "train --epochs 2": "train",
    }.items():
        assert driver.program_given(line.split()).name == name


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train.ipynb", b"{}", "jupyter nbconvert"),
        (
            "run.sh",
            b"#!/bin/sh\npython train.py\n",
            "is not Python: invalid syntax (run.sh, line 2)",
        ),
        ("typo.py", b"def train(:\n", "is not Python: invalid syntax (typo.py, line 1)"),
        ("bytes.py", b"x\0\xff", "is not Python"),
    ],
)
def test_a_file_that_python_cannot_run_is_refused_at_once(name, content, words, ended):
    (ended / name).write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        program_given(["python", name])
    assert words in str(refused.value)
    if name.endswith(".py"):
        with pytest.raises(ConfigError) as refused:
            program_given(["-m", name.removesuffix(".py")])
        assert words in str(refused.value)


@pytest.mark.parametrize("place", [".", "src"])
def test_a_module_is_found_where_python_finds_it(place, ended, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "src")
    package = ended / place / "package"
    package.mkdir(parents=True)
    (package / "learn.py").write_text("print()\n")
    (ended / "learn").mkdir()  # a folder of results, next to a module of the same name
    (ended / "learn.py").write_text("print()\n")
    for name, file in (("package.learn", package / "learn.py"), ("learn", ended / "learn.py")):
        assert program_given(["-m", name]).script == file


def test_a_zipped_script_is_a_program(ended):
    with ZipFile("train.pyz", "w") as file:
        file.write("train.py", "__main__.py")
    assert program_given(["train.pyz"]).command == ("train.pyz",)


def test_the_program_of_a_command_line(ended, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    as_module = "python3 -m torch.distributed.run --nproc-per-node gpu"
    for start in (
        "torchrun --nproc-per-node=gpu",
        "/usr/bin/torchrun --nproc_per_node gpu",
        as_module,
        as_module.removeprefix("python3 "),
        "python -m torch.distributed.launch --use_env --nproc-per-node gpu",
    ):
        found = program_given([*start.split(), "train.py", "x"])
        assert (found.launcher[0], found.ranks) == ("torchrun", 8)
        assert found.command == ("train.py", "x")
    with pytest.raises(ConfigError, match="names no script"):
        program_given(["torchrun", "train"])
    for start in ("torchrun --module", "accelerate launch --module", "accelerate launch -m"):
        found = program_given([*start.split(), "train", "--epochs", "2"])
        assert found.launcher == (*start.split()[:-1],)
        assert found.command == ("-m", "train", "--epochs", "2")
    assert program_given(["python", "-u", "-B", "train.py", "-u"]).command == ("train.py", "-u")
    assert program_given(["python", "-u", "-m", "train"]).command == ("-m", "train")
    with pytest.raises(ConfigError, match="an option of python, -O"):
        program_given(["python3.12", "-u", "-O", "train.py"])
    for name in ("one/__init__.py", "one/__main__.py", "two.py"):
        (ended / name).parent.mkdir(exist_ok=True)
        (ended / name).touch()
    with pytest.raises(ConfigError, match="is empty"):
        program_given(["-m", "one"])
    for factory, file in (("one:build", "one/__init__.py"), ("two:build", "two.py")):
        assert Program((factory,), ended, factory={}).script == ended / file
    assert Program(("-m", "one"), ended).script == ended / "one/__main__.py"


def test_torchrun_itself_starts_ranks_that_variables_tell_it_more_about(monkeypatch):
    program = Program(("train.py",), Path(), ("torchrun",))
    assert program.forkable
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")
    assert not program.forkable


@pytest.mark.parametrize(("budget", "told"), [(60.0, "about 60 s left"), (-9.0, "about 9 s more")])
def test_progress_says_when_its_time_is_over(budget, told):
    lines: list[str] = []
    progress(budget, lines.append)("probing")
    assert f"probing ({told}" in lines[0]


@pytest.mark.parametrize("program", ["tune.command", "tune.compare", "audit.__main__"])
def test_a_command_reads_its_command_line_without_torch(program):
    """Its import would take two seconds, in which nothing else happens."""
    code = f"import sys, transformer_core.{program} as it; it.main(['no.py', 'no.py']); "
    code += "sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SCRIPTS.parents[2])


def test_the_time_of_a_command_begins_with_its_process(ended, monkeypatch):
    monkeypatch.setenv(BEGAN, "0")
    monkeypatch.setattr(sys, "argv", ["tune-training", "train.py"])
    assert command.main() == 1, "the workflow was not run"
    age = time.time() - float(os.environ[BEGAN])
    assert age == pytest.approx(time.time() - psutil.Process().create_time(), abs=3)


def test_the_answer_lists_everything_that_was_not_tried():
    tried = [
        Tried(("bf16",), certificate=SAME, screened=1.3),
        Tried(("tf32",), "unsupported", "TensorFloat-32 needs a GPU"),
        Tried(("fp16",), "unsupported", "few CPUs multiply in float16"),
        Tried(("gc_off",), "left out", "for lack of time"),
    ]
    left_out = ["the comparison of bf16"]
    found = Answer("train.py", tried=tried, left_out=left_out, facts={"named": ["fp16", "gc_off"]})
    best = "bf16 trains the same model, and was about 1.30 times as fast"
    for lines in (text(found).splitlines(), markdown(found).splitlines()):
        assert any(best in line for line in lines)
        assert (
            "Left out for lack of time (10min should be enough): the comparison of bf16." in lines
        )
        # Techniques that do not apply share one line, except named ones.
        assert (
            "Not for this script or machine: 1 technique. The report says which, and why." in lines
        )
        assert not any(line.startswith(("  tf32", "  gc_off", "| `tf32` |")) for line in lines)
    assert "  fp16  unsupported: few CPUs multiply in float16" in text(found).splitlines()
    assert "| `fp16` | unsupported | few CPUs multiply in float16 |" in markdown(found)
    untimed = Answer("train.py", tried=[Tried(("bf16",))])
    assert "| `bf16` | not timed | not compared |" in markdown(untimed)
    assert "| tried |" not in markdown(Answer("train.py", left_out=["bf16"]))


def test_a_command_with_blanks_and_a_script_with_fences_can_be_copied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = Program(("train.py", "--name", "a b"), tmp_path).title
    diff = '--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,3 @@\n+import gc\n """\n ````\n'
    found = Answer(name, diff=f"{diff} \n", base=str(tmp_path))
    assert "audit-training train.py --name 'a b'" in text(found)
    assert "git apply 'my study/changes.diff'" in text(found, diff="my study/changes.diff")
    assert f"\n`````diff\n{diff} \n`````\n" in markdown(found)


def started(home: Path) -> subprocess.Popen[str]:
    # Surely slower, so not a candidate: a comparison would take all of the time.
    options = ["--time", "5min", "--only", "recomputed_blocks", "--no-verify"]
    return subprocess.Popen(
        [sys.executable, "-m", "transformer_core.tune", *options, "plain.py"],
        cwd=home,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPTS.parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_the_same_command_continues_after_an_interruption(tmp_path):
    # Without dropout, so that no comparison is repeated without it.
    text = (SCRIPTS / "plain.py").read_text().replace("nn.Dropout(DROP)", "nn.Identity()")
    (tmp_path / "plain.py").write_text(text)
    first = started(tmp_path)
    sessions = tmp_path / "tuned-plain/results/tune/sessions"
    end = time.monotonic() + 500
    while not any(sessions.glob("*.json")) and first.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    first.terminate()  # only the command, which ends its workflow
    said, _ = first.communicate(timeout=200)
    if first.returncode == 0 or (sessions / job._ANSWERED).exists():
        pytest.skip("it ended before it could be interrupted")
    assert first.returncode == 130, said
    assert "The same command continues from here" in said
    kept = min(sessions.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    written = kept.stat().st_mtime_ns
    second = started(tmp_path)
    said, _ = second.communicate(timeout=500)
    assert second.returncode == 0, said
    # The finished session is read, not run again.
    assert kept.stat().st_mtime_ns == written
    assert "run twice: the same losses, gradients and weights" in said
    assert re.search(r"about \d+ (s|min) left", said)
    assert {path.name for path in tmp_path.iterdir()} == {"plain.py", "tuned-plain"}


@pytest.mark.parametrize("program", [command, audit_command])
@pytest.mark.parametrize(
    "script",
    ["train.py -m x", "-m module --epochs 2", "torchrun --nproc-per-node 2 -m module --json"],
)
@pytest.mark.parametrize("before", ["", "--time 30s --json ", "--time 30s --json -- "])
def test_options_come_before_a_script_or_module(program, script, before):
    given = program.parse((before + script).split())
    assert given.command == script.split()
    assert (given.time == "30s") == given.json == bool(before)


def test_a_second_command_in_the_same_folder_is_refused(ended, capsys):
    code = "from transformer_core.study import ownership; from pathlib import Path; "
    code += "ownership.work_alone(Path('tuned-train/.snakemake/at-work')); print(); input()"
    start = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(start, stdin=pipe, stdout=pipe, text=True) as first:
        assert first.stdout.readline() == "\n"
        assert command.main(["train.py"]) == 2
        assert not Path("tuned-train/study.yaml").exists()
        first.communicate("\n")
    said = capsys.readouterr().err
    assert f"at-work: process = '{first.pid} on " in said
    assert said.endswith("stop it, or name another folder with --folder\n")


def test_a_script_of_a_study_gets_the_users_own_threads_and_order_of_gpus(tmp_path, monkeypatch):
    seen: dict[str, str | None] = {}

    def answered(tuning: Any) -> Answer:
        names = [*THREADS, GIVEN_THREADS, "CUDA_DEVICE_ORDER"]
        seen.update({name: os.environ.get(name) for name in names})
        return answer()

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    for name in (*THREADS, "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(GIVEN_THREADS, "")
    monkeypatch.delenv(GIVEN_THREADS)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    keep_given_threads()
    for name in THREADS:
        monkeypatch.setenv(name, "2")  # as Snakemake does for each job
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as run.job does
    monkeypatch.setattr(job.Tuning, "run", answered)
    task = ScriptTask(kind="script", command=("train.py",))
    margin = SimpleNamespace(margin=0.02)
    study = SimpleNamespace(task=task, tuning_seconds=300, comparison=margin)
    job.find_out(study, None, tmp_path, "")  # type: ignore[arg-type]
    assert {name for name, value in seen.items() if value} == {"OMP_NUM_THREADS"}
    assert seen["OMP_NUM_THREADS"] == "1"
