"""Hostile texts in the files of a study, and how builders write them."""

from pathlib import Path
from typing import Any

EVIL = "<script>alert(1)</script> & \"quotes\" 'single' {{ 7 * 7 }} $x$"
EVIL_LANGUAGE = '<script>alert(1)</script> & "x"'


def write(path: Path, record: Any) -> None:
    """Writes a record, or a text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record if isinstance(record, str) else record.model_dump_json())
