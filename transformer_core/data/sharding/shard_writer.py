"""Writing of shards, each followed by the progress from which a killed job resumes."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import ValidationError

from schemas.config.data import Filter
from schemas.results.data import Shard, ShardManifest, ShardProgress, SkippedPair
from transformer_core.common.digests import digest
from transformer_core.common.files import atomic_path, sha256, write_text
from transformer_core.data.arrays import arrow_array, ranges
from transformer_core.data.corpus.rows import CorpusError, snippet, where
from transformer_core.data.sharding.shard_store import (
    EXAMPLES,
    PROGRESS,
    with_shard,
)
from transformer_core.data.tokenizing.encoding import Encoded, concatenate
from transformer_core.data.tokenizing.special_tokens import EOS

logger = logging.getLogger(__name__)

_TOKENS_PER_SHARD = 1 << 26
"""A shard has hardly more tokens, however long its sentences: it is made in memory."""


@dataclass(frozen=True)
class Done:
    """The progress of a job."""

    next_pair: int
    """The first pair of the split after those of finished shards."""
    manifest: ShardManifest
    """The manifest as far as it is known."""
    work: Callable[[], str]
    """Identifies the work: checksum of input, settings and code."""

    def write(self, folder: Path) -> None:
        """Saves it in ``folder``, for a job that resumes from here."""
        kept = ShardProgress(
            work=self.work(), next_pair=self.next_pair, manifest=self.manifest
        ).model_dump_json()
        write_text(folder / PROGRESS, kept)


def unfinished(folder: Path, work: Callable[[], str]) -> Done | None:
    """The shards that an earlier job left of the same work, if they are unchanged."""
    for torn in folder.glob(".shard-*.tmp"):
        torn.unlink()
    try:
        text = (folder / PROGRESS).read_bytes()
        found = ShardProgress.model_validate_json(text)
        if found.work != work() or any(
            sha256(folder / s.file) != s.sha256 for s in found.manifest.shards
        ):
            return None
    except (OSError, ValidationError):
        return None
    logger.info("%s: goes on after %s finished shards", folder, len(found.manifest.shards))
    return Done(found.next_pair, found.manifest, work)


class ShardWriter:
    """Collects pairs and writes a shard, and then the progress, whenever there are enough.

    Pairs with a side of more than ``max_tokens`` tokens are left out, or refused.
    """

    def __init__(
        self,
        folder: Path,
        done: Done,
        rules: Filter,
        files: list[str],
        pairs_per_shard: int,
    ) -> None:
        self._folder = folder
        self._done = done
        self._rules = rules
        self._files = files
        self._full = pairs_per_shard
        self._skipped = done.manifest.skipped_too_long
        self._examples = list(done.manifest.examples)
        self._next_pair = done.next_pair
        self._pending: list[tuple[Encoded, Encoded]] = []
        self._pairs = self._tokens = 0
        self._texts = self._bytes = 0

    def add(self, batch: pa.RecordBatch, source: Encoded, target: Encoded) -> None:
        """Append the next pairs of the split; full shards are written."""
        limit = self._rules.max_tokens
        kept = (source.lengths <= limit) & (target.lengths <= limit)
        places = np.flatnonzero(kept)
        start, before = 0, 0
        while start < len(kept):
            room = self._full - self._pairs
            # Up to and with the pair that fills the shard.
            stop = int(places[before + room - 1]) + 1 if before + room <= len(places) else len(kept)
            self._take(
                batch.slice(start, stop - start),
                source.part(start, stop),
                target.part(start, stop),
                kept[start:stop],
            )
            self._next_pair += stop - start
            before += int(kept[start:stop].sum())
            start = stop
            if self._pairs == self._full or self._tokens >= _TOKENS_PER_SHARD:
                self._flush()
                self._done.write(self._folder)

    def add_rows(self, batch: pa.RecordBatch, source: Encoded, target: Encoded) -> None:
        """Append rows of the texts of ``batch``; their source is empty. A full shard is written.

        A shard ends with such a batch: a resumed job begins with a whole text.
        """
        self._pending.append((source, target))
        self._pairs += len(target.lengths)
        self._tokens += len(target.ids)
        self._next_pair += batch.num_rows
        self._texts += batch.num_rows
        self._bytes += int(pc.sum(pc.binary_length(batch.column("target"))).as_py() or 0)
        if self._pairs >= self._full or self._tokens >= _TOKENS_PER_SHARD:
            self._flush()
            self._done.write(self._folder)

    def finish(self, seconds: float) -> ShardManifest:
        """Write what is left; the manifest, with the ``seconds`` that this job took."""
        if self._pairs:
            self._flush()
        manifest = self._manifest()
        return manifest.model_copy(update={"seconds": manifest.seconds + seconds})

    def _take(
        self, batch: pa.RecordBatch, source: Encoded, target: Encoded, kept: NDArray[np.bool_]
    ) -> None:
        if not kept.all():
            self._leave_out(batch, source, target, np.flatnonzero(~kept))
            rows = np.flatnonzero(kept)
            source, target = source.take(rows), target.take(rows)
        self._pending.append((source, target))
        self._pairs += len(source.lengths)
        self._tokens += len(source.ids) + len(target.ids)

    def _leave_out(
        self, batch: pa.RecordBatch, source: Encoded, target: Encoded, rows: NDArray[np.int64]
    ) -> None:
        limit = self._rules.max_tokens
        self._skipped += len(rows)
        stop = 1 if self._rules.too_long == "error" else EXAMPLES - len(self._examples)
        for row in rows[:stop].tolist():
            side, tokens = "source", source.lengths[row]
            if tokens <= limit:
                side, tokens = "target", target.lengths[row]
            text, line = batch.column(side)[row].as_py(), batch.column("line")[row].as_py()
            # Two files are source and target; a single one holds both sides.
            file = self._files[0 if side == "source" else -1] if self._files else "(unknown)"
            if self._rules.too_long == "error":
                raise CorpusError(
                    f"{side} has {tokens} tokens, more than filter.max_tokens = {limit}",
                    file=file,
                    line=line,
                    value=text,
                    remedy="set filter.too_long: skip to leave such pairs out, "
                    "raise filter.max_tokens, or shorten the sentence",
                )
            self._examples.append(
                SkippedPair(reason="too_long", where=where(file, line), text=snippet(text))
            )

    def _flush(self) -> None:
        source = concatenate([source for source, _ in self._pending])
        target = concatenate([target for _, target in self._pending])
        number = len(self._done.manifest.shards)
        path = self._folder / f"shard-{number:05d}.arrow"
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
                remedy="make room, then run the same command again: finished shards are kept",
            ) from None
        logger.info("%s: %s pairs", path, f"{self._pairs:,}")
        manifest = with_shard(self._manifest(), shard, source, target)
        self._done = Done(self._next_pair, manifest, self._done.work)
        self._pending, self._pairs, self._tokens = [], 0, 0
        self._texts = self._bytes = 0

    def _manifest(self) -> ShardManifest:
        """The manifest of the shards written so far, and of all pairs left out."""
        found = self._done.manifest
        texts = found.texts and found.texts.model_copy(
            update={
                "texts": found.texts.texts + self._texts,
                "bytes": found.texts.bytes + self._bytes,
            }
        )
        return found.model_copy(
            update={"skipped_too_long": self._skipped, "examples": self._examples, "texts": texts}
        )


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


def context_rows(texts: Encoded, context: int) -> Encoded:
    """Rows of ``context`` tokens, the last one with what is left.

    Every text ends with EOS; where a row is full, the text goes on in the next one.
    """
    lengths = texts.lengths
    ends = np.cumsum(lengths + 1) - 1
    ids = np.full(len(texts.ids) + len(lengths), EOS, texts.ids.dtype)
    ids[ranges(ends - lengths, lengths)] = texts.ids
    rows = -(-len(ids) // context)
    offsets = np.minimum(np.arange(rows + 1, dtype=np.int64) * context, len(ids))
    return Encoded(ids, offsets)


def no_texts(rows: int, like: NDArray[np.integer]) -> Encoded:
    """The source side of ``rows`` rows: nothing."""
    return Encoded(np.empty(0, like.dtype), np.zeros(rows + 1, np.int64))
