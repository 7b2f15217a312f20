"""Reads and writes Parquet files, with digests; errors say what to do."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

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
