"""The benchmark of language models' steps runs, and compares losses first."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TINY = (
    *("--task", "language_model", "--layers", "1", "--d-model", "16", "--heads", "2"),
    *("--context", "8", "--size", "16", "--vocabulary", "32", "--batches", "1"),
    *("--rounds", "2", "--warmup", "0", "--threads", "1"),
)


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "benchmarks/step.py", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_table_of_language_models():
    pytest.importorskip("transformers")
    chosen = "this project in GPT-2's form"
    done = benchmark(*TINY, "--only", chosen)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| step")]
    assert [row.split("|")[2].strip() for row in rows] == ["GPT-2 of transformers", chosen]
    losses = {row.rpartition("loss ")[2] for row in rows}
    assert len(losses) == 1  # the same weights
    assert all("of the fp32 matrix rate" in row for row in rows)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "2"], "needs the manifest of its shards"),
        ([*TINY, "--only", "nobody"], "--only nobody: take of GPT-2 of transformers"),
    ],
)
def test_bad_options_are_refused(arguments, words, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "argv", ["step.py", *arguments])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "benchmarks/step.py"), run_name="__main__")
    assert words in capsys.readouterr().err
