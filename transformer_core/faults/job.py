"""One report of all harnesses: ``python -m transformer_core.faults.job``."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from schemas.results.faults import FAULTS, FaultRecord, FaultReport
from transformer_core.common.endings import program
from transformer_core.common.records import read_record
from transformer_core.common.seals import write_sealed


def joined(records: Iterable[FaultRecord]) -> FaultReport:
    """The report of all records."""
    records = list(records)
    counts = [count for record in records for count in record.counts]
    refused, same = sum(c.refused for c in counts), sum(c.same for c in counts)
    faults = sum(getattr(count, name) for count in counts for name in FAULTS)
    return FaultReport(
        records=records, cases=refused + same + faults, refused=refused, same=same, faults=faults
    )


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report; the exit status. Faults are a result: they stand in the report."""
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.faults.job", description="Join the records of harnesses."
    )
    parser.add_argument("records", nargs="+", type=Path, help="results/faults/HARNESS.json")
    parser.add_argument("--output", type=Path, required=True, help="results/faults/report.json")
    options = parser.parse_args(arguments)
    report = joined(read_record(path, FaultRecord) for path in options.records)
    write_sealed(options.output, report.model_dump_json(indent=1) + "\n")
    print(
        f"{report.cases:,} cases: {report.refused:,} refused, {report.same:,} without a different "
        f"result, {report.faults:,} that nobody may see"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
