"""The report's numbers as CSV."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from transformer_core.common.digests import write_result
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import TABLES, Row


def to_csv(rows: Sequence[Row]) -> str:
    """Comma-separated text with a header, or nothing without a row; null is empty."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_tables(results: StudyResults, folder: Path) -> None:
    """Write every table into ``folder``, or none if a result is missing."""
    texts = {name: to_csv(section.rows(name, results)) for name, section in TABLES.items()}
    for name, text in texts.items():
        write_result(folder / f"{name}.csv", text, made_from=None)
