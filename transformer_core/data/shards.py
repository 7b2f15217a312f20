"""Tokenize a split into Arrow shards: ``python -m transformer_core.data.shards``.

A shard is an uncompressed Arrow IPC file with one record batch, so that its token ids are one flat
array in the memory map. The manifest is written last: where it exists, the shards are whole.
"""

import argparse
import hashlib
import logging
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from schemas.data import Filter
from schemas.errors import ConfigError, from_validation
from schemas.results import CorpusSplit, LengthHistogram, Shard, ShardManifest, SkippedPair
from transformer_core.data.encoding import Encoded, Encoder, concatenate
from transformer_core.data.files import CorpusError, atomic_path, snippet, where, write_text
from transformer_core.data.pairs import PairFile
from transformer_core.data.progress import Progress
from transformer_core.data.store import PairStore, ShardError, open_shards
from transformer_core.data.tokenizer import load_tokenizer

__all__ = ["PAIRS_PER_SHARD", "PairStore", "ShardError", "open_shards", "write_shards"]

logger = logging.getLogger(__name__)

PAIRS_PER_SHARD = 500_000
_CHUNK = 65_536
_EXAMPLES = 10


def write_shards(
    pairs: PairFile,
    tokenizer_path: Path,
    rules: Filter,
    output: Path,
    pairs_per_shard: int = PAIRS_PER_SHARD,
) -> ShardManifest:
    """Write all shards of a split and their manifest to the folder ``output``.

    Raises CorpusError if a sentence is too long and the filter says error, or if no pair is left.
    """
    started = time.perf_counter()
    tokenizer = load_tokenizer(tokenizer_path)
    description = pairs.description()
    manifest_path = output / "manifest.json"
    # Shards are about to change: an old manifest must not vouch for them.
    manifest_path.unlink(missing_ok=True)
    vocabulary = tokenizer.get_vocab_size()
    writer = _Writer(output, np.min_scalar_type(vocabulary - 1), pairs_per_shard)
    limit = _Limit(rules, description)
    encoder = Encoder(tokenizer)
    with Progress(f"shards {description.split}", "pairs", len(pairs)) as progress:
        for table in pairs.chunks(_CHUNK):
            source = encoder.encode(table.column("source").chunk(0))
            target = encoder.encode(table.column("target").chunk(0))
            writer.add(*limit.apply(table, source, target))
            progress.update(table.num_rows)
    writer.finish()
    if not writer.shards:
        raise CorpusError(
            f"no pair is left: {limit.skipped} have more than {rules.max_tokens} tokens on a side",
            file=pairs.path,
            remedy="raise filter.max_tokens",
        )
    manifest = ShardManifest(
        corpus=description.corpus,
        split=description.split,
        pairs=sum(shard.pairs for shard in writer.shards),
        source_tokens=sum(shard.source_tokens for shard in writer.shards),
        target_tokens=sum(shard.target_tokens for shard in writer.shards),
        skipped_too_long=limit.skipped,
        examples=limit.examples,
        id_type=writer.id_type.name,  # type: ignore[arg-type]
        vocabulary=vocabulary,
        tokenizer_sha256=_sha256(tokenizer_path),
        lengths=LengthHistogram(
            unit="tokens",
            source=dict(sorted(writer.source_lengths.items())),
            target=dict(sorted(writer.target_lengths.items())),
        ),
        seconds=time.perf_counter() - started,
        shards=writer.shards,
    )
    named = {shard.file for shard in writer.shards}
    for path in output.glob("shard-*.arrow"):
        if path.name not in named:
            path.unlink()
    write_text(manifest_path, manifest.model_dump_json(indent=2) + "\n")
    return manifest


class _Limit:
    """Leaves out the pairs with a side of more than ``max_tokens`` tokens, or refuses them."""

    def __init__(self, rules: Filter, description: CorpusSplit) -> None:
        self.skipped = 0
        self.examples: list[SkippedPair] = []
        self._rules = rules
        self._files = description.files

    def apply(self, table: pa.Table, source: Encoded, target: Encoded) -> tuple[Encoded, Encoded]:
        """The two sides without the pairs that are too long."""
        long_source = source.lengths > self._rules.max_tokens
        long_target = target.lengths > self._rules.max_tokens
        long = long_source | long_target
        if not long.any():
            return source, target
        rows = np.flatnonzero(long)
        self.skipped += len(rows)
        stop = 1 if self._rules.too_long == "error" else _EXAMPLES - len(self.examples)
        for row in rows[:stop].tolist():
            side, tokens = ("source", source) if long_source[row] else ("target", target)
            text = table.column(side)[row].as_py()
            # Two files are source and target; a single one holds both sides.
            file = self._files[0 if side == "source" else -1] if self._files else "(unknown)"
            line = table.column("line")[row].as_py()
            if self._rules.too_long == "error":
                raise CorpusError(
                    f"{side} has {tokens.lengths[row]} tokens, "
                    f"more than filter.max_tokens = {self._rules.max_tokens}",
                    file=file,
                    line=line,
                    value=text,
                    remedy="set filter.too_long: skip to leave such pairs out, "
                    "raise filter.max_tokens, or shorten the sentence",
                )
            self.examples.append(
                SkippedPair(reason="too_long", where=where(file, line), text=snippet(text))
            )
        kept = np.flatnonzero(~long)
        return source.take(kept), target.take(kept)


class _Writer:
    """Collects pairs and writes a shard whenever there are enough of them."""

    def __init__(self, folder: Path, id_type: np.dtype, pairs_per_shard: int) -> None:
        self.id_type = id_type
        self.shards: list[Shard] = []
        self.source_lengths: Counter[int] = Counter()
        self.target_lengths: Counter[int] = Counter()
        self._folder = folder
        self._full = pairs_per_shard
        self._pending: list[tuple[Encoded, Encoded]] = []
        self._pairs = 0

    def add(self, source: Encoded, target: Encoded) -> None:
        """Append pairs; full shards are written."""
        for lengths, counter in (
            (source.lengths, self.source_lengths),
            (target.lengths, self.target_lengths),
        ):
            values, counts = np.unique(lengths, return_counts=True)
            counter.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        start, pairs = 0, len(source.lengths)
        while start < pairs:
            end = min(pairs, start + self._full - self._pairs)
            self._pending.append((self._part(source, start, end), self._part(target, start, end)))
            self._pairs += end - start
            if self._pairs == self._full:
                self.finish()
            start = end

    def finish(self) -> None:
        """Write the pairs that are left, if any, as the last shard."""
        if not self._pairs:
            return
        source = concatenate([source for source, _ in self._pending])
        target = concatenate([target for _, target in self._pending])
        path = self._folder / f"shard-{len(self.shards):05d}.arrow"
        with atomic_path(path) as temporary:
            _write(temporary, source, target)
            self.shards.append(
                Shard(
                    file=path.name,
                    pairs=self._pairs,
                    source_tokens=len(source.ids),
                    target_tokens=len(target.ids),
                    bytes=temporary.stat().st_size,
                    sha256=_sha256(temporary),
                )
            )
        logger.info("%s: %s pairs", path, f"{self._pairs:,}")
        self._pending, self._pairs = [], 0

    def _part(self, side: Encoded, start: int, end: int) -> Encoded:
        begin, stop = side.offsets[start], side.offsets[end]
        ids = side.ids[begin:stop].astype(self.id_type)
        return Encoded(ids, side.offsets[start : end + 1] - begin)


def _write(path: Path, source: Encoded, target: Encoded) -> None:
    columns = [pa.LargeListArray.from_arrays(side.offsets, side.ids) for side in (source, target)]
    batch = pa.record_batch(columns, names=["source", "target"])
    options = pa.ipc.IpcWriteOptions(compression=None)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, batch.schema, options=options) as f,
    ):
        f.write_batch(batch)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
        "--pairs-per-shard",
        type=int,
        default=PAIRS_PER_SHARD,
        metavar="N",
        help="pairs in a shard (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.pairs_per_shard < 1:
        parser.error(f"--pairs-per-shard {options.pairs_per_shard}: take 1 or more")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        rules = Filter.model_validate_json(options.filter)
        write_shards(
            PairFile(options.pairs),
            options.tokenizer,
            rules,
            options.output,
            options.pairs_per_shard,
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
