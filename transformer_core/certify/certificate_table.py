"""All certificates of a study on one page: results/certificates.md."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from schemas.results import Certificate
from transformer_core.certify.bounds import WORDS, nearest
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.common.progress import log
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


class CertificatesJob(Job):
    """Puts all certificates into one table, in Markdown."""

    kind = "certificates"

    certificates: list[Path]
    """results/equivalence/*.json"""
    output: Path

    def run(self, log_file: Path | None) -> None:
        text = table([read_record(file, Certificate) for file in self.certificates])
        write_text(self.output, text)
        log.info("%s", text.partition("\n")[0])
