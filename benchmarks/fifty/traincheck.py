"""Runs TrainCheck on the Fifty, for the last column of the table in docs/audit.md.

TrainCheck (Jiang et al., Training with Confidence, OSDI 2025) infers invariants from the trace of a
correct training, and reports those that another training violates. Here it infers them from the
mended program and checks two others: the mended one with other seeds, whose violations are false
alarms, and the faulty one. It sees an error if the faulty program violates an invariant that the
other seeds do not.

``python -m benchmarks.fifty.traincheck [names]`` needs the commands of traincheck 0.2.0 on the
PATH, and at least four minutes of one core for a pair. Programs with two ranks are not traced.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.fifty.__main__ import (
    FIRST_TABLE,
    HEAD,
    PLACE,
    every_pair,
    pair,
    table_of,
    write_cells,
)

LIMIT = 1_800
"""Seconds for each command."""
SHARED = """
import os
FAULTY = os.environ["WHICH"] == "faulty"
_seed = torch.manual_seed
torch.manual_seed = lambda seed: _seed(seed + int(os.environ["SEEDS"]))
"""
"""Replaces the argument in a copy of common.py, since a traced program gets none."""


def command(folder: Path, *words: str, which: str = "mended", seeds: int = 0) -> str:
    """Runs a command of TrainCheck and returns what it prints; RuntimeError if it fails."""
    environment = os.environ | {"WHICH": which, "SEEDS": str(seeds), "OMP_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{words[0]} takes more than {LIMIT // 60} minutes") from None
    if ended.returncode:
        last = (ended.stderr.strip() or "no message").splitlines()[-1]
        raise RuntimeError(f"{words[0]} fails: {last[:80]}")
    return ended.stdout + ended.stderr


def trace(folder: Path, name: str, out: str, *options: str, which: str, seeds: int) -> None:
    """Runs a program and keeps its trace in the folder ``out``."""
    words = ["traincheck-collect", "-p", f"{name}.py", "-t", "torch", "-a", "--output-dir", out]
    words += ["--models-to-track", "model", *options]
    command(folder, *words, which=which, seeds=seeds)
    if not any(folder.glob(f"{out}/trace_*")):
        raise RuntimeError("the program leaves no trace under it")


def violated(folder: Path, out: str) -> tuple[set[str], int]:
    """The invariants that a trace violates, and how many were checked."""
    printed = command(folder, "traincheck-check", "-f", out, "-i", "invariants.json")
    checked = re.search(r"Total failed invariants: \d+/(\d+)", printed)
    if checked is None:
        raise RuntimeError("traincheck-check says nothing")
    found = set()
    for results in folder.glob("traincheck_checker_results_*"):
        for file in results.rglob("failed.log"):
            found |= {json.dumps(one["invariant"]) for one in objects(file.read_text())}
        shutil.rmtree(results)
    return found, int(checked[1])


def objects(text: str) -> list[dict[str, Any]]:
    """JSON objects that follow each other."""
    decoder, found, at = json.JSONDecoder(), [], text.find("{")
    while at >= 0:
        one, end = decoder.raw_decode(text, at)
        found.append(one)
        at = text.find("{", end)
    return found


def measure(name: str) -> str:
    """The cell of a pair."""
    words = (PLACE / f"{name}.py").read_text().split('"""')[1].splitlines()
    if any(line.startswith(("ranks: ", "replay: ")) for line in words):
        return ""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "programs"
        shutil.copytree(PLACE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        common = folder / "common.py"
        before, line, after = common.read_text().partition('FAULTY = "faulty" in sys.argv\n')
        assert line
        common.write_text(before + SHARED + after)
        try:
            trace(folder, name, "clean", which="mended", seeds=0)
            command(folder, "traincheck-infer", "-f", "clean", "-o", "invariants.json")
            only = ["-i", "invariants.json"]
            trace(folder, name, "other", *only, which="mended", seeds=1_000)
            trace(folder, name, "faulty", *only, which="faulty", seeds=0)
            (alarms, count), (faulty, _) = violated(folder, "other"), violated(folder, "faulty")
        except RuntimeError as error:
            return f"not run: {error}"
    seen = len(faulty - alarms)
    said = f"{seen} of {count:,}" if seen else "**no**"
    return f"{said}; other seeds {len(alarms)}" if alarms else said


def main() -> None:
    """Measures pairs and writes their cells."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fifty.traincheck", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "names", nargs="*", type=pair, help="pairs (the Fifty by default; others are only printed)"
    )
    fifty = [name for name in every_pair() if table_of(name) == FIRST_TABLE]
    for name in parser.parse_args().names or fifty:
        cell = measure(name)
        print(f"{name} | {cell}", flush=True)
        if table_of(name) == FIRST_TABLE:  # No other table has a column for it.
            write_cells(name, len(HEAD) - 1, [cell])


if __name__ == "__main__":
    main()
