"""Reading results/data/<corpus>/pairs/<split>.arrow: the sentence pairs as text."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ValidationError

from schemas.results.data import CorpusSplit
from transformer_core.common.reproducing import remake
from transformer_core.common.seals import check
from transformer_core.data.corpus.corpus_error import CorpusError

COLUMNS = ("source", "target", "line")


class PairFile:
    """A file of sentence pairs, read one record batch at a time.

    It is read, not mapped: a long stream of pairs takes no more memory than a short one.
    """

    def __init__(self, path: Path) -> None:
        """Reads all of the file once. Raises CorpusError if it is missing, damaged, or lacks a
        column, and ConfigError if it is not what its seal says."""
        self.path = path
        check(path)
        try:
            # Only the places and sizes of the batches are looked at in this map.
            mapped = pa.ipc.open_file(pa.memory_map(str(path)))
            rows = [mapped.get_batch(n).num_rows for n in range(mapped.num_record_batches)]
            self._reader = pa.ipc.open_file(pa.OSFile(str(path)))
        except (OSError, pa.ArrowInvalid) as error:
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
        """The pairs ``start`` … ``stop - 1`` in order, in batches of at most ``size`` bytes of text
        or of one pair."""
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
        """The record beside the file; CorpusError if it is missing, damaged, or of another file."""
        path = self.path.with_suffix(".json")
        try:
            content = path.read_bytes()
            check(path, content)
            record = CorpusSplit.model_validate_json(content)
        except (OSError, ValidationError) as error:
            message = f"cannot be read ({error})"
            raise CorpusError(message, file=path, remedy=remake(path)) from None
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
    ends = _text_ends(batch.column("source")) + _text_ends(batch.column("target"))
    start = 0
    while start < batch.num_rows:
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + size, side="right")))
        yield batch.slice(start, stop - start)
        start = stop


def _text_ends(texts: pa.LargeStringArray) -> NDArray[np.int64]:
    """[n] bytes of all texts up to the end of each."""
    offsets = np.frombuffer(texts.buffers()[1], np.int64)
    limits = offsets[texts.offset : texts.offset + len(texts) + 1]
    return limits[1:] - limits[0]
