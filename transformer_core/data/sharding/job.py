"""Tokenize a split into Arrow shards.

A shard is an uncompressed Arrow IPC file with one record batch, so that its token ids are one flat
array in the memory map. The manifest is written last: where it exists, the shards are whole. Until
then progress.json holds what is done, and a job that was killed goes on from there.
"""

import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import Field, field_validator

from schemas.config.data import Filter
from schemas.results.data import CorpusSplit, LengthHistogram, ShardManifest, TextRows
from transformer_core.common.files import sha256
from transformer_core.common.job import Job
from transformer_core.common.progress import Progress
from transformer_core.data.corpus.pairs import PairFile
from transformer_core.data.in_order import in_order
from transformer_core.data.sharding.shard_store import check_any_left, write_manifest
from transformer_core.data.sharding.shard_writer import (
    Done,
    ShardWriter,
    context_rows,
    no_texts,
    unfinished,
)
from transformer_core.data.tokenizing.encoding import Encoded, Encoder
from transformer_core.data.tokenizing.job import load_tokenizer

PAIRS_PER_SHARD = 500_000
_PIECE = 1 << 22
"""Bytes of text that a thread works on at a time."""


@dataclass(frozen=True)
class Part:
    """One of several jobs that share a split; each takes as many pairs."""

    number: int = 0
    """From 0."""
    of: int = 1
    """Number of jobs."""

    def pairs(self, total: int) -> tuple[int, int]:
        """The first pair, and the one after the last."""
        return total * self.number // self.of, total * (self.number + 1) // self.of


WHOLE = Part()


def write_shards(
    pairs: PairFile,
    tokenizer_path: Path,
    rules: Filter,
    output: Path,
    pairs_per_shard: int = PAIRS_PER_SHARD,
    part: Part = WHOLE,
    threads: int = 1,
    context: int | None = None,
) -> ShardManifest:
    """Write the shards of a split, or of a part of it, and their manifest to the folder ``output``.

    With a ``context`` the pairs are texts, which become rows of so many tokens: see
    :mod:`transformer_core.data.sharding.shard_writer`. A few rows are shorter, the last ones of what
    is tokenized at a time.

    Raises CorpusError if a sentence is too long and the filter says error, or if no pair is left
    of the whole split.
    """
    began = time.perf_counter()
    manifest_path = output / "manifest.json"
    # Shards are about to change: an old manifest must not vouch for them.
    manifest_path.unlink(missing_ok=True)
    description = pairs.description()
    tokenizer = load_tokenizer(tokenizer_path)
    encoder = Encoder(tokenizer)
    first, end = part.pairs(len(pairs))
    vocabulary = tokenizer.get_vocab_size()
    nothing = _empty_manifest(description, encoder, vocabulary, tokenizer_path, context)
    settings = [rules.canonical_json(), pairs_per_shard, first, end, context]
    work = partial(_work, [description.sha256, nothing.tokenizer_sha256, *settings])
    done = unfinished(output, work) or Done(first, nothing, work)
    writer = ShardWriter(output, done, rules, description.files, pairs_per_shard)
    encode, add = partial(_encode, encoder), writer.add
    if context is not None:
        encode, add = partial(_encode_texts, encoder, context), writer.add_rows
    pieces = pairs.pieces(done.next_pair, end, _PIECE)
    with (
        ThreadPoolExecutor(threads) as workers,
        Progress(f"shards {description.split}", "pairs", end - first) as progress,
    ):
        progress.update(done.next_pair - first)
        for piece, *sides in in_order(workers, encode, pieces, 2 * threads):
            add(piece, *sides)
            progress.update(piece.num_rows)
    manifest = writer.finish(time.perf_counter() - began)
    if part == WHOLE:
        check_any_left(manifest, pairs.path, rules)
    write_manifest(manifest, manifest_path)
    return manifest


def _empty_manifest(
    description: CorpusSplit,
    encoder: Encoder,
    vocabulary: int,
    tokenizer_path: Path,
    context: int | None,
) -> ShardManifest:
    return ShardManifest(
        corpus=description.corpus,
        split=description.split,
        pairs=0,
        source_tokens=0,
        target_tokens=0,
        skipped_too_long=0,
        examples=[],
        id_type=encoder.id_type.name,  # type: ignore[arg-type]
        vocabulary=vocabulary,
        tokenizer_sha256=sha256(tokenizer_path),
        lengths=LengthHistogram(unit="tokens", source={}, target={}),
        seconds=0.0,
        shards=[],
        texts=None if context is None else TextRows(context=context, texts=0, bytes=0),
    )


def _encode_texts(
    encoder: Encoder, context: int, piece: pa.RecordBatch
) -> tuple[pa.RecordBatch, Encoded, Encoded]:
    rows = context_rows(encoder.encode(piece.column("target")), context)
    return piece, no_texts(len(rows.lengths), like=rows.ids), rows


def _encode(encoder: Encoder, piece: pa.RecordBatch) -> tuple[pa.RecordBatch, Encoded, Encoded]:
    return piece, encoder.encode(piece.column("source")), encoder.encode(piece.column("target"))


def _work(inputs: list[Any]) -> str:
    return hashlib.sha256(json.dumps([*inputs, _code()]).encode()).hexdigest()


@cache
def _code() -> str:
    """The sources that this job depends on: work started by different code is not resumed."""
    # Finding them takes as long as a small corpus, which finishes before they are needed.
    from transformer_core.common.sources import Sources

    return Sources().fingerprint(["transformer_core.data.sharding.job"])


class Shards(Job):
    """To tokenize the sentence pairs of a split, or a part of it, into memory-mappable shards."""

    kind = "shards"

    tokenizer: Path
    """tokenizer.json."""
    filter: Filter
    """filter of the study."""
    pairs: Path
    """Pairs of the split (.arrow, with .json beside)."""
    output: Path
    """Folder for shard-*.arrow and manifest.json."""
    part: str = Field("1-of-1", pattern=r"^[1-9]\d*-of-[1-9]\d*$")
    """Tokenize only this part of the pairs: N-of-COUNT, with N from 1."""
    threads: int = Field(os.cpu_count() or 1, ge=1)
    """Threads that tokenize."""
    pairs_per_shard: int = Field(PAIRS_PER_SHARD, ge=1)
    """Pairs in a shard."""
    context: int | None = Field(None, ge=1)
    """Treat the pairs as texts, and cut them into rows of this many tokens."""

    @field_validator("part")
    @classmethod
    def _is_one_of_them(cls, part: str) -> str:
        if int(part.split("-")[0]) > int(part.split("-")[2]):
            raise ValueError("take N-of-COUNT, with N from 1 to COUNT")
        return part

    def run(self, log_file: Path | None) -> None:
        # Threads of the tokenizer itself, which otherwise starts one for each core of the host.
        os.environ.setdefault("RAYON_NUM_THREADS", str(self.threads))
        number, _, of = self.part.split("-")
        write_shards(
            PairFile(self.pairs),
            self.tokenizer,
            self.filter,
            self.output,
            self.pairs_per_shard,
            Part(int(number) - 1, int(of)),
            self.threads,
            self.context,
        )
