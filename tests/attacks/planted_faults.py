"""Do certificates show planted faults? Reports on all of them.

python -m tests.attacks.planted_faults --output planted.json --table planted.md
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from schemas.config.measurement import Statistical, Tolerance
from schemas.results import Certificate, Deviation
from tests.attacks.planted.all_faults import FAULTS, HARMLESS
from tests.attacks.planted.fault import Fault
from tests.attacks.short_trainings import (
    Recorded,
    certificate,
    own_certificate,
    recorded,
    reference,
    spec_of,
)
from tests.distributed import run_ranks
from transformer_core.common.files import write_text

FEW_SEEDS = 2
CLASSES = {
    "tolerance": Tolerance(kind="tolerance"),
    "statistical": Statistical(kind="statistical", seeds=FEW_SEEDS),
}
BY_NAME = {fault.name: fault for fault in [*FAULTS, *HARMLESS]}


def seeds_of(fault: Fault) -> int:
    return FEW_SEEDS if fault.kind == "statistical" else 1


def run(fault: Fault, healthy: bool = False) -> Recorded:
    """The trainings of a variant with its fault, or without it, on this rank."""
    spec = spec_of(fault.change, fault.base)
    with nullcontext() if healthy else fault.patch():
        return recorded(spec, seeds_of(fault), fault.dropout, late=fault.late)


def certified(fault: Fault, found: Recorded) -> Certificate:
    """The certificate of the result of :func:`run`."""
    base = json.dumps(fault.base, sort_keys=True)
    against = reference(base, seeds_of(fault), fault.dropout)
    return certificate(CLASSES[fault.kind], found, against)


def certified_in_both(fault: Fault) -> Certificate | None:
    """The certificate if the reference has the fault, too, like a mistake in shared source; None if
    the reference does not train at all."""
    with fault.patch():
        found = run(fault, healthy=True)
        base = json.dumps(fault.base, sort_keys=True)
        try:
            against = reference.__wrapped__(base, seeds_of(fault), fault.dropout)
        except RuntimeError:
            return None
    return certificate(CLASSES[fault.kind], found, against)


def on_ranks(names: Sequence[str]) -> list[Recorded]:
    """This rank's records of the faults with these names, one after the other."""
    return [run(BY_NAME[name]) for name in names]


def certified_all(faults: Sequence[Fault]) -> dict[str, Certificate]:
    """The certificate of each fault, by its name; those of as many ranks share processes."""
    found = {fault.name: certified(fault, run(fault)) for fault in faults if fault.ranks == 1}
    for ranks in sorted({fault.ranks for fault in faults} - {1}):
        together = [fault for fault in faults if fault.ranks == ranks]
        main_rank, *_ = run_ranks(on_ranks, ranks, [fault.name for fault in together])
        for fault, each in zip(together, main_rank, strict=True):
            found[fault.name] = certified(fault, each)
    return found


def entry(fault: Fault, certificate: Certificate | None) -> dict[str, Any]:
    """A row of the report; without a certificate, the reference does not train."""
    deviations = certificate.deviations if certificate else []
    worst = max(deviations, key=_times_the_bound, default=None)
    return {
        "fault": fault.name,
        "family": fault.family,
        "caught": not certificate or certificate.status == "not_equivalent",
        "status": certificate.status if certificate else "failed",
        "by": worst and worst.quantity,
        "where": worst and worst.where,
        "measured": worst and worst.measured,
        "bound": worst and worst.bound,
        "times_the_bound": worst.measured / worst.bound if worst and worst.bound else None,
        "missed_because": fault.missed,
    }


def _times_the_bound(deviation: Deviation) -> float:
    if not deviation.bound:
        return float(deviation.measured > 0) * 1e6
    return deviation.measured / deviation.bound


def table(report: Sequence[dict[str, Any]]) -> str:
    caught = sum(row["caught"] for row in report)
    lines = [f"{caught} of {len(report)} faults cost a variant its certificate.", ""]
    lines += ["| family | fault | | shown by | deviation | allowed | times |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in report:
        sign = "caught" if row["caught"] else f"missed: {row['missed_because'] or 'not known why'}"
        numbers = [row["measured"], row["bound"], row["times_the_bound"]]
        shown = ["" if n is None else f"{n:.2g}" for n in numbers]
        lines.append(f"| {row['family']} | {row['fault']} | {sign} | {row['by']} | ")
        lines[-1] += " | ".join(shown) + " |"
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.attacks.planted_faults", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--output", type=Path, required=True, help="the report to write, JSON")
    parser.add_argument("--table", type=Path, help="the same as a table in Markdown")
    parser.add_argument(
        "--in-both",
        action="store_true",
        help="give the reference the same fault (faults of one process)",
    )
    parser.add_argument(
        "--alone",
        action="store_true",
        help="compare with no reference, as for another model by design (faults of one process)",
    )
    parser.add_argument(
        "--family", help="plant only faults of this family, or changes that are 'harmless'"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [each for each in BY_NAME.values() if each.family == options.family] or FAULTS
    one_process = options.in_both or options.alone
    faults = [fault for fault in chosen if fault.ranks == 1 or not one_process]
    certificates: dict[str, Certificate | None] = {}
    if options.in_both:
        certificates |= {fault.name: certified_in_both(fault) for fault in faults}
    elif options.alone:
        certificates |= {fault.name: own_certificate(run(fault)) for fault in faults}
    else:
        certificates |= certified_all(faults)
    report = [entry(fault, certificates[fault.name]) for fault in faults]
    write_text(options.output, json.dumps(report, indent=1) + "\n")
    if options.table:
        write_text(options.table, table(report))
    print(table(report))
    false_alarm = any(row["caught"] and row["family"] == "harmless" for row in report)
    unknown = any(not row["caught"] and not row["missed_because"] for row in report)
    return int(false_alarm or unknown)


if __name__ == "__main__":
    sys.exit(main())
