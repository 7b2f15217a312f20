"""Compare every shard with its checksum."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from schemas.results.data import CheckedSplit, DataCheck
from transformer_core.common.digests import write_result
from transformer_core.common.job import Job
from transformer_core.common.progress import Progress, log
from transformer_core.data.sharding.shard_store import (
    ShardError,
    check_shard,
    open_shards,
    read_manifest,
)


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


class VerifyData(Job):
    """To compare every shard with the checksum in its manifest. Damaged shards are listed with the
    command that makes them again."""

    kind = "verify_data"

    manifests: list[Path]
    """manifest.json of each split."""
    output: Path
    """verify.json to write."""

    def run(self, log_file: Path | None) -> int:
        began = time.perf_counter()
        splits, problems = check(self.manifests)
        for problem in problems:
            print(problem, file=sys.stderr)
        if problems:
            self.output.unlink(missing_ok=True)
            return 1
        record = DataCheck(splits=splits, seconds=time.perf_counter() - began)
        write_result(self.output, record.model_dump_json(indent=2) + "\n")
        log.info("%s: %s bytes are whole", self.output, f"{sum(s.bytes for s in splits):,}")
        return 0
