"""Files that would never end, or take more memory than a machine has: refused, with the limit."""

import sqlite3
from pathlib import Path

import pytest
from traces import training_report

from schemas.errors import ConfigError
from transformer_core.trace.readers import nsys
from transformer_core.trace.readers.files import read_files
from transformer_core.trace.readers.nsys import read_nsys

COUNTING = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"


def changed(path: Path, *statements: str) -> Path:
    """A report after some statements of SQL."""
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()
    return path


@pytest.mark.parametrize("table", ["StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"])
def test_a_view_is_no_table_of_a_report(tmp_path: Path, table: str) -> None:
    path = changed(
        training_report(tmp_path / "report.sqlite"),
        f'DROP TABLE "{table}"',
        f'CREATE VIEW "{table}" AS {COUNTING} SELECT x AS id, x AS start, x AS "end", 1 AS deviceId, '
        "1 AS streamId, 59 AS eventType, 1 AS globalTid, 'x' AS value, 'x' AS text FROM c",
    )
    with pytest.raises(ConfigError, match=f"has a view for the table {table}"):
        read_nsys(path)


def test_more_work_than_the_size_explains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys._Report, "_spent", lambda report: True)
    monkeypatch.setattr(nsys, "_WORK_AT_ONCE", 1)
    with pytest.raises(ConfigError, match="takes more work than its size explains"):
        read_nsys(training_report(tmp_path / "report.sqlite"))


def test_a_text_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys, "_LONGEST_TEXT", 1 << 20)
    path = changed(
        training_report(tmp_path / "report.sqlite"),
        "UPDATE NVTX_EVENTS SET text = hex(zeroblob(600000)) WHERE _rowid_ = 3",
    )
    with pytest.raises(ConfigError, match="holds a text of more than 1 MB in NVTX_EVENTS"):
        read_nsys(path)


def test_long_texts_are_read_a_few_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = changed(
        training_report(tmp_path / "report.sqlite"),
        "UPDATE NVTX_EVENTS SET text = 'layer:' || hex(zeroblob(2000)) WHERE _rowid_ > 4",
    )
    whole = read_files([path]).table
    monkeypatch.setattr(nsys, "_LONGEST_TEXT", 6000)
    assert read_files([path]).table.equals(whole)


ODD = {
    "rows far from each other": "UPDATE NVTX_EVENTS SET _rowid_ = _rowid_ * 1000000000000",
    "rows before the first": "UPDATE NVTX_EVENTS SET _rowid_ = -_rowid_",
    "separators in texts": "UPDATE NVTX_EVENTS SET text = replace(text, ', sizes', char(31, 30) || ', sizes')",
    "a number of no text": 'INSERT INTO NVTX_EVENTS (start, "end", eventType, textId, globalTid) '
    "VALUES (5, 6, 59, 99999999, 1)",
    "a time with a point": 'INSERT INTO NVTX_EVENTS (start, "end", eventType, text, globalTid) '
    "VALUES (5.5, 6, 59, 'x', 1)",
    "a time in words": 'INSERT INTO NVTX_EVENTS (start, "end", eventType, text, globalTid) '
    "VALUES ('noon', '1,2', 59, 'x', 1)",
}


@pytest.mark.parametrize("name", ODD)
def test_rows_that_are_not_as_usual_change_no_other(tmp_path: Path, name: str) -> None:
    usual = read_files([training_report(tmp_path / "usual.sqlite")])
    odd = read_files([changed(training_report(tmp_path / "odd.sqlite"), ODD[name])])
    kept = [column for column in usual.table.column_names if column != "operator"]
    if name == "rows before the first":
        kept = ["t0_ns", "t1_ns", "kind", "phase"]
    for column in kept:
        one, other = (reading.table.column(column).to_pylist() for reading in (usual, odd))
        assert sorted(map(str, one)) == sorted(map(str, other)), column
