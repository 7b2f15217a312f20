"""The memory of the study in report_builders: measured, predicted, and largest batches."""

from pathlib import Path

from hostile import EVIL, write

from schemas.config.run_spec import RunSpec
from schemas.results import (
    BatchShape,
    BatchTrial,
    BytesPerParameter,
    DecodingMemory,
    ForeignProcess,
    LargestBatchResult,
    MemoryResult,
    Milestone,
    Parts,
    PredictedMemory,
    PredictedRank,
    Prediction,
    RankAnatomy,
    TimelinePoint,
    VariantResult,
)
from tests.records import prediction, provenance, record
from transformer_core.report.sections.memory import MOMENTS

MIB = 2**20
PARAMETERS = MIB
BATCH = BatchShape(rows=8, source_tokens=20, target_tokens=22)
CONTEXT = 300 * MIB


def parts(activations: int) -> Parts:
    """4 MiB each of weights and gradients, 8 of optimizer state, and this many of activations."""
    sizes = {"weights": 4, "gradients": 4, "optimizer": 8, "activations": activations}
    sizes |= {"temporary": 1, "master_weights": 0, "buckets": 0, "communication": 0}
    return Parts(**{f"{name}_bytes": size * MIB for name, size in sizes.items()})


def rank_anatomy(rank: int, activations: int) -> RankAnatomy:
    """A rank with a MiB of untracked work space."""
    whole = parts(activations)
    peak = whole.total_bytes + MIB
    taken = {name: peak * place // len(MOMENTS) for place, name in enumerate(MOMENTS)}
    uncounted = [*MOMENTS][:2]
    milestones = [
        record(
            Milestone,
            name=name,
            tensor_bytes=None if name in uncounted else size,
            rss_bytes=CONTEXT + size,
        )
        for name, size in taken.items()
    ]
    phases = ("forward", "backward", "update")
    each = {"weights": 4.0, "master_weights": 0.0, "gradients": 4.0, "optimizer": 8.0}
    return record(
        RankAnatomy,
        rank=rank, device="cpu", batch=BATCH, milestones=milestones, anatomy=whole, at_peak=whole,
        peak_tensor_bytes=peak, residual_bytes=MIB,
        bytes_per_parameter=BytesPerParameter(**each, buckets=0.0, model_state=16.0),
        timeline=[
            TimelinePoint(phase=phase, position=place / 8, parts=parts(activations * place // 8))
            for place, phase in enumerate(phase for phase in phases for _ in range(3))
        ],
    )  # fmt: skip


def memory_result(result: VariantResult, ranks: int) -> MemoryResult:
    """A result that ends like the timed run; its first rank has twice the activations of the others."""
    ended = {"variant": result.variant, "status": result.status, "reason": result.reason}
    ended |= {"steps": 3, "provenance": provenance()}
    if result.status != "ok":
        return record(MemoryResult, **ended)
    decoding = DecodingMemory(
        sentences=16, beam_size=4, length=32, weights_bytes=4 * MIB, functionality_bytes=9 * MIB
    )
    return record(
        MemoryResult,
        parameters=PARAMETERS,
        ranks=[rank_anatomy(rank, 20 if rank else 40) for rank in range(ranks)],
        decoding=decoding,
        foreign=[ForeignProcess(device="cuda:0", pid=77, name=EVIL, bytes=MIB)],
        **ended,
    )


def prediction_of(result: VariantResult) -> Prediction:
    """Activations of 44 MiB; the prediction of ``qkv_separate`` fails."""
    whole = {"at_peak": parts(44), "anatomy": parts(44), "training_bytes": parts(44).total_bytes}
    rank = PredictedRank(rank=0, batch=BATCH, validation_bytes=MIB, **whole)
    found = {"parameters": PARAMETERS, "ranks": [rank]}
    if result.variant == "qkv_separate":
        found = {"status": "failed", "reason": EVIL, "parameters": None, "ranks": []}
    machine = {"context_bytes": CONTEXT, "capacity_bytes": 1000 * MIB}
    return prediction(0, variant=result.variant, **machine, **found)


def largest_batch(variant: str) -> LargestBatchResult:
    """64 pairs fit, 66 do not."""
    fits = {"pairs": 64, "status": "ok", "reason": None, "peak_bytes": 400 * MIB}
    no_room = {"status": "oom", "reason": f"The host ran out of memory. {EVIL}"}
    no_room |= {"pairs": 66, "peak_bytes": None}
    tried = [("search", fits), ("search", no_room), ("confirmation", fits)]
    tried += [("one_step_more", no_room)]
    limit = {"limit_kind": "data_segment", "limit_bytes": 512 * MIB, "margin": 0.05}
    found = {"largest_pairs": 64, "step_pairs": 2, "confirmed": True, "status": "ok"}
    found |= {"source_tokens": 30, "target_tokens": 30, "provenance": provenance()}
    trials = [BatchTrial(purpose=purpose, seconds=4.0, **ended) for purpose, ended in tried]
    return record(LargestBatchResult, variant=variant, trials=trials, **limit, **found)


def write_memory(
    folder: Path, specs: dict[str, RunSpec], results: dict[str, VariantResult]
) -> None:
    """results/memory of the variants below ``folder``, which ended like their timed runs."""
    memory = folder / "memory"
    for name, result in results.items():
        write(memory / f"{name}.json", memory_result(result, specs[name].world_size))
    predictions = [prediction_of(result) for result in results.values()]
    write(memory / "predicted.json", PredictedMemory(predictions=predictions))
    write(memory / "largest_batch/single.json", largest_batch("single"))
