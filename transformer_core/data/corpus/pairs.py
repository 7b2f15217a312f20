"""Sentence pairs as text: the filter, and the file results/data/<corpus>/pairs/<split>.arrow."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.config.data import Filter, Problem
from schemas.results.data import CorpusSplit, SkippedPair
from transformer_core.common.digests import check
from transformer_core.common.endings import remake
from transformer_core.common.records import read_record
from transformer_core.data.arrays import utf8
from transformer_core.data.corpus.readers import Reader
from transformer_core.data.corpus.rows import (
    EXAMPLES,
    NOT_UTF8,
    CorpusError,
    Invalid,
    Pair,
    Row,
    snippet,
    where,
)

COLUMNS = ("source", "target", "line")


class PairFile:
    """Reads a file of sentence pairs, one record batch at a time.

    We do not map the file, so that the memory needed does not grow with its size.
    """

    def __init__(self, path: Path) -> None:
        """Reads the whole file once. Raises CorpusError if it is missing, damaged, or lacks a
        column, and ConfigError if it has changed since it was written."""
        self.path = path
        check(path)
        try:
            # We use this map only for the offsets and sizes of the batches.
            mapped = pa.ipc.open_file(pa.memory_map(str(path)))
            rows = [mapped.get_batch(n).num_rows for n in range(mapped.num_record_batches)]
            self._reader = pa.ipc.open_file(pa.OSFile(str(path)))
            self.files: list[str] = json.loads(mapped.schema.metadata[b"files"])
            """The files of the source and of the target, as messages name them."""
        except (OSError, pa.ArrowInvalid, TypeError, KeyError) as error:
            raise self._error(f"cannot be read ({error})") from None
        self._first = np.cumsum([0, *rows])
        missing = [name for name in COLUMNS if name not in mapped.schema.names]
        if missing:
            raise self._error(f"lacks the column {', '.join(missing)}")

    def __len__(self) -> int:
        return int(self._first[-1])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (self._read(number) for number in range(len(self._first) - 1))

    def pieces(self, start: int, stop: int, size: int) -> Iterator[pa.RecordBatch]:
        """Yields the pairs ``start`` … ``stop - 1`` in batches of at most ``size`` bytes of text;
        a longer pair is a batch by itself."""
        first = int(np.searchsorted(self._first, start, side="right")) - 1
        for number in range(first, len(self._first) - 1):
            begin, end = self._first[number : number + 2].tolist()
            if begin >= stop:
                return
            batch = self._read(number).slice(
                max(start - begin, 0), min(stop, end) - max(start, begin)
            )
            yield from _cut(batch, size)

    def description(self) -> CorpusSplit:
        """Reads the report next to the file; ConfigError if it is missing or damaged, CorpusError if
        it describes a different file."""
        record = read_record(self.path.with_suffix(".json"), CorpusSplit)
        size = self.path.stat().st_size
        if size != record.bytes:
            raise self._error(f"has {size} bytes instead of {record.bytes}")
        return record

    def _read(self, number: int) -> pa.RecordBatch:
        try:
            return self._reader.get_batch(number)
        except (OSError, pa.ArrowInvalid) as error:
            raise self._error(f"cannot be read ({error})") from None

    def _error(self, message: str) -> CorpusError:
        return CorpusError(message, file=self.path, remedy=remake(self.path))


def _cut(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    # [pairs + 1] bytes of text before each pair, then the total.
    source, target = (utf8(batch.column(side))[1] for side in ("source", "target"))
    limits = source + target
    start = 0
    while start < batch.num_rows:
        stop = int(np.searchsorted(limits, limits[start] + size, side="right")) - 1
        stop = max(start + 1, stop)
        yield batch.slice(start, stop - start)
        start = stop


Reason = Literal["empty", "too_long", "invalid"]


class PairFilter:
    """Keeps usable pairs; counts the others, or raises an error at the first, as the rules say."""

    def __init__(self, rules: Filter, reader: Reader) -> None:
        self._rules = rules
        self._reader = reader
        self.read = 0
        self.skipped: dict[Reason, int] = {"empty": 0, "too_long": 0, "invalid": 0}
        self.examples: list[SkippedPair] = []

    def keep(self, rows: Sequence[Row]) -> list[Pair]:
        """Returns the usable pairs of ``rows``, without white space around the sentences.

        Raises CorpusError at a pair that the rules treat as an error.
        """
        self.read += len(rows)
        limit, unpaired = self._rules.max_characters, not self._reader.paired
        kept = []
        for row in rows:
            if isinstance(row, Invalid):
                remedy = "correct the line, or the fields or columns that corpus names"
                if NOT_UTF8 in row.message:
                    remedy = "correct the line, or convert the whole file (iconv -t UTF-8)"
                remedy += ", or set filter.invalid: skip to leave such lines out"
                self._leave_out("invalid", row.file, row.line, row.text, row.message, remedy)
                continue
            source, target = row.source.strip(), row.target.strip()
            if "\0" in source or "\0" in target:
                message = "has a NUL character"
                remedy = "check that the file is text, or set filter.invalid: skip to leave such "
                self._refuse("invalid", row, "\0" in row.source, message, f"{remedy}lines out")
            elif not (target and (source or unpaired)):
                remedy = "correct the line, or set filter.empty: skip to leave such pairs out"
                self._refuse("empty", row, not (source or unpaired), "the {} is empty", remedy)
            elif len(source) > limit or len(target) > limit:
                of_source = len(source) > limit
                count = len(source if of_source else target)
                message = f"the {{}} has {count:,} characters, filter.max_characters is {limit:,}"
                remedy = "raise filter.max_characters, or set filter.too_long: skip"
                stripped = Pair(row.line, source, target)
                self._refuse("too_long", stripped, of_source, message, remedy)
            else:
                kept.append(Pair(row.line, source, target))
        return kept

    def keep_columns(self, columns: pa.RecordBatch) -> bool:
        """Whether all pairs of the columns source and target are usable without a change; they then
        count as read. Otherwise, :meth:`keep` must check them one by one."""
        limit = self._rules.max_characters
        for texts in columns.columns:
            lengths = pc.utf8_length(texts)
            shortest, longest = pc.min_max(lengths).as_py().values()
            inner = pc.utf8_length(pc.utf8_trim_whitespace(texts))
            if not 0 < shortest <= longest <= limit or not inner.equals(lengths):
                return False
        self.read += columns.num_rows
        return True

    def _refuse(
        self, reason: Reason, row: Pair, of_source: bool, message: str, remedy: str
    ) -> None:
        """Leaves a pair out because of its source or target, whose name replaces {} in the
        message."""
        reader = self._reader
        file = reader.source_file if of_source else reader.target_file
        side, text = ("source", row.source) if of_source else ("target", row.target)
        called = f"{side} sentence" if reader.paired else "text"
        self._leave_out(reason, file, row.line, text, message.format(called), remedy)

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


def check_any_left(pair_filter: PairFilter, kept: int, reader: Reader) -> None:
    """Raises CorpusError if the corpus had no pair, or if none was ``kept``."""
    files = " and ".join(dict.fromkeys([reader.source_file, reader.target_file]))
    if pair_filter.read == 0:
        raise CorpusError(
            "contains no sentences", file=files, remedy="check that the path names the right file"
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
