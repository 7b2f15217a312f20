"""The report's numbers as CSV: ``python -m transformer_core.report.tables``."""

import argparse
import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError
from schemas.results import Deviation, Interval
from transformer_core.data.files import write_text
from transformer_core.report.claims_section import read_claims, read_curves
from transformer_core.report.inputs import Results, add_arguments, from_arguments
from transformer_core.report.memory_section import (
    largest_batch_table,
    memory_table,
    milestones_table,
)
from transformer_core.report.profile_tables import operators_table, profiles_table

Row = Mapping[str, Any]


def variants_table(results: Results) -> list[Row]:
    """A row per variant. What was not measured is empty."""
    rows: list[Row] = []
    for name, result in results.variants.items():
        comparison = results.comparisons.get(name)
        spec = results.specs[name]
        rows.append(
            {
                "variant": name,
                "status": result.status,
                "reason": result.reason,
                "repeats": len(result.repeats),
                **_interval("tokens_per_second", result.tokens_per_second),
                **_interval("pairs_per_second", result.pairs_per_second),
                "baseline": results.study.baseline,
                **_interval("speedup", comparison.speedup if comparison else None),
                "speedup_counts": comparison.counts if comparison else None,
                "equivalence": results.certificates[name].equivalence.kind,
                "certificate": results.certificates[name].status,
                "note": comparison.note if comparison else None,
                "epoch_seconds": result.epoch_seconds,
                "validation_loss_nats": result.validation_loss,
                "bleu": result.evaluation.bleu,
                "chrf": result.evaluation.chrf,
                "peak_memory_bytes": result.peak_memory_bytes,
                "padding_share": result.padding_share,
                "input_wait_share": result.input_wait_share,
                "world_size": spec.world_size,
                "spec_sha256": spec.digest(),
            }
        )
    return rows


def equivalence_table(results: Results) -> list[Row]:
    """A row per variant and compared quantity; one without a quantity where none was compared."""
    nothing: list[Deviation | None] = [None]
    return [
        {
            "variant": certificate.variant,
            "equivalence": certificate.equivalence.kind,
            "certificate": certificate.status,
            "compared_with": certificate.reference,
            "seeds": len(certificate.seeds),
            "steps": len(certificate.steps),
            "quantity": deviation.quantity if deviation else None,
            "measured": deviation.measured if deviation else None,
            "bound": deviation.bound if deviation else None,
            "where": deviation.where if deviation else None,
            "reason": certificate.reason,
        }
        for certificate in results.certificates.values()
        for deviation in certificate.deviations or nothing
    ]


def corpus_table(results: Results) -> list[Row]:
    """A row per split."""
    rows: list[Row] = []
    for name, split in results.splits.items():
        manifest = results.manifests[name]
        rows.append(
            {
                "corpus": split.corpus,
                "split": name,
                "pairs_read": split.pairs_read,
                "pairs_kept": split.pairs_kept,
                "skipped_empty": split.skipped.get("empty", 0),
                "skipped_invalid": split.skipped.get("invalid", 0),
                "skipped_too_many_characters": split.skipped.get("too_long", 0),
                "skipped_too_many_tokens": manifest.skipped_too_long,
                "pairs": manifest.pairs,
                "source_tokens": manifest.source_tokens,
                "target_tokens": manifest.target_tokens,
                "vocabulary": manifest.vocabulary,
            }
        )
    return rows


def machine_table(results: Results) -> list[Row]:
    """A row per property of the machine and of each GPU."""
    rows: list[Row] = []
    for field, value in results.hardware.model_dump(exclude={"gpus", "cpu_features"}).items():
        rows.append({"device": "host", "property": field, "value": value})
    features = " ".join(results.hardware.cpu_features)
    rows.append({"device": "host", "property": "cpu_features", "value": features})
    for gpu in results.hardware.gpus:
        for field, value in gpu.model_dump(exclude={"index"}).items():
            rows.append({"device": f"gpu {gpu.index}", "property": field, "value": value})
    return rows


def claims_table(results: Results) -> list[Row]:
    """A row per test of a claim."""
    return [
        {
            "claim": claim.claim,
            "statement": claim.statement,
            "source": claim.source,
            "verdict": claim.verdict,
            "test": evidence.kind,
            "what": evidence.what,
            "expected": evidence.expected,
            "outcome": evidence.outcome,
            "reason": evidence.reason,
            **_interval("number", evidence.number),
            "variants": " ".join(evidence.variants),
            "files": " ".join(evidence.files),
        }
        for claim in read_claims(results)
        for evidence in claim.evidence
    ]


def families_table(results: Results) -> list[Row]:
    """A row per member of a family that the study runs."""
    return [
        {
            "family": curve.family,
            "unit": curve.unit,
            "value": point.value,
            "is_knee": point.value == curve.knee,
            "variant": point.variant,
            "reference": point.reference,
            **_interval("throughput", point.throughput),
            **_interval("peak_memory", point.peak_memory),
            **_interval("traffic", point.traffic),
            "all_reduces_per_step": point.all_reduces,
            "verdict": point.verdict,
            "certificate": point.certificate,
            "reason": point.reason,
        }
        for curve in read_curves(results)
        for point in curve.points
    ]


def to_csv(rows: Sequence[Row]) -> str:
    """Comma-separated text with a header, or nothing without a row; null is empty."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _interval(name: str, interval: Interval | None) -> dict[str, float | int | None]:
    return {
        f"{name}_median": interval.median if interval else None,
        f"{name}_low": interval.low if interval else None,
        f"{name}_high": interval.high if interval else None,
        f"{name}_samples": interval.samples if interval else None,
    }


TABLES = {
    "claims.csv": claims_table,
    "variants.csv": variants_table,
    "equivalence.csv": equivalence_table,
    "families.csv": families_table,
    "profiles.csv": profiles_table,
    "operators.csv": operators_table,
    "memory.csv": memory_table,
    "memory_milestones.csv": milestones_table,
    "largest_batch.csv": largest_batch_table,
    "corpus.csv": corpus_table,
    "machine.csv": machine_table,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.report.tables",
        description=f"Write {', '.join(TABLES)} from the results of a study.",
    )
    add_arguments(parser)
    parser.add_argument(
        "--output", type=Path, help="folder for the tables (default: tables in the results)"
    )
    options = parser.parse_args(arguments)
    try:
        results = from_arguments(options)
        folder = options.output or options.results / "tables"
        for name, table in TABLES.items():
            write_text(folder / name, to_csv(table(results)))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
