"""Tokenizes a split into Arrow shards.

A shard is an uncompressed Arrow IPC file with one record batch, so that its token ids form one flat
array in the memory map. We write the manifest last: if it exists, the shards are complete. Until
then progress.json records the finished work, and a killed job resumes from there.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, ValidationError, field_validator

from schemas.config.data import Filter
from schemas.results.data import (
    LengthHistogram,
    Shard,
    ShardManifest,
    ShardProgress,
    SkippedPair,
    TextRows,
)
from transformer_core.common.digests import digest
from transformer_core.common.files import atomic_path, sha256, write_text
from transformer_core.common.job import Job
from transformer_core.common.progress import Progress
from transformer_core.common.tables import arrow_array
from transformer_core.data.arrays import (
    Integers,
    add_counts,
    count_lengths,
    in_order,
    ranges,
)
from transformer_core.data.corpus.pairs import PairFile
from transformer_core.data.corpus.rows import EXAMPLES, CorpusError, snippet, where
from transformer_core.data.sharding.shard_store import (
    PROGRESS,
    check_any_left,
    write_manifest,
)
from transformer_core.data.tokenizing.encoding import Encoded, Encoder, concatenate
from transformer_core.data.tokenizing.job import load_tokenizer
from transformer_core.data.tokenizing.special_tokens import EOS

logger = logging.getLogger(__name__)

PAIRS_PER_SHARD = 500_000
_TOKENS_PER_SHARD = 1 << 26
"""Tokens at which a shard, which is built in memory, is full whatever its number of pairs."""
_PIECE = 1 << 22  # bytes of text that a thread works on at a time


def _encode(
    encoder: Encoder, context: int | None, piece: pa.RecordBatch
) -> tuple[pa.RecordBatch, Encoded, Encoded]:
    target = encoder.encode(piece.column("target"))
    if context is None:
        return piece, encoder.encode(piece.column("source")), target
    rows = context_rows(target, context)
    nothing = Encoded(np.empty(0, rows.ids.dtype), np.zeros(len(rows.lengths) + 1, np.int64))
    return piece, nothing, rows


def context_rows(texts: Encoded, context: int) -> Encoded:
    """Cuts texts, each ended by EOS, into rows of ``context`` tokens; the last may be shorter.

    A text that does not fit into a row continues in the next.
    """
    lengths = texts.lengths
    ends = np.cumsum(lengths + 1) - 1
    ids = np.full(len(texts.ids) + len(lengths), EOS, texts.ids.dtype)
    ids[ranges(ends - lengths, lengths)] = texts.ids
    rows = -(-len(ids) // context)
    offsets = np.minimum(np.arange(rows + 1, dtype=np.int64) * context, len(ids))
    return Encoded(ids, offsets)


@cache
def _code() -> str:
    """Fingerprint of this job's sources: work started by different code is not resumed."""
    # Computed late, because it takes as long as a small corpus, which never needs it.
    from transformer_core.common.sources import Sources

    return Sources().fingerprint(["transformer_core.data.sharding.job"])


class ShardWriter:
    """Collects pairs; once a shard is full, writes it and records the progress.

    Pairs with a side of more than ``max_tokens`` tokens are left out, or refused. ``files`` are those
    of source and target; ``work`` identifies the work by a checksum of input, settings and code. If an
    earlier job left intact shards of the same work, we continue after them; otherwise with the pair
    ``first`` and the manifest ``nothing``.
    """

    def __init__(
        self,
        order: "Shards",
        files: list[str],
        work: Callable[[], str],
        first: int,
        nothing: ShardManifest,
    ) -> None:
        self._folder, self._rules = order.output, order.filter
        self._full, self._files, self._work = order.pairs_per_shard, files, work
        done = self._unfinished()
        self.next_pair = done.next_pair if done else first
        self._manifest = done.manifest if done else nothing
        self._began = time.perf_counter() - self._manifest.seconds
        self._pending: list[tuple[Encoded, Encoded]] = []
        self._pairs = self._tokens = 0

    def add(self, batch: pa.RecordBatch, source: Encoded, target: Encoded) -> None:
        """Adds the next pairs of the split, and writes full shards."""
        limit = self._rules.max_tokens
        kept = (source.lengths <= limit) & (target.lengths <= limit)
        places = np.flatnonzero(kept)
        start, before = 0, 0
        while start < len(kept):
            room = self._full - self._pairs
            # Including the pair that fills the shard.
            stop = int(places[before + room - 1]) + 1 if before + room <= len(places) else len(kept)
            mine = source.part(start, stop), target.part(start, stop)
            rows = np.flatnonzero(kept[start:stop])
            if len(rows) < stop - start:
                self._leave_out(batch.slice(start), *mine, np.flatnonzero(~kept[start:stop]))
                mine = mine[0].take(rows), mine[1].take(rows)
            before += len(rows)
            self._append(*mine, stop - start)
            start = stop

    def add_rows(self, batch: pa.RecordBatch, source: Encoded, target: Encoded) -> None:
        """Adds rows of the texts of ``batch``, whose source is empty, and writes a full shard.

        A shard ends with a batch, so that a resumed job begins with a whole text.
        """
        texts, size = self._manifest.texts, pc.sum(pc.binary_length(batch.column("target")))
        counted = {"texts": batch.num_rows, "bytes": int(size.as_py() or 0)}
        more = {name: getattr(texts, name) + count for name, count in counted.items()}
        self._update(texts=texts and texts.model_copy(update=more))
        self._append(source, target, batch.num_rows)

    def finish(self) -> ShardManifest:
        """Writes the remaining pairs; returns the manifest."""
        if self._pairs:
            self._flush()
        self._update(seconds=time.perf_counter() - self._began)
        return self._manifest

    def _update(self, **fields: Any) -> None:
        self._manifest = self._manifest.model_copy(update=fields)

    def _unfinished(self) -> ShardProgress | None:
        for torn in self._folder.glob(".shard-*.tmp"):
            torn.unlink()
        try:
            done = ShardProgress.model_validate_json((self._folder / PROGRESS).read_bytes())
            if done.work != self._work() or any(
                sha256(self._folder / s.file) != s.sha256 for s in done.manifest.shards
            ):
                return None
        except (OSError, ValidationError):
            return None
        logger.info("%s: resumes after %s finished shards", self._folder, len(done.manifest.shards))
        return done

    def _append(self, source: Encoded, target: Encoded, pairs: int) -> None:
        """Adds the kept ones of the next ``pairs`` pairs of the split."""
        self._pending.append((source, target))
        self._pairs += len(target.lengths)
        self._tokens += len(source.ids) + len(target.ids)
        self.next_pair += pairs
        if self._pairs >= self._full or self._tokens >= _TOKENS_PER_SHARD:
            self._flush()
            done = ShardProgress(
                work=self._work(), next_pair=self.next_pair, manifest=self._manifest
            )
            write_text(self._folder / PROGRESS, done.model_dump_json())

    def _leave_out(
        self, batch: pa.RecordBatch, source: Encoded, target: Encoded, rows: Integers
    ) -> None:
        limit, examples = self._rules.max_tokens, list(self._manifest.examples)
        stop = 1 if self._rules.too_long == "error" else EXAMPLES - len(examples)
        for row in rows[:stop].tolist():
            side, tokens = "source", source.lengths[row]
            if tokens <= limit:
                side, tokens = "target", target.lengths[row]
            text, line = batch.column(side)[row].as_py(), batch.column("line")[row].as_py()
            file = self._files[0 if side == "source" else -1]
            if self._rules.too_long == "error":
                raise CorpusError(
                    f"the {side} has {tokens} tokens, more than filter.max_tokens = {limit}",
                    file=file,
                    line=line,
                    value=text,
                    remedy="set filter.too_long: skip to leave such pairs out, "
                    "raise filter.max_tokens, or shorten the sentence",
                )
            place = where(file, line)
            examples.append(SkippedPair(reason="too_long", where=place, text=snippet(text)))
        skipped = self._manifest.skipped_too_long + len(rows)
        self._update(skipped_too_long=skipped, examples=examples)

    def _flush(self) -> None:
        source, target = map(concatenate, zip(*self._pending, strict=True))
        found = self._manifest
        path = self._folder / f"shard-{len(found.shards):05d}.arrow"
        try:
            with atomic_path(path) as temporary:
                _write(temporary, source, target)
                shard = Shard(
                    file=path.name,
                    pairs=self._pairs,
                    source_tokens=len(source.ids),
                    target_tokens=len(target.ids),
                    bytes=temporary.stat().st_size,
                    sha256=sha256(temporary),
                    xxh3=digest(temporary),
                )
        except OSError as error:
            raise CorpusError(
                f"cannot be written ({error})",
                file=path,
                remedy="free disk space, then run the same command again: finished shards are kept",
            ) from None
        logger.info("%s: %s pairs", path, f"{self._pairs:,}")
        lengths = LengthHistogram(
            unit="tokens",
            source=add_counts([found.lengths.source, count_lengths(source.lengths)]),
            target=add_counts([found.lengths.target, count_lengths(target.lengths)]),
        )
        self._update(
            pairs=found.pairs + shard.pairs,
            source_tokens=found.source_tokens + shard.source_tokens,
            target_tokens=found.target_tokens + shard.target_tokens,
            lengths=lengths,
            shards=[*found.shards, shard],
            seconds=time.perf_counter() - self._began,
        )
        self._pending, self._pairs, self._tokens = [], 0, 0


def _write(path: Path, source: Encoded, target: Encoded) -> None:
    columns = [
        pa.LargeListArray.from_arrays(arrow_array(side.offsets), arrow_array(side.ids))
        for side in (source, target)
    ]
    batch = pa.record_batch(columns, names=["source", "target"])
    options = pa.ipc.IpcWriteOptions(compression=None)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, batch.schema, options=options) as f,
    ):
        f.write_batch(batch)


class Shards(Job):
    """Tokenizes the sentence pairs of a split, or a part of it, into memory-mappable shards."""

    kind = "shards"

    tokenizer: Path  # tokenizer.json
    filter: Filter  # filter of the study
    pairs: Path  # pairs of the split (.arrow, with a .json next to it)
    output: Path  # folder for shard-*.arrow and manifest.json
    part: str = Field("1-of-1", pattern=r"^[1-9]\d*-of-[1-9]\d*$")
    """Tokenize only this part of the pairs: N-of-COUNT, with N from 1."""
    threads: int = Field(os.cpu_count() or 1, ge=1)  # threads that tokenize
    pairs_per_shard: int = Field(PAIRS_PER_SHARD, ge=1)  # pairs in a shard
    context: int | None = Field(None, ge=1)
    """Treat the pairs as texts and cut them into rows of this many tokens; the last row of each piece
    of text tokenized at a time may be shorter."""

    @field_validator("part")
    @classmethod
    def _is_one_of_them(cls, part: str) -> str:
        number, count = map(int, part.split("-of-"))
        if number > count:
            raise ValueError(f"{part} is not N-of-COUNT with N from 1 to COUNT")
        return part

    def run(self, log_file: Path | None) -> None:
        # The tokenizer's own threads; otherwise it starts one for each core of the host.
        os.environ.setdefault("RAYON_NUM_THREADS", str(self.threads))
        began = time.perf_counter()
        pairs = PairFile(self.pairs)
        manifest_path = self.output / "manifest.json"
        # The shards are about to change, so an old manifest must not vouch for them.
        manifest_path.unlink(missing_ok=True)
        description = pairs.description()
        tokenizer = load_tokenizer(self.tokenizer)
        encoder, context = Encoder(tokenizer), self.context
        number, jobs = map(int, self.part.split("-of-"))
        first, end = (len(pairs) * n // jobs for n in (number - 1, number))
        nothing = ShardManifest(
            corpus=description.corpus,
            split=description.split,
            pairs=0,
            source_tokens=0,
            target_tokens=0,
            skipped_too_long=0,
            examples=[],
            id_type=encoder.id_type.name,  # type: ignore[arg-type]
            vocabulary=tokenizer.get_vocab_size(),
            tokenizer_sha256=sha256(self.tokenizer),
            lengths=LengthHistogram(unit="tokens", source={}, target={}),
            seconds=time.perf_counter() - began,
            shards=[],
            texts=None if context is None else TextRows(context=context, texts=0, bytes=0),
        )
        inputs = [description.sha256, nothing.tokenizer_sha256, self.filter.canonical_json()]

        def work() -> str:
            settings = [self.pairs_per_shard, first, end, context]
            return hashlib.sha256(json.dumps([*inputs, *settings, _code()]).encode()).hexdigest()

        writer = ShardWriter(self, pairs.files, work, first, nothing)
        add = writer.add if context is None else writer.add_rows
        encode = partial(_encode, encoder, context)
        pieces = pairs.pieces(writer.next_pair, end, _PIECE)
        progress = Progress(f"shards {description.split}", "pairs", end - first)
        progress.start(writer.next_pair - first)
        with closing(progress), ThreadPoolExecutor(self.threads) as workers:
            for piece, *sides in in_order(workers, encode, pieces, 2 * self.threads):
                add(piece, *sides)
                progress.update(piece.num_rows)
        manifest = writer.finish()
        if jobs == 1:
            check_any_left(manifest, self.pairs, self.filter)
        write_manifest(manifest, manifest_path)
