"""The benchmarks of steps and of data run on something tiny, and tell whom they left out."""

import argparse
import csv
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import step, step_counts
from benchmarks.fifty import traincheck
from benchmarks.fifty.__main__ import FIRST_TABLE, PLACE, every_pair, pair, row_of, table_of
from benchmarks.windows import scatter
from tests.data.pair_files import make_store

ROOT = Path(__file__).resolve().parents[2]
TINY = (
    *("--task", "language_model", "--layers", "1", "--d-model", "16", "--heads", "2"),
    *("--context", "8", "--size", "16", "--vocabulary", "32", "--batches", "1"),
    *("--rounds", "2", "--warmup", "0", "--threads", "1"),
)


def benchmark(
    name: str, *arguments: str | Path, hidden: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs a program of benchmarks/ that does not find the ``hidden`` libraries."""
    script = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({hidden!r})); "
        f"runpy.run_module('benchmarks.{name}', run_name='__main__')"
    )
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_table_of_feeding_with_ratios_and_reasons(tmp_path):
    make_store(tmp_path)
    output = tmp_path / "data.csv"
    manifest = tmp_path / "shards" / "manifest.json"
    # The first import of it takes longer than everything else.
    hidden = ("datasets",)
    options = ("--rounds", "2", "--seconds", "0.01", "--plan-pairs", "500")
    done = benchmark("data", *options, "--shards", manifest, "--output", output, hidden=hidden)
    assert done.returncode == 0, done.stderr
    with output.open(newline="") as stream:
        rows = {(row["part"], row["contender"]): row for row in csv.DictReader(stream)}
    ours = rows["feed, batches of 64 pairs", "this project"]
    assert float(ours["lowest"]) <= float(ours["median"]) <= float(ours["highest"])
    left_out = rows["feed, batches of 64 pairs", "datasets + DataLoader"]
    assert left_out["median"] == ""
    assert left_out["note"].startswith("not installed")
    padded, packed = (
        rows["feed, by strategy", name] for name in ("fixed size, 64 pairs", "fixed size, packed")
    )
    assert float(padded["ratio"]) == 1.0
    assert padded["note"] != packed["note"]
    assert float(rows["plan 540 pairs", "epoch, token budget"]["median"]) > 0
    assert "| feed, by strategy | fixed size, packed |" in done.stdout


@pytest.mark.slow
def test_a_table_of_steps_of_language_models_compares_losses_first(monkeypatch, capsys):
    pytest.importorskip("transformers")
    # Contenders are forked from a process that has imported torch.
    warm = multiprocessing.get_context("forkserver")
    monkeypatch.setattr(step.mp, "get_context", lambda kind: warm)
    # Whatever it sets is put back.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    chosen = "this project in GPT-2's form"
    monkeypatch.setattr(sys, "argv", ["step.py", *TINY, "--only", chosen])
    assert step.main() == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| step")]
    assert [row.split("|")[2].strip() for row in rows] == ["GPT-2 of transformers", chosen]
    losses = {row.rpartition("loss ")[2] for row in rows}
    assert len(losses) == 1  # the same weights
    assert all("of the fp32 matrix rate" in row for row in rows)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "2"], "needs the manifest of its shards"),
        ([*TINY, "--only", "nobody"], "--only nobody: choose from GPT-2 of transformers"),
    ],
)
def test_bad_options_are_refused(arguments, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["step.py", *arguments])
    with pytest.raises(SystemExit):
        step.main()
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_flops_are_those_of_the_products_and_the_best_step_has_fewer_operators(
    tmp_path, monkeypatch
):
    n, d, v = 21, 16, 50
    output = tmp_path / "new" / "counts.json"
    sizes = {"pairs": 3, "tokens": 7, "layers": 1, "d-model": d, "heads": 2, "vocabulary": v}
    options = [f"--{name}={size}" for name, size in sizes.items()]
    monkeypatch.setattr(sys, "argv", ["step_counts.py", *options, f"--output={output}"])
    assert step_counts.main() == 0
    found = json.loads(output.read_text())
    published, single, best = (found[f"{name}, 3 pairs"] for name in step_counts.STEPS)
    products = n * (4 + 8 + 2 * 8) * d * d + n * d * v  # by hand: projections, feed-forward, map
    attention = 3 * 2 * 3 * 7 * 7 * d
    assert published["flops"] == 3 * 2 * (products + attention)
    assert best["operators"] < single["operators"]
    assert best["bytes"] < published["bytes"]


@pytest.mark.filterwarnings("error")
def test_windows_too_long_for_the_measured_steps_have_no_scatter():
    steps = np.random.default_rng(1).uniform(0.09, 0.11, 1000)
    assert scatter(steps, 0.1, 4.0)[:2] == (20, 25)
    assert np.isnan(scatter(steps, 10.0, 4.0)[2])


def test_an_unknown_pair_is_refused_at_once_with_those_most_like_it():
    with pytest.raises(argparse.ArgumentTypeError, match=r"no pair 'wekws_37'.*wekws_73"):
        pair("wekws_37")


def test_traincheck_writes_only_into_the_table_that_has_a_column_for_it(monkeypatch):
    written: list[str] = []
    monkeypatch.setattr(traincheck, "measure", lambda name: "1 of 2")
    monkeypatch.setattr(traincheck, "write_cells", lambda name, *cell: written.append(name))
    first, other = (
        next(name for name in every_pair() if (table_of(name) == FIRST_TABLE) == whether)
        for whether in (True, False)
    )
    monkeypatch.setattr("sys.argv", ["traincheck", first, other])
    traincheck.main()
    assert written == [first]


def test_a_row_names_the_program_that_cannot_be_observed(monkeypatch):
    monkeypatch.setattr("benchmarks.fifty.__main__.forked", lambda *work: None)
    row = row_of(PLACE / "wekws_73.py")
    assert row[2] == "not run: the audit cannot observe wekws_73.py faulty"
