"""Bad study files, many of them: ``python -m transformer_core.faults.configs.job``."""

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.results.faults import FaultRecord
from transformer_core.common.files import write_text
from transformer_core.common.yaml_files import read_yaml
from transformer_core.faults.configs.hostile_files import KINDS
from transformer_core.faults.configs.hostile_values import FRAGMENTS, fields
from transformer_core.faults.configs.judging import judge
from transformer_core.faults.tally import Tally
from transformer_core.study.declarations.claims_file import read_claims
from transformer_core.study.variants import read_variants

_ENTRY, _FILE = "setting_on_the_command_line", "no_regular_file"
_MOST_VARIANTS = 3


def run(count: int, seed: int, config: Path) -> FaultRecord:
    """The verdicts on ``count`` bad files, made from the studies in the folder ``config``."""
    declared = read_variants(config / "variants.yaml")
    claims = read_claims(config / "claims.yaml", *declared)
    studies = [_short(read_yaml(path)) for path in (config / "config.yaml", *_studies(config))]
    tally = Tally("configs", seed)
    kinds = (*KINDS, _ENTRY, _FILE)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            chance = random.Random(f"{seed}/{number}")
            kind, study = kinds[number % len(kinds)], chance.choice(studies)
            file, entries = Path(folder, "study.yaml"), []
            if kind == _FILE:
                file = _no_file(Path(folder), chance)
            elif kind == _ENTRY:
                write_text(file, json.dumps(study))
                entries = [_entry(chance) for _ in range(chance.randint(1, 3))]
            else:
                file.write_bytes(KINDS[kind](study, chance))
            tally.add(kind, number, *judge(file, entries, declared, claims))
    return tally.record()


def _studies(config: Path) -> list[Path]:
    return sorted((config / "studies").glob("*.yaml"))


def _short(study: dict[str, Any]) -> dict[str, Any]:
    """A study with few of its variants, which are all resolved alike."""
    baseline = study.get("baseline", "single")
    others = [name for name in study["variants"] if name != baseline]
    short = {name: value for name, value in study.items() if name not in ("comparisons", "memory")}
    return short | {"variants": [baseline, *others[: _MOST_VARIANTS - 1]]}


def _entry(chance: random.Random) -> str:
    """A KEY=VALUE of the command line."""
    path, value = chance.choice(fields()), chance.choice(FRAGMENTS)[:100_000]
    for name in reversed(path[1:]):
        value = f"{{{name}: {value}}}"
    return chance.choice((f"{path[0]}={value}", f"{path[0]}={value}", f"{path[0]}", f"={value}"))


def _no_file(folder: Path, chance: random.Random) -> Path:
    """A path where no readable regular file is."""
    pipe, loop = folder / "pipe", folder / "loop"
    if not pipe.exists():
        os.mkfifo(pipe)
        loop.symlink_to(loop)
    names = ("nowhere.yaml", ".", "x" * 5_000, "a\0b", "pipe", "loop", "pipe/x", "\udcff.yaml")
    return chance.choice((*(folder / name for name in names), Path("/dev/zero"), Path("/dev/null")))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.faults.configs.job",
        description="Try bad study files: each must be refused clearly, or be the study it says.",
    )
    parser.add_argument("--count", type=int, default=10_000, help="files (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the files (default: %(default)s)")
    parser.add_argument("--config", type=Path, default=Path("config"), help="folder of good ones")
    parser.add_argument("--output", type=Path, required=True, help="results/faults/configs.json")
    options = parser.parse_args(arguments)
    record = run(options.count, options.seed, options.config)
    write_text(options.output, record.model_dump_json(indent=1) + "\n")
    print(f"{options.count:,} files in {record.seconds:.0f} s, {len(record.failures)} faults")
    return 0


if __name__ == "__main__":
    sys.exit(main())
