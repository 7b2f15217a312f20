"""The feeding half of the data benchmark runs, and tells whom it left out."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.pair_files import make_store

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def benchmark(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    # Without the optional libraries, whose first import takes longer than everything else.
    hidden = "import sys; sys.modules.update(dict.fromkeys(('datasets', 'litdata', 'streaming')))"
    script = "import runpy; runpy.run_path('benchmarks/data.py', run_name='__main__')"
    path = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", f"{hidden}; {script}", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_table_with_ratios_and_reasons(tmp_path):
    make_store(tmp_path)
    output = tmp_path / "data.csv"
    manifest = tmp_path / "shards" / "manifest.json"
    done = benchmark(
        *("--shards", manifest, "--rounds", "2", "--seconds", "0.01"),
        *("--plan-pairs", "500", "--output", output),
    )
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
