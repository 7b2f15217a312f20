"""Tables are made as Arrow makes them, without pandas."""

import subprocess
import sys

import pyarrow as pa

from transformer_core.common.tables import table_of

SCHEMA = pa.schema([("step", pa.int64()), ("loss", pa.float64()), ("name", pa.string())])
ROWS = [
    {"step": 2**53 + 1, "loss": None, "name": ""},
    {"step": -1, "loss": 0.1, "name": "größer"},
    {"step": 3, "loss": float("nan"), "name": "b"},
]


def test_a_table_has_the_values_and_types_of_its_rows():
    for rows in (ROWS, ROWS[1:2], ROWS[:1], []):
        table = table_of(rows, SCHEMA)
        table.validate(full=True)
        assert table.schema == SCHEMA
        assert repr(table.to_pylist()) == repr(rows)


def test_a_table_is_made_and_written_without_pandas(tmp_path):
    program = f"""
import sys
from pathlib import Path
from tests.common.test_common_tables import ROWS, SCHEMA
from transformer_core.common.tables import table_of, write_table
write_table(Path({str(tmp_path / "rows.parquet")!r}), table_of(ROWS, SCHEMA))
print("pandas" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"
