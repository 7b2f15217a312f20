"""Reads and writes Parquet files, with digests; errors say what to do."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from transformer_core.common import digests
from transformer_core.common.endings import damaged
from transformer_core.common.files import atomic_path


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads columns of a Parquet file, by default all; ConfigError if it is missing, damaged or has
    changed."""
    import pyarrow.parquet as pq  # slow, and programs that read no table import this module

    digests.check(path)
    try:
        return pq.read_table(path, columns=columns and list(columns))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise damaged(path, error) from None


def write_table(path: Path, table: pa.Table, compression: str = "snappy") -> None:
    """Writes a Parquet file, whole or not at all, and records its digest."""
    write_parts(path, table.schema, [table], compression)


def write_parts(
    path: Path, schema: pa.Schema, parts: Iterable[pa.Table], compression: str = "snappy"
) -> None:
    """The same for a table in parts, each freed before the next is made."""
    import pyarrow.parquet as pq  # likewise

    digests.forget(path)
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression=compression) as writer,
    ):
        for part in parts:
            writer.write_table(part)
    digests.record(path)


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Numbers and texts in a table, as ``pa.Table.from_pylist``; for the difference see
    :func:`arrow_array`. Only numbers may be None."""
    arrays = []
    for column in schema:
        values = [row[column.name] for row in rows]
        if pa.types.is_string(column.type):
            arrays.append(arrow_texts(values))
            continue
        absent = np.array([value is None for value in values], np.bool_)
        kind = column.type.to_pandas_dtype()
        numbers = np.array([0 if value is None else value for value in values], kind)
        arrays.append(arrow_array(numbers, absent))
    return pa.Table.from_arrays(arrays, schema=schema)


def arrow_array(values: NDArray[Any], absent: NDArray[np.bool_] | None = None) -> pa.Array:
    """[n] numbers or booleans as an Arrow array, null where ``absent`` [n]; numbers are not copied.

    ``pa.array`` gives the same result, but first imports pandas to recognise its objects, which
    takes a third of a second: as long as a small corpus.
    """
    count, kind = len(values), pa.from_numpy_dtype(values.dtype)
    data = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(np.ascontiguousarray(values))
    present = None if absent is None or not absent.any() else _bits(~absent)
    return pa.Array.from_buffers(kind, count, [present, data])


def arrow_texts(texts: Sequence[str]) -> pa.StringArray:
    """The same for texts."""
    encoded = [text.encode() for text in texts]
    limits = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(
        len(texts), pa.py_buffer(limits), pa.py_buffer(b"".join(encoded))
    )


def _bits(values: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
