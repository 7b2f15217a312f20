"""What the figures of the machine need of the variants."""

from schemas.results import Interval, Utilisation
from transformer_core.decide.comparisons.turn_throughput import throughputs
from transformer_core.decide.study_results import StudyResults


def bucket_bytes(results: StudyResults) -> dict[str, list[int]]:
    """Sizes of the gradient buckets of the variants with DistributedDataParallel that ran."""
    found = {}
    for name, result in results.variants.items():
        told = next((repeat.communication for repeat in result.repeats if repeat.communication), {})
        if told.get("bucket_bytes"):
            found[name] = [int(size) for size in told["bucket_bytes"]]
    return found


def utilisation_in_turns(results: StudyResults) -> list[Utilisation]:
    """Utilisation at the throughput of the turns, which runs on their own may contradict.

    FLOPs follow from tokens, so all rates of a variant change by one factor.
    """
    found = throughputs(results)
    scaled = []
    for record in results.utilisation:
        alone = results.variants[record.variant].tokens_per_second
        in_turns = found.get(record.variant)
        if alone is None or in_turns is None:
            scaled.append(record)
            continue
        factor = in_turns.median / alone.median
        changes = {
            name: _times(value, factor) for name, value in record if isinstance(value, Interval)
        }
        scaled.append(record.model_copy(update=changes))
    return scaled


def _times(interval: Interval, factor: float) -> Interval:
    sizes = {name: getattr(interval, name) * factor for name in ("median", "low", "high")}
    return interval.model_copy(update=sizes)
