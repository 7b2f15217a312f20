"""All certificates of a study on one page: results/certificates.md.

    python -m transformer_core.certify.certificate_table equivalence/*.json \
        --output results/certificates.md
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import ConfigError
from schemas.results import Certificate
from transformer_core.certify.bounds import WORDS, nearest
from transformer_core.common.endings import program
from transformer_core.common.files import write_text
from transformer_core.common.records import read_record


def table(certificates: Sequence[Certificate]) -> str:
    """Counts by status, and a row for each certificate: the quantity closest to its bound, or
    the reason."""
    count = Counter(each.status for each in certificates)
    lines = [", ".join(f"{number} {status}" for status, number in count.most_common()) + ".", ""]
    lines += ["| variant | class | status | nearest to its bound, or why |", "|---|---|---|---|"]
    for each in certificates:
        words = " ".join(_said(each).split()).replace("|", "\\|")
        lines.append(f"| {each.variant} | {each.equivalence.kind} | {each.status} | {words} |")
    return "\n".join(lines) + "\n"


def _said(certificate: Certificate) -> str:
    found = nearest(certificate)
    if found is None:
        return certificate.reason
    share = found.measured / found.bound
    return f"{WORDS[found.quantity]}, {share:.0%} ({found.where})"


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.certify.certificate_table",
        description="Put all certificates into one table, in Markdown.",
    )
    parser.add_argument("certificates", type=Path, nargs="+", help="results/equivalence/*.json")
    parser.add_argument("--output", required=True, type=Path, help="the table to write")
    options = parser.parse_args(arguments)
    try:
        found = [read_record(file, Certificate) for file in options.certificates]
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    write_text(options.output, table(found))
    print(table(found).split("\n")[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
