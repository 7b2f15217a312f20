"""The table of the variants."""

from schemas.results import EvaluationResult
from transformer_core.decide.comparisons.turn_throughput import epoch_seconds, throughputs
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import Row
from transformer_core.report.kit.interval_columns import interval_columns


def variants(results: StudyResults) -> list[Row]:
    """A row per variant. What was not measured is empty.

    Throughput is from the turns; ``alone_…`` is what its own run measured.
    """
    rows: list[Row] = []
    throughput = throughputs(results)
    for name, result in results.variants.items():
        comparison = results.comparisons.get(name)
        spec = results.specs[name]
        rows.append(
            {
                "variant": name,
                "status": result.status,
                "reason": result.reason,
                "repeats": len(result.repeats),
                **interval_columns("tokens_per_second", throughput.get(name)),
                **interval_columns("alone_tokens_per_second", result.tokens_per_second),
                **interval_columns("alone_pairs_per_second", result.pairs_per_second),
                "baseline": results.study.baseline,
                **interval_columns("speedup", comparison.speedup if comparison else None),
                "speedup_counts": comparison.counts if comparison else None,
                "equivalence": results.certificates[name].equivalence.kind,
                "certificate": results.certificates[name].status,
                "note": comparison.note if comparison else None,
                "epoch_seconds": epoch_seconds(result, throughput.get(name)),
                "validation_loss_nats": result.validation_loss,
                **_quality(results, result.evaluation),
                "peak_memory_bytes": result.peak_memory_bytes,
                "padding_share": result.padding_share,
                "input_wait_share": result.input_wait_share,
                "world_size": spec.world_size,
                "spec_sha256": spec.digest(),
            }
        )
    return rows


def _quality(results: StudyResults, evaluation: EvaluationResult) -> Row:
    """The columns that say how good a model is at its task."""
    if results.study.task.kind == "translation":
        return {"bleu": evaluation.bleu, "chrf": evaluation.chrf}
    quality = evaluation.texts
    return {
        "test_loss_nats": quality.loss if quality else None,
        "perplexity": quality.perplexity if quality else None,
        "bits_per_byte": quality.bits_per_byte if quality else None,
    }
