"""The report's numbers as CSV: ``python -m transformer_core.report.tables``."""

import argparse
import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import ConfigError
from transformer_core.common.endings import program
from transformer_core.common.seals import write_sealed
from transformer_core.decide.results_options import add_arguments, from_arguments
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


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.report.tables",
        description=f"Write {', '.join(TABLES)} from the results of a study, as CSV.",
    )
    add_arguments(parser)
    parser.add_argument(
        "--output", type=Path, help="folder for the tables (default: tables in the results)"
    )
    options = parser.parse_args(arguments)
    folder = options.output or options.results / "tables"
    try:
        results = from_arguments(options)
        texts = {name: to_csv(section.rows(name, results)) for name, section in TABLES.items()}
        for name, text in texts.items():
            write_sealed(folder / f"{name}.csv", text)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
