"""Job that reads one split of a corpus, filters it, and writes its sentence pairs to an Arrow file."""

import gc
import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from schemas.config.data import AnyCorpus, Filter, Split
from schemas.results.data import CorpusSplit, LengthHistogram
from transformer_core.common.digests import record, write_result
from transformer_core.common.files import atomic_path, sha256
from transformer_core.common.job import Job
from transformer_core.common.progress import Progress, log
from transformer_core.common.tables import arrow_array
from transformer_core.data.arrays import Counts, add_counts, count_lengths
from transformer_core.data.corpus.pairs import PairFilter, check_any_left
from transformer_core.data.corpus.readers import Reader, open_split
from transformer_core.data.corpus.rows import Pair

SCHEMA = pa.schema(
    [
        pa.field("source", pa.large_string(), nullable=False),
        pa.field("target", pa.large_string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
    ]
)
"""Columns of <split>.arrow; ``line`` is the line or row in the original, from 1."""

BATCH_PAIRS = 10_000


def _write_pairs(
    path: Path, schema: pa.Schema, reader: Reader, pair_filter: PairFilter, progress: Progress
) -> LengthHistogram:
    """Writes the pairs of ``reader`` that the filter keeps; returns their lengths in characters."""
    lengths: dict[str, Counts] = {"source": {}, "target": {}}
    with (
        ExitStack() as after,
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        # Millions of rows would trigger the collector of cycles in vain.
        gc.disable()
        after.callback(gc.enable)
        for batch in _kept(reader, schema, pair_filter):
            if batch.num_rows:
                writer.write_batch(batch)
                for side, total in lengths.items():
                    lengths[side] = add_counts(
                        [total, count_lengths(pc.utf8_length(batch.column(side)).to_numpy())]
                    )
            progress.update(pair_filter.read - progress.done)
    return LengthHistogram(unit="characters", source=lengths["source"], target=lengths["target"])


def _kept(reader: Reader, schema: pa.Schema, pair_filter: PairFilter) -> Iterator[pa.RecordBatch]:
    """Yields the kept rows of every ``BATCH_PAIRS`` rows, possibly none."""
    if reader.columns is None:
        left = reader.rows()
        while chunk := list(islice(left, BATCH_PAIRS)):
            yield _batch(pair_filter.keep(chunk), schema)
        return
    for columns in reader.columns(BATCH_PAIRS):
        lines = np.arange(pair_filter.read + 1, pair_filter.read + 1 + columns.num_rows)
        if pair_filter.keep_columns(columns):
            yield pa.record_batch([*columns.columns, arrow_array(lines)], schema=schema)
        else:
            texts = (column.to_pylist() for column in columns.columns)
            rows = [Pair(*row) for row in zip(lines.tolist(), *texts, strict=True)]
            yield _batch(pair_filter.keep(rows), schema)


def _batch(kept: list[Pair], schema: pa.Schema) -> pa.RecordBatch:
    lines, sources, targets = zip(*kept, strict=True) if kept else ((), (), ())
    columns = zip((sources, targets, lines), schema.types, strict=True)
    return pa.record_batch([pa.array(values, kind) for values, kind in columns], schema=schema)


class ReadCorpus(Job):
    """Reads one split of a corpus, skips unusable pairs, and writes the sentence pairs.

    The Arrow IPC file has the columns of ``SCHEMA`` in record batches of at most ``BATCH_PAIRS``;
    the memory needed does not grow with the corpus. The same input gives the same bytes. An error,
    such as CorpusError for an unusable corpus, leaves no file under the final names.
    """

    kind = "read_corpus"

    corpus: AnyCorpus  # corpus of the study
    filter: Filter = Filter()  # filter of the study
    split: Split  # the split to read
    pairs: Path  # Arrow file to write, with the columns source, target and line
    report: Path  # report to write, last
    downloads: Path | None = None  # folder for the files of url corpora
    processes: int = Field(1, ge=1)  # processes that generate a grammar corpus

    def run(self, log_file: Path | None) -> None:
        corpus, split = self.corpus, self.split
        reader = open_split(corpus, split, self.downloads, self.processes)
        pair_filter = PairFilter(self.filter, reader)
        sides = json.dumps([reader.source_file, reader.target_file])
        metadata = {"corpus": corpus.name, "split": split, "files": sides}
        schema = SCHEMA.with_metadata(metadata)
        with atomic_path(self.pairs) as temporary:
            with Progress(f"{corpus.name} {split}", "pairs", reader.total) as progress:
                lengths = _write_pairs(temporary, schema, reader, pair_filter, progress)
            kept = sum(lengths.source.values())
            check_any_left(pair_filter, kept, reader)
        report = CorpusSplit(
            corpus=corpus.name,
            split=split,
            files=reader.files,
            pairs_read=pair_filter.read,
            pairs_kept=kept,
            skipped=pair_filter.skipped,
            examples=pair_filter.examples,
            lengths=lengths,
            bytes=self.pairs.stat().st_size,
            sha256=sha256(self.pairs),
        )
        record(self.pairs)
        write_result(self.report, report.model_dump_json(indent=2) + "\n")
        left_out = sum(report.skipped.values())
        log.info("%s: %d pairs, %d left out", self.pairs, report.pairs_kept, left_out)
