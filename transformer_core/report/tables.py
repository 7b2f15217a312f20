"""The report's numbers as CSV: a function for each table of :mod:`transformer_core.report.contents`.

A row has a value for each column; an empty cell was not measured. A table without rows still yields
one, of nulls, which gives its columns.
"""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.results import (
    PARTS,
    BatchTrial,
    Interval,
    LayerUse,
    Milestone,
    OperatorClass,
    Partition,
    ShapeUse,
)
from transformer_core.common.digests import write_result
from transformer_core.decide.bytes_per_parameter import formula
from transformer_core.decide.study_results import StudyResults, epoch_seconds, throughputs
from transformer_core.report.contents import TABLES
from transformer_core.report.sections.memory import expected, measured
from transformer_core.report.sections.profiles import shown, summary_of, with_roofline_shares
from transformer_core.report.sections.why import reasons

Row = Mapping[str, Any]


def pick(record: Any, fields: str) -> dict[str, Any]:
    """The columns named in ``fields``, separated by blanks: a field of the record, a path such as a.b,
    column=path, or *path for an interval. Without a record, all are empty."""
    row: dict[str, Any] = {}
    for field in fields.split():
        column, _, path = field.replace("*", "").rpartition("=")
        value = record
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        column = column or name
        if "*" in field:
            row |= interval(column, value)
        else:
            row[column] = " ".join(value) if isinstance(value, list) else value
    return row


def interval(column: str, value: Interval | None) -> dict[str, Any]:
    """A median with its limits and the number of samples, as four columns."""
    parts = ("median", "low", "high", "samples")
    return {f"{column}_{part}": getattr(value, part) if value else None for part in parts}


def _variants(results: StudyResults) -> Iterator[Row]:
    """Throughput is from the turns; ``alone_…`` columns are from a variant's own run."""
    quality = "bleu chrf"
    if results.study.task.kind == "language_model":
        quality = "test_loss_nats=texts.loss texts.perplexity texts.bits_per_byte"
    in_turns = throughputs(results)
    for name, result in results.variants.items():
        comparison, spec = results.comparisons.get(name), results.specs[name]
        yield (
            pick(result, "variant status reason")
            | {"repeats": len(result.repeats)}
            | interval("tokens_per_second", in_turns.get(name))
            | pick(result, "alone_tokens_per_second=*tokens_per_second")
            | pick(result, "alone_pairs_per_second=*pairs_per_second")
            | {"baseline": results.study.baseline}
            | pick(comparison, "*speedup speedup_counts=counts")
            | pick(results.certificates[name], "equivalence=equivalence.kind certificate=status")
            | pick(comparison, "note")
            | {"epoch_seconds": epoch_seconds(result, in_turns.get(name))}
            | pick(result, "validation_loss_nats=validation_loss")
            | pick(results.evaluations[name], quality)
            | pick(result, "peak_memory_bytes padding_share input_wait_share")
            | {"world_size": spec.world_size, "spec_sha256": spec.digest()}
        )


def _equivalence(results: StudyResults) -> Iterator[Row]:
    """A row per deviation; a single row without a quantity if nothing was compared."""
    for certificate in results.certificates.values():
        for deviation in certificate.deviations or (None,):
            yield (
                pick(certificate, "variant equivalence=equivalence.kind certificate=status")
                | pick(certificate, "compared_with=reference")
                | {"seeds": len(certificate.seeds), "steps": certificate.steps}
                | pick(deviation, "quantity measured bound where")
                | pick(certificate, "reason")
            )


def _families(results: StudyResults) -> Iterator[Row]:
    points: list[Any] = [(curve, point) for curve in results.curves for point in curve.points]
    for curve, point in points or [(None, None)]:
        yield (
            pick(curve, "family unit")
            | pick(point, "value")
            | {"is_knee": point.value == curve.knee if curve and point else None}
            | pick(point, "variant reference *throughput *peak_memory *traffic")
            | pick(point, "all_reduces_per_step=all_reduces verdict certificate reason")
        )


def _claims(results: StudyResults) -> Iterator[Row]:
    tested: list[Any] = [
        (claim, evidence) for claim in results.claims for evidence in claim.evidence
    ]
    for claim, evidence in tested or [(None, None)]:
        found = "test=kind what expected outcome reason *number variants files"
        yield pick(claim, "claim statement source verdict") | pick(evidence, found)


def _corpus(results: StudyResults) -> Iterator[Row]:
    for name, split in results.splits.items():
        yield (
            {"corpus": split.corpus, "split": name}
            | pick(split, "pairs_read pairs_kept")
            | {
                "skipped_empty": split.skipped.get("empty", 0),
                "skipped_invalid": split.skipped.get("invalid", 0),
                "skipped_too_many_characters": split.skipped.get("too_long", 0),
            }
            | pick(results.manifests[name], "skipped_too_many_tokens=skipped_too_long pairs")
            | pick(results.manifests[name], "source_tokens target_tokens vocabulary")
        )


def _machine(results: StudyResults) -> Iterator[Row]:
    host = results.hardware.model_dump(exclude={"gpus"})
    features = " ".join(host.pop("cpu_features"))
    devices = {"host": host | {"cpu_features": features}}
    devices |= {f"gpu {g.index}": g.model_dump(exclude={"index"}) for g in results.hardware.gpus}
    for device, properties in devices.items():
        for name, value in properties.items():
            yield {"device": device, "property": name, "value": value}


def _differences(results: StudyResults) -> Iterator[Row]:
    """Every entry of both profiles of a comparison, in milliseconds of a step."""
    found: list[Any] = []
    for reason in reasons(results):
        all_of = reason.difference
        found += [(reason.comparison, "step", all_of.step)]
        for kind in ("parts", "phases", "operators", "collectives", "kernels"):
            found += [(reason.comparison, kind, change) for change in getattr(all_of, kind)]
    for comparison, kind, change in found or [(None, None, None)]:
        milliseconds = "reference_ms=first_ms variant_ms=second_ms difference_ms"
        yield (
            pick(comparison, "variant reference")
            | {"kind": kind}
            | pick(change, f"name {milliseconds}")
        )


def _profiles(results: StudyResults) -> Iterator[Row]:
    """A row per rank and device; a single row without numbers if there is no profile."""
    for name in (*results.variants, *results.study.traces):
        breakdown = results.breakdowns.get(name)
        head = {"variant": name} | pick(breakdown, "status reason profiler=source")
        if breakdown is None:
            head["reason"] = "not profiled"
        for device in (breakdown.devices if breakdown else None) or (None,):
            yield (
                head
                | pick(device, "rank device")
                | {"steps": len(device.steps) if device else None}
                | pick(device.profiled if device else None, " ".join(Partition.model_fields))
                | pick(device, "span_ns=span.window_ns host_ns=bound.host_ns")
            )


def _operators(results: StudyResults) -> Iterator[Row]:
    for name in (*results.variants, *results.study.traces):
        breakdown = results.breakdowns.get(name)
        summary = breakdown.summary if breakdown else None
        for use in (summary.operators if summary else None) or (None,):
            yield {"variant": name} | pick(use, " ".join(OperatorClass.model_fields))


def _layers(results: StudyResults) -> Iterator[Row]:
    """A row per module, summed over devices and steps."""
    profiles = shown(results).items()
    uses: list[Any] = [
        (name, use) for name, breakdown in profiles for use in summary_of(breakdown).layers
    ]
    for name, use in uses or [(None, None)]:
        yield {"variant": name} | pick(use, " ".join(LayerUse.model_fields))


def _shapes(results: StudyResults) -> Iterator[Row]:
    """A row per operator and input shapes, likewise."""
    uses: list[Any] = [
        (name, use, share)
        for name, breakdown in shown(results).items()
        for use, share in with_roofline_shares(results, name, summary_of(breakdown).shapes)
    ]
    for name, use, share in uses or [(None, None, None)]:
        fields = pick(use, " ".join(ShapeUse.model_fields))
        yield {"variant": name} | fields | {"roofline_share": share}


def _memory(results: StudyResults) -> Iterator[Row]:
    """A row per device: the parts at the peak, bytes per parameter, the prediction."""
    members: list[Any] = [*results.memory.items()]
    for name, result in members or [(None, None)]:
        predicted = expected(results, name) if name else []
        for place, rank in enumerate((result and result.ranks) or [None]):
            prediction = predicted[min(place, len(predicted) - 1)] if predicted else None
            by_formula = formula(results.specs[name]) if name and place == 0 else None
            found = rank.bytes_per_parameter if rank else None
            yield (
                pick(result, "variant status reason")
                | pick(rank, "rank device")
                | pick(result, "parameters")
                | pick(rank.at_peak if rank else None, " ".join(PARTS))
                | pick(rank, "residual_bytes peak_tensor_bytes")
                | pick(found, "model_state_per_parameter=model_state buckets_per_parameter=buckets")
                | pick(by_formula, "formula_model_state_per_parameter=model_state")
                | pick(by_formula, "formula_buckets_per_parameter=buckets")
                | pick(prediction, "predicted_tensor_bytes=training_bytes")
            )


def _memory_milestones(results: StudyResults) -> Iterator[Row]:
    reached: list[Any] = [
        (result, rank, milestone)
        for result in measured(results).values()
        for rank in result.ranks
        for milestone in rank.milestones
    ]
    for result, rank, milestone in reached or [(None, None, None)]:
        fields = " ".join(Milestone.model_fields).replace("name", "milestone=name", 1)
        yield pick(result, "variant") | pick(rank, "rank device") | pick(milestone, fields)


def _largest_batch(results: StudyResults) -> Iterator[Row]:
    answer = "variant limit_kind limit_bytes margin largest_pairs largest_tokens step_pairs"
    searches = results.largest_batches.values()
    trials: list[Any] = [(search, trial) for search in searches for trial in search.trials]
    for search, trial in trials or [(None, None)]:
        yield pick(search, f"{answer} confirmed") | pick(trial, " ".join(BatchTrial.model_fields))


def read_rows(table: str, results: StudyResults) -> list[Row]:
    """The rows of a table, or a row of nulls."""
    rows: Callable[[StudyResults], Iterator[Row]] = globals()[f"_{table}"]
    return list(rows(results))


def to_csv(rows: Sequence[Row]) -> str:
    """CSV with a header, and the rows with any value. Null is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for row in rows if any(value is not None for value in row.values()))
    return text.getvalue()


def write_tables(results: StudyResults, folder: Path) -> None:
    """Write every table into ``folder``, or none if a result is missing."""
    texts = {name: to_csv(read_rows(name, results)) for name in TABLES}
    for name, text in texts.items():
        write_result(folder / f"{name}.csv", text, made_from=None)
