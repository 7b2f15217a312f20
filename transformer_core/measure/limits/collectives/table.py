"""The table of collective operations: collectives.parquet."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from schemas.results import COLLECTIVE_COLUMNS, CollectiveRun
from transformer_core.common import tables


def write_table(path: Path, rows: Sequence[tuple[object, ...]], run: CollectiveRun) -> None:
    """collectives.parquet, whole or not at all."""
    kinds = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64()}
    types = [kinds[text.split(":")[0]] for text in COLLECTIVE_COLUMNS.values()]
    fields = list(zip(COLLECTIVE_COLUMNS, types, strict=True))
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    table = pa.Table.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)],
        schema=pa.schema(fields, metadata={"study": run.model_dump_json()}),
    )
    tables.write_table(path, table)
