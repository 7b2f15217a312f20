"""The filter of sentence pairs: what is kept, left out, or an error."""

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from schemas.config.corpus import Filter, Problem
from schemas.results.data import SkippedPair
from transformer_core.data.corpus.corpus_error import CorpusError, snippet, where
from transformer_core.data.corpus.corpus_rows import Invalid, Pair, Row
from transformer_core.data.corpus.readers import Reader

EXAMPLES = 10
"""Pairs left out that a report shows."""

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
            if not (target and (source or not self._reader.paired)):
                self._empty(row, source)
            elif len(source) > limit or len(target) > limit:
                self._too_long(row, source, target)
            else:
                kept.append(Pair(row.line, source, target))
        return kept

    def keep_columns(self, columns: pa.RecordBatch) -> bool:
        """Whether all pairs of the columns source and target can be used as they are; they are then
        read. If not, :meth:`keep` has to look at each."""
        limit = self._rules.max_characters
        for texts in columns.columns:
            lengths = pc.utf8_length(texts)
            shortest, longest = pc.min_max(lengths).as_py().values()
            inner = pc.utf8_length(pc.utf8_trim_whitespace(texts))
            if not 0 < shortest <= longest <= limit or not inner.equals(lengths):
                return False
        self.read += columns.num_rows
        return True

    def _empty(self, row: Pair, source: str) -> None:
        of_target = source or not self._reader.paired
        file = self._reader.target_file if of_target else self._reader.source_file
        side, text = ("target", row.target) if of_target else ("source", row.source)
        remedy = "correct the line, or set filter.empty: skip to leave such pairs out"
        self._leave_out("empty", file, row.line, text, f"the {self._called(side)} is empty", remedy)

    def _called(self, side: str) -> str:
        return f"{side} sentence" if self._reader.paired else "text"

    def _too_long(self, row: Pair, source: str, target: str) -> None:
        limit = self._rules.max_characters
        if len(source) > limit:
            side, file, text = "source", self._reader.source_file, source
        else:
            side, file, text = "target", self._reader.target_file, target
        called = self._called(side)
        message = f"the {called} has {len(text):,} characters, filter.max_characters is {limit:,}"
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


def check_any_left(pair_filter: PairFilter, kept: int, reader: Reader) -> None:
    """Raise CorpusError if there was no pair in the corpus, or none is ``kept``."""
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
