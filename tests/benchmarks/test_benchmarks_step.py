"""The benchmark of language models' steps runs, and compares losses first."""

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


def test_a_table_of_language_models() -> None:
    pytest.importorskip("transformers")
    chosen = "this project in GPT-2's form"
    done = benchmark(*TINY, "--only", chosen)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| step")]
    assert [row.split("|")[2].strip() for row in rows] == ["GPT-2 of transformers", chosen]
    losses = {row.rpartition("loss ")[2] for row in rows}
    assert len(losses) == 1  # the same weights
    assert all("of the fp32 matrix rate" in row for row in rows)


def test_operators_of_the_last_contender_and_of_the_fastest_library(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    step = importlib.import_module("step")
    options = argparse.Namespace(task="translation")
    seconds = {
        "as published": [9.0],
        "torch.nn.Transformer": [1.0],
        "x-transformers in bf16": [3.0, 3.0, 9.0],
        "torch.nn.Transformer in bf16": [4.0, 4.0, 4.0],
        "single in bf16": [2.0],
    }
    in_32_bits = seconds | {"single by oneDNN": [2.0]}
    assert step.last_and_best_peer(options, in_32_bits)[1] == "torch.nn.Transformer"
    found = step.last_and_best_peer(options, seconds)
    assert found == ["single in bf16", "x-transformers in bf16"]
    only = {"as published": [1.0], "single in bf16": [2.0]}
    assert step.last_and_best_peer(options, only) == ["single in bf16"]
    assert step.last_and_best_peer(argparse.Namespace(task="language_model"), seconds) == found[:1]


def test_a_product_of_a_linear_map_is_counted_once(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    operators = importlib.import_module("_operators")
    linear, x = torch.nn.Linear(8, 16), torch.randn(32, 8)
    found = operators.profiled(lambda: linear(x), 1)
    assert {row["operator"] for row in found} >= {"aten::linear", "aten::addmm"}
    products = sum(row["flops"] for row in found if row["class"] == "contraction")
    assert products == pytest.approx(2 * 32 * 8 * 16, rel=0.1)


def test_operators_against_the_limit(tmp_path) -> None:
    pytest.importorskip("transformers")
    file = tmp_path / "operators.json"
    chosen = "this project in GPT-2's form"
    done = benchmark(*TINY, "--only", chosen, "--operators", str(file))
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(file.read_text())
    assert found["contender"] == chosen
    products = found["classes"]["contraction"]
    assert products["flops"] > 0
    assert 0 < products["limit"] <= found["limit_seconds"]
    assert "| class | calls | ms | GFLOP | GB | ms at the limit |" in done.stdout


def test_bad_options_are_refused() -> None:
    assert "needs the manifest of its shards" in benchmark("--rounds", "2").stderr
    done = benchmark(*TINY, "--only", "nobody")
    assert "--only nobody: take of GPT-2 of transformers" in done.stderr
