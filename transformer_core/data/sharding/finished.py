"""Jobs on finished shards: merge the manifests of a split's parts, verify all shards against their
checksums, and export a split as one Parquet file."""

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from schemas.config.data import Filter
from schemas.errors import Refusal
from schemas.results.data import CheckedSplit, DataCheck, LengthHistogram
from transformer_core.common.digests import write_result
from transformer_core.common.files import atomic_path
from transformer_core.common.job import Job
from transformer_core.common.progress import Progress, log
from transformer_core.data.arrays import add_counts
from transformer_core.data.corpus.rows import EXAMPLES
from transformer_core.data.sharding.shard_store import (
    ShardError,
    check_any_left,
    check_shard,
    open_shards,
    read_manifest,
    write_manifest,
)
from transformer_core.data.tokenizing.job import load_tokenizer

SIDES = ("source", "target")


class GatherShards(Job):
    """Writes the manifest of a split from the manifests of its parts.

    Raises CorpusError if a part is missing or damaged, or if no pair is left.
    """

    kind = "gather_shards"

    filter: Filter  # filter of the study
    parts: list[Path] = Field(min_length=1)  # manifest.json of each part, in order
    output: Path  # manifest.json to write, above the parts

    def run(self, log_file: Path | None) -> None:
        parts = [read_manifest(path) for path in self.parts]
        first, above = parts[0], self.output.parent
        added = ("pairs", "source_tokens", "target_tokens", "skipped_too_long", "seconds")
        lengths = {
            side: add_counts(getattr(part.lengths, side) for part in parts) for side in SIDES
        }
        texts = {n: sum(getattr(part.texts, n, 0) for part in parts) for n in ("texts", "bytes")}
        shards = [
            shard.model_copy(update={"file": str(path.parent.relative_to(above) / shard.file)})
            for path, part in zip(self.parts, parts, strict=True)
            for shard in part.shards
        ]
        made = first.model_copy(
            update={
                **{name: sum(getattr(part, name) for part in parts) for name in added},
                "examples": [example for part in parts for example in part.examples][:EXAMPLES],
                "lengths": LengthHistogram(unit="tokens", **lengths),
                "shards": shards,
                "texts": first.texts and first.texts.model_copy(update=texts),
            }
        )
        check_any_left(made, self.output, self.filter)
        write_manifest(made, self.output, [path.parent for path in self.parts])
        log.info("%s: %s pairs in %d shards", self.output, f"{made.pairs:,}", len(made.shards))


def check_split(path: Path) -> CheckedSplit | list[ShardError]:
    """Reads all shards of a split. Returns its record if they are intact, otherwise all faults."""
    problems: list[ShardError] = []
    try:
        manifest = read_manifest(path)
        size = sum(shard.bytes for shard in manifest.shards)
        with Progress(f"check {manifest.split}", "bytes", size) as progress:
            for shard in manifest.shards:
                try:
                    check_shard(path, shard)
                except ShardError as error:
                    problems.append(error)
                progress.update(shard.bytes)
        if problems:
            return problems
        open_shards(path)
    except ShardError as error:
        return [error]
    return CheckedSplit(
        manifest=str(path),
        split=manifest.split,
        pairs=manifest.pairs,
        shards=len(manifest.shards),
        bytes=size,
    )


class VerifyData(Job):
    """Compares every shard with the checksum in its manifest. Raises Refusal if any are damaged, which
    lists them with the command that makes them again."""

    kind = "verify_data"

    manifests: list[Path]  # manifest.json of each split
    output: Path  # verify.json to write

    def run(self, log_file: Path | None) -> None:
        began = time.perf_counter()
        found = [check_split(path) for path in self.manifests]
        splits = [split for split in found if isinstance(split, CheckedSplit)]
        if problems := [str(p) for split in found if isinstance(split, list) for p in split]:
            self.output.unlink(missing_ok=True)
            raise Refusal("\n".join(problems))
        record = DataCheck(splits=splits, seconds=time.perf_counter() - began)
        write_result(self.output, record.model_dump_json(indent=2) + "\n")
        log.info("%s: %s bytes are intact", self.output, f"{sum(s.bytes for s in splits):,}")


ROW_GROUP = 50_000  # pairs in memory at a time


class ExportParquet(Job):
    """Writes a tokenized split as one Parquet file with the columns source_ids and target_ids (lists
    of integers, without begin and end), and source and target (the decoded text)."""

    kind = "export_parquet"

    manifest: Path  # manifest.json of the split
    tokenizer: Path  # tokenizer.json
    output: Path  # Parquet file to write

    def run(self, log_file: Path | None) -> None:
        store = open_shards(self.manifest)
        tokenizer = load_tokenizer(self.tokenizer, store.manifest.tokenizer_sha256)
        ids = pa.list_(pa.from_numpy_dtype(store.manifest.id_type))
        schema = pa.schema(
            [(f"{side}_ids", ids) for side in SIDES] + [(side, pa.string()) for side in SIDES],
            metadata={"corpus": store.manifest.corpus, "split": store.manifest.split},
        )
        with (
            atomic_path(self.output) as temporary,
            pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
            Progress(f"export {store.manifest.split}", "pairs", len(store)) as progress,
        ):
            for start in range(0, len(store), ROW_GROUP):
                rows = list(range(start, min(start + ROW_GROUP, len(store))))
                sides = [store.source_rows(rows), store.target_rows(rows)]
                columns = [pa.array(side, ids) for side in sides]
                texts = [tokenizer.decode_batch(column.to_pylist()) for column in columns]
                columns += [pa.array(side, pa.string()) for side in texts]
                writer.write_table(pa.table(columns, schema=schema))
                progress.update(len(rows))
        log.info("%s: %s pairs", self.output, f"{len(store):,}")
