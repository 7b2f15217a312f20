"""Compare every shard with its checksum: ``python -m transformer_core.data.sharding.verify``."""

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from schemas.results.data import CheckedSplit, DataCheck
from transformer_core.common.endings import program
from transformer_core.common.progress import Progress
from transformer_core.common.seals import write_sealed
from transformer_core.data.sharding.shard_store import (
    ShardError,
    check_shard,
    open_shards,
    read_manifest,
)

LOG = logging.getLogger(__name__)


def check(manifests: Sequence[Path]) -> tuple[list[CheckedSplit], list[ShardError]]:
    """The record of whole shards, and the errors of all others. Reads all shards of the ``manifests``."""
    whole, problems = [], []
    for path in manifests:
        try:
            split, found = _check_split(path)
        except ShardError as error:
            problems.append(error)
            continue
        problems += found
        if not found:
            whole.append(split)
    return whole, problems


def _check_split(path: Path) -> tuple[CheckedSplit, list[ShardError]]:
    manifest = read_manifest(path)
    size = sum(shard.bytes for shard in manifest.shards)
    problems = []
    with Progress(f"check {manifest.split}", "bytes", size) as progress:
        for shard in manifest.shards:
            try:
                check_shard(path, shard)
            except ShardError as error:
                problems.append(error)
            progress.update(shard.bytes)
    if not problems:
        open_shards(path)
    split = CheckedSplit(
        manifest=str(path),
        split=manifest.split,
        pairs=manifest.pairs,
        shards=len(manifest.shards),
        bytes=size,
    )
    return split, problems


@program
def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 if everything is whole, 2 after a message for each file that is not."""
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.data.sharding.verify",
        description="Compare every shard with the checksum in its manifest. Damaged shards are listed "
        "with the command that makes them again.",
    )
    parser.add_argument("--output", required=True, type=Path, help="verify.json to write")
    parser.add_argument("manifests", nargs="+", type=Path, help="manifest.json of each split")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    began = time.perf_counter()
    splits, problems = check(options.manifests)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        options.output.unlink(missing_ok=True)
        return 2
    record = DataCheck(splits=splits, seconds=time.perf_counter() - began)
    write_sealed(options.output, record.model_dump_json(indent=2) + "\n")
    LOG.info("%s: %s bytes are whole", options.output, f"{sum(s.bytes for s in splits):,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
