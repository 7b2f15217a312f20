"""Reading results/data/<corpus>/pairs/<split>.arrow: the sentence pairs as text."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pydantic import ValidationError

from schemas.results import CorpusSplit
from transformer_core.data.files import CorpusError

COLUMNS = ("source", "target", "line")


class PairFile:
    """A memory-mapped file of sentence pairs; iterating it yields its record batches."""

    def __init__(self, path: Path) -> None:
        """Raises CorpusError if the file is missing, damaged, or lacks a column."""
        self.path = path
        remedy = remake(path)
        try:
            self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
            self._batches = [
                self._reader.get_batch(number) for number in range(self._reader.num_record_batches)
            ]
        except (OSError, pa.ArrowInvalid) as error:
            raise CorpusError(f"cannot be read ({error})", file=path, remedy=remedy) from None
        missing = [name for name in COLUMNS if name not in self._reader.schema.names]
        if missing:
            message = f"lacks the column {', '.join(missing)}"
            raise CorpusError(message, file=path, remedy=remedy)

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self._batches)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._batches)

    def chunks(self, pairs: int) -> Iterator[pa.Table]:
        """Tables of ``pairs`` rows each (the last one may be smaller), in order."""
        table = pa.Table.from_batches(self._batches, self._reader.schema)
        for start in range(0, table.num_rows, pairs):
            yield table.slice(start, pairs).combine_chunks()

    def description(self) -> CorpusSplit:
        """The record beside the file; CorpusError if it is missing or damaged."""
        path = self.path.with_suffix(".json")
        try:
            return CorpusSplit.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            message = f"cannot be read ({error})"
            raise CorpusError(message, file=path, remedy=remake(path)) from None


def remake(path: str | Path) -> str:
    """The remedy for a damaged file of the workflow."""
    return f"make it again: snakemake --cores all --force {path}"
