"""Job: read one split of a corpus, filter it, and write it as sentence pairs in an Arrow file."""

import argparse
import gc
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError

from schemas.data import SPLITS, AnyCorpus, Filter, Problem, Split
from schemas.results import CorpusSplit, LengthHistogram, SkippedPair
from transformer_core.data.files import CorpusError, atomic_path, sha256, snippet, where, write_text
from transformer_core.data.lengths import Counts, add_counts, count_lengths
from transformer_core.data.progress import Progress
from transformer_core.data.readers import Invalid, Pair, Reader, Row, open_split

LOG = logging.getLogger(__name__)

SCHEMA = pa.schema(
    [
        pa.field("source", pa.large_string(), nullable=False),
        pa.field("target", pa.large_string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
    ]
)
"""Columns of <split>.arrow; line is the line or row in the original, from 1."""

BATCH_PAIRS = 10_000
EXAMPLES = 10

Reason = Literal["empty", "too_long", "invalid"]


class PairFilter:
    """Keeps the pairs that can be used, counts the others, or ends at the first."""

    def __init__(self, rules: Filter, reader: Reader) -> None:
        self._rules = rules
        self._reader = reader
        self.read = 0
        self.skipped: dict[Reason, int] = {"empty": 0, "too_long": 0, "invalid": 0}
        self.examples: list[SkippedPair] = []

    def keep(self, rows: Sequence[Row]) -> list[Pair]:
        """The usable pairs of ``rows``, without white space around the sentences.

        Raises CorpusError at a pair that the filter calls an error.
        """
        self.read += len(rows)
        limit = self._rules.max_characters
        kept = []
        for row in rows:
            if isinstance(row, Invalid):
                remedy = "correct the line, or set filter.invalid: skip to leave such lines out"
                self._leave_out("invalid", row.file, row.line, row.text, row.message, remedy)
                continue
            source, target = row.source.strip(), row.target.strip()
            if not (source and target):
                self._empty(row, source)
            elif len(source) > limit or len(target) > limit:
                self._too_long(row, source, target)
            else:
                kept.append(Pair(row.line, source, target))
        return kept

    def _empty(self, row: Pair, source: str) -> None:
        file = self._reader.target_file if source else self._reader.source_file
        side, text = ("target", row.target) if source else ("source", row.source)
        remedy = "correct the line, or set filter.empty: skip to leave such pairs out"
        self._leave_out("empty", file, row.line, text, f"the {side} sentence is empty", remedy)

    def _too_long(self, row: Pair, source: str, target: str) -> None:
        limit = self._rules.max_characters
        if len(source) > limit:
            side, file, text = "source", self._reader.source_file, source
        else:
            side, file, text = "target", self._reader.target_file, target
        message = (
            f"the {side} sentence has {len(text):,} characters, filter.max_characters is {limit:,}"
        )
        remedy = "raise filter.max_characters, or set filter.too_long: skip"
        self._leave_out("too_long", file, row.line, text, message, remedy)

    def _leave_out(
        self, reason: Reason, file: str, line: int, text: str, message: str, remedy: str
    ) -> None:
        rule: Problem = getattr(self._rules, reason)
        if rule == "error":
            raise CorpusError(message, file=file, line=line, value=text, remedy=remedy)
        self.skipped[reason] += 1
        if len(self.examples) < EXAMPLES:
            place = where(file, line)
            self.examples.append(SkippedPair(reason=reason, where=place, text=snippet(text)))


def read_split(
    corpus: AnyCorpus,
    rules: Filter,
    split: Split,
    pairs_path: Path,
    report_path: Path,
    downloads: Path | None = None,
    processes: int = 1,
) -> CorpusSplit:
    """Write the pairs of one split to ``pairs_path``, then the report to ``report_path``.

    The pairs are an Arrow IPC file with the columns of ``SCHEMA`` in record batches of at most
    ``BATCH_PAIRS``; the memory needed does not grow with the corpus. The same input gives the same
    bytes. Nothing is left behind under the final names after an error.

    Raises CorpusError for a corpus that cannot be used.
    """
    reader = open_split(corpus, split, downloads, processes)
    pair_filter = PairFilter(rules, reader)
    lengths: dict[str, Counts] = {"source": {}, "target": {}}
    metadata = {"corpus": corpus.name, "split": split, "files": json.dumps(reader.files)}
    schema = SCHEMA.with_metadata(metadata)
    with atomic_path(pairs_path) as temporary:
        with (
            _no_collector(),
            pa.OSFile(str(temporary), "wb") as sink,
            pa.ipc.new_file(sink, schema) as writer,
            Progress(f"{corpus.name} {split}", "pairs", reader.total) as progress,
        ):
            for rows in _chunks(reader.rows()):
                kept = pair_filter.keep(rows)
                if kept:
                    batch = _batch(kept, schema)
                    writer.write_batch(batch)
                    for side, total in lengths.items():
                        lengths[side] = add_counts([total, _characters(batch.column(side))])
                progress.update(len(rows))
        kept_pairs = sum(lengths["source"].values())
        _check_any_left(pair_filter, kept_pairs, reader)
    report = CorpusSplit(
        corpus=corpus.name,
        split=split,
        files=reader.files,
        pairs_read=pair_filter.read,
        pairs_kept=kept_pairs,
        skipped=pair_filter.skipped,
        examples=pair_filter.examples,
        lengths=LengthHistogram(
            unit="characters",
            source=lengths["source"],
            target=lengths["target"],
        ),
        bytes=pairs_path.stat().st_size,
        sha256=sha256(pairs_path),
    )
    write_text(report_path, report.model_dump_json(indent=2) + "\n")
    return report


@contextmanager
def _no_collector() -> Iterator[None]:
    """Without Python's search for cycles, which millions of rows set off and none of them is in."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while chunk := list(islice(rows, BATCH_PAIRS)):
        yield chunk


def _batch(kept: list[Pair], schema: pa.Schema) -> pa.RecordBatch:
    lines, sources, targets = zip(*kept, strict=True)
    columns = [
        pa.array(sources, pa.large_string()),
        pa.array(targets, pa.large_string()),
        pa.array(lines, pa.int64()),
    ]
    return pa.record_batch(columns, schema=schema)


def _characters(texts: pa.LargeStringArray) -> Counts:
    return count_lengths(pc.utf8_length(texts).to_numpy())


def _check_any_left(pair_filter: PairFilter, kept: int, reader: Reader) -> None:
    files = " and ".join(dict.fromkeys([reader.source_file, reader.target_file]))
    if pair_filter.read == 0:
        raise CorpusError(
            "there are no sentences in it",
            file=files,
            remedy="check that the path names the right file",
        )
    if kept == 0:
        counts = ", ".join(f"{reason} {n:,}" for reason, n in pair_filter.skipped.items() if n)
        first = pair_filter.examples[0]
        raise CorpusError(
            f"none of {pair_filter.read:,} pairs is left ({counts}; the first: {first.where})",
            file=files,
            value=first.text,
            remedy="check the columns of the corpus and the section filter",
        )


class OptionError(ValueError):
    """An option of the command line that does not satisfy its schema."""


def _check(kind: Any, option: str, text: str) -> Any:
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        lines = [
            f"{option}: {'.'.join(map(str, item['loc'])) or '(top level)'}: {item['msg']}"
            for item in error.errors(include_url=False)
        ]
        raise OptionError("\n".join(lines)) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; 0 if the files were written, 2 after a message if they could not be."""
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.data.corpora",
        description="Read one split of a corpus, leave out what cannot be used, and write the "
        "sentence pairs as an Arrow IPC file (source, target, line) beside a report.",
    )
    parser.add_argument(
        "--corpus",
        required=True,
        metavar="JSON",
        help="section corpus of a study as JSON, for example "
        '\'{"kind": "text", "name": "mine", "train": {"source": "a.en", "target": "a.de"}, ...}\'',
    )
    parser.add_argument(
        "--filter", default="{}", metavar="JSON", help="section filter of a study (default: {})"
    )
    parser.add_argument("--split", required=True, choices=SPLITS, help="which split to read")
    parser.add_argument(
        "--pairs", required=True, type=Path, metavar="OUT.arrow", help="file of pairs to write"
    )
    parser.add_argument(
        "--report", required=True, type=Path, metavar="OUT.json", help="report to write, last"
    )
    parser.add_argument(
        "--downloads", type=Path, metavar="DIR", help="where url corpora keep their files"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="processes that generate a grammar corpus (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.processes < 1:
        parser.error(f"--processes {options.processes}: take 1 or more")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        report = read_split(
            _check(AnyCorpus, "--corpus", options.corpus),
            _check(Filter, "--filter", options.filter),
            options.split,
            options.pairs,
            options.report,
            options.downloads,
            options.processes,
        )
    except (CorpusError, OptionError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    left_out = sum(report.skipped.values())
    LOG.info("%s: %d pairs, %d left out", options.pairs, report.pairs_kept, left_out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
