"""Tokenize a split into Arrow shards: ``python -m transformer_core.data.shards``.

A shard is an uncompressed Arrow IPC file with one record batch, so that its token ids are one flat
array in the memory map. The manifest is written last: where it exists, the shards are whole. Until
then progress.json holds what is done, and a job that was killed goes on from there.
"""

import argparse
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ValidationError

from schemas.data import Filter
from schemas.errors import ConfigError, from_validation
from schemas.results import (
    LengthHistogram,
    Shard,
    ShardManifest,
    ShardProgress,
    SkippedPair,
)
from transformer_core.data.encoding import Encoded, Encoder, concatenate
from transformer_core.data.files import (
    CorpusError,
    atomic_path,
    sha256,
    snippet,
    where,
    write_text,
)
from transformer_core.data.in_order import in_order
from transformer_core.data.lengths import add_counts, count_lengths
from transformer_core.data.pairs import PairFile
from transformer_core.data.progress import Progress
from transformer_core.data.tokenizer import load_tokenizer
from transformer_core.sources import sources

logger = logging.getLogger(__name__)

PAIRS_PER_SHARD = 500_000
_PIECE = 1 << 22
"""Bytes of text that a thread works on at a time."""
_LITTLE = 1 << 22
"""Bytes of pairs that are encoded before the table of words would be compiled."""
_TOKENS_PER_SHARD = 1 << 26
"""A shard has hardly more tokens, however long its sentences: it is made in memory."""
EXAMPLES = 10
"""Pairs left out that a manifest shows."""
_PROGRESS = "progress.json"


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
) -> ShardManifest:
    """Write the shards of a split, or of a part of it, and their manifest to the folder ``output``.

    Raises CorpusError if a sentence is too long and the filter says error, or if no pair is left
    of the whole split.
    """
    began = time.perf_counter()
    manifest_path = output / "manifest.json"
    # Shards are about to change: an old manifest must not vouch for them.
    manifest_path.unlink(missing_ok=True)
    description = pairs.description()
    tokenizer = load_tokenizer(tokenizer_path)
    encoder = Encoder(tokenizer, by_word=description.bytes // part.of >= _LITTLE)
    first, end = part.pairs(len(pairs))
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
        tokenizer_sha256=sha256(tokenizer_path),
        lengths=LengthHistogram(unit="tokens", source={}, target={}),
        seconds=0.0,
        shards=[],
    )
    settings = [rules.canonical_json(), pairs_per_shard, first, end]
    work = _digest([description.sha256, nothing.tokenizer_sha256, *settings, _code()])
    done = _unfinished(output, work) or ShardProgress(work=work, next_pair=first, manifest=nothing)
    writer = _Writer(output, done, rules, description.files, pairs_per_shard)
    pieces = pairs.pieces(done.next_pair, end, _PIECE)
    with (
        ThreadPoolExecutor(threads) as workers,
        Progress(f"shards {description.split}", "pairs", end - first) as progress,
    ):
        progress.update(done.next_pair - first)
        for piece, *sides in in_order(workers, partial(_encode, encoder), pieces, 2 * threads):
            writer.add(piece, *sides)
            progress.update(piece.num_rows)
    manifest = writer.finish(time.perf_counter() - began)
    if part == WHOLE:
        check_any_left(manifest, pairs.path, rules)
    write_manifest(manifest, manifest_path)
    return manifest


def check_any_left(manifest: ShardManifest, pairs: Path, rules: Filter) -> None:
    """Raise CorpusError if the filter left no pair of a split."""
    if not manifest.pairs:
        raise CorpusError(
            f"no pair is left: {manifest.skipped_too_long} have more than {rules.max_tokens} "
            "tokens on a side",
            file=pairs,
            remedy="raise filter.max_tokens",
        )


def write_manifest(manifest: ShardManifest, path: Path, parts: Collection[Path] = ()) -> None:
    """Write a manifest, last of all.

    What an earlier division of the split left goes: shards beside the manifest that it does not
    name, and folders of parts that are not among ``parts``.
    """
    named = {path.parent / shard.file for shard in manifest.shards}
    for old in (*path.parent.glob("shard-*.arrow"), *path.parent.glob(".shard-*.checked")):
        if old not in named:
            old.unlink()
    for folder in path.parent.glob("part-*"):
        if folder not in parts:
            shutil.rmtree(folder)
    write_text(path, manifest.model_dump_json(indent=2) + "\n")
    (path.parent / _PROGRESS).unlink(missing_ok=True)


def _encode(encoder: Encoder, piece: pa.RecordBatch) -> tuple[pa.RecordBatch, Encoded, Encoded]:
    return piece, encoder.encode(piece.column("source")), encoder.encode(piece.column("target"))


def _digest(content: list[Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@cache
def _code() -> list[str]:
    """Checksums of the sources of this job: what other code began is not gone on with."""
    return [sha256(Path(path)) for path in sources("transformer_core.data.shards")]


def _unfinished(folder: Path, work: str) -> ShardProgress | None:
    """What an earlier job left of the same work, if its shards are as it left them."""
    for torn in folder.glob(".shard-*.tmp"):
        torn.unlink()
    try:
        text = (folder / _PROGRESS).read_bytes()
        found = ShardProgress.model_validate_json(text)
        if found.work != work or any(
            sha256(folder / s.file) != s.sha256 for s in found.manifest.shards
        ):
            return None
    except (OSError, ValidationError):
        return None
    logger.info("%s: goes on after %s finished shards", folder, len(found.manifest.shards))
    return found


class _Writer:
    """Collects pairs and writes a shard, and then the progress, whenever there are enough.

    Pairs with a side of more than ``max_tokens`` tokens are left out, or refused.
    """

    def __init__(
        self,
        folder: Path,
        done: ShardProgress,
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
                write_text(self._folder / _PROGRESS, self._done.model_dump_json())

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
                )
        except OSError as error:
            raise CorpusError(
                f"cannot be written ({error})",
                file=path,
                remedy="make room, then run the same command again: finished shards are kept",
            ) from None
        logger.info("%s: %s pairs", path, f"{self._pairs:,}")
        self._done = ShardProgress(
            work=self._done.work,
            next_pair=self._next_pair,
            manifest=_with_shard(self._manifest(), shard, source, target),
        )
        self._pending, self._pairs, self._tokens = [], 0, 0

    def _manifest(self) -> ShardManifest:
        """Of the shards that are written, and of all that was left out."""
        return self._done.manifest.model_copy(
            update={"skipped_too_long": self._skipped, "examples": self._examples}
        )


def _with_shard(
    manifest: ShardManifest, shard: Shard, source: Encoded, target: Encoded
) -> ShardManifest:
    lengths = manifest.lengths
    return manifest.model_copy(
        update={
            "pairs": manifest.pairs + shard.pairs,
            "source_tokens": manifest.source_tokens + shard.source_tokens,
            "target_tokens": manifest.target_tokens + shard.target_tokens,
            "lengths": LengthHistogram(
                unit="tokens",
                source=add_counts([lengths.source, count_lengths(source.lengths)]),
                target=add_counts([lengths.target, count_lengths(target.lengths)]),
            ),
            "shards": [*manifest.shards, shard],
        }
    )


def _write(path: Path, source: Encoded, target: Encoded) -> None:
    columns = [pa.LargeListArray.from_arrays(side.offsets, side.ids) for side in (source, target)]
    batch = pa.record_batch(columns, names=["source", "target"])
    options = pa.ipc.IpcWriteOptions(compression=None)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, batch.schema, options=options) as f,
    ):
        f.write_batch(batch)


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 if the shards were written, 2 if the input is at fault."""
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.data.shards",
        description="Tokenize the sentence pairs of a split into memory-mappable Arrow shards.",
    )
    parser.add_argument("--tokenizer", required=True, type=Path, help="tokenizer.json")
    parser.add_argument(
        "--filter", required=True, metavar="JSON", help="the filter section of a run spec"
    )
    parser.add_argument(
        "--pairs", required=True, type=Path, help="pairs of the split (.arrow, with .json beside)"
    )
    parser.add_argument(
        "--output", required=True, type=Path, help="folder for shard-*.arrow and manifest.json"
    )
    parser.add_argument(
        "--part",
        default="1-of-1",
        metavar="N-of-COUNT",
        help="tokenize only this part of the pairs, N from 1 (default: %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="threads that tokenize (default: %(default)s)",
    )
    parser.add_argument(
        "--pairs-per-shard",
        type=int,
        default=PAIRS_PER_SHARD,
        metavar="N",
        help="pairs in a shard (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    for name in ("pairs_per_shard", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: take 1 or more")
    part = re.fullmatch(r"([1-9]\d*)-of-([1-9]\d*)", options.part)
    if part is None or int(part[1]) > int(part[2]):
        parser.error(f"--part {options.part}: take N-of-COUNT, with N from 1 to COUNT")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # The tokenizer's own threads, of which it would else start one for each core of the host.
    os.environ.setdefault("RAYON_NUM_THREADS", str(options.threads))
    try:
        rules = Filter.model_validate_json(options.filter)
        write_shards(
            PairFile(options.pairs),
            options.tokenizer,
            rules,
            options.output,
            options.pairs_per_shard,
            Part(int(part[1]) - 1, int(part[2])),
            options.threads,
        )
    except ValidationError as error:
        print(from_validation(error, Filter, "--filter"), file=sys.stderr)
        return 2
    except (ConfigError, CorpusError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
