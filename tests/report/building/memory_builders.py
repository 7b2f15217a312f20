"""The memory of the small study of report_builders: measured, predicted, and largest batches."""

from pathlib import Path
from typing import Any

from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
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
    Provenance,
    RankAnatomy,
    TimelinePoint,
    VariantResult,
)
from transformer_core.report.sections.memory_figures import MOMENTS

MIB = 2**20
PARAMETERS = MIB
BATCH = BatchShape(rows=8, source_tokens=20, target_tokens=22)
CONTEXT = 300 * MIB


def parts(activations: int) -> Parts:
    """4 bytes of weights and gradients, 8 of optimizer state, and so many MiB of activations."""
    return Parts(
        weights_bytes=4 * MIB,
        master_weights_bytes=0,
        gradients_bytes=4 * MIB,
        optimizer_bytes=8 * MIB,
        buckets_bytes=0,
        communication_bytes=0,
        activations_bytes=activations * MIB,
        temporary_bytes=MIB,
    )


def rank_anatomy(rank: int, activations: int) -> RankAnatomy:
    """A rank with a MiB of work space that nobody followed."""
    whole = parts(activations)
    peak = whole.total_bytes + MIB
    milestones = [
        Milestone(
            name=name,
            tensor_bytes=peak * place // len(MOMENTS) if place > 1 else None,
            reserved_bytes=None,
            rss_bytes=CONTEXT + peak * place // len(MOMENTS),
            device_bytes=None,
            process_bytes=None,
        )
        for place, name in enumerate(MOMENTS)
    ]
    phases = ("forward", "backward", "update")
    return RankAnatomy(
        rank=rank, device="cpu", batch=BATCH, milestones=milestones, anatomy=whole, at_peak=whole,
        peak_tensor_bytes=peak, residual_bytes=MIB, saved_tensor_bytes=activations * MIB,
        bytes_per_parameter=BytesPerParameter(
            weights=4.0, master_weights=0.0, gradients=4.0, optimizer=8.0, buckets=0.0,
            model_state=16.0,
        ),
        device_account=None,
        timeline=[
            TimelinePoint(phase=phase, position=place / 8, parts=parts(activations * place // 8))
            for place, phase in enumerate(phase for phase in phases for _ in range(3))
        ],
    )  # fmt: skip


def memory_result(result: VariantResult, ranks: int, provenance: Provenance, text: str) -> Any:
    """The first rank has twice the activations of the others; it ends like the timed run."""
    ok = result.status == "ok"
    return MemoryResult(
        variant=result.variant,
        status=result.status,
        reason=result.reason,
        traceback=None,
        topology=None,
        parameters=PARAMETERS if ok else None,
        mixed_precision=False,
        steps=3,
        ranks=[rank_anatomy(rank, 20 if rank else 40) for rank in range(ranks)] if ok else [],
        decoding=DecodingMemory(
            sentences=16, beam_size=4, length=32, weights_bytes=4 * MIB, functionality_bytes=9 * MIB
        )
        if ok
        else None,
        foreign=[ForeignProcess(device="cuda:0", pid=77, name=text, bytes=MIB)] if ok else [],
        provenance=provenance,
    )


def prediction_of(result: VariantResult, text: str) -> Prediction:
    """Activations of 44 MiB; the prediction of ``qkv_separate`` fails."""
    fails = result.variant == "qkv_separate"
    rank = PredictedRank(
        rank=0,
        batch=BATCH,
        at_peak=parts(44),
        anatomy=parts(44),
        training_bytes=parts(44).total_bytes,
        validation_bytes=MIB,
    )
    return Prediction(
        variant=result.variant,
        status="failed" if fails else "ok",
        reason=text if fails else None,
        device="cpu",
        parameters=None if fails else PARAMETERS,
        ranks=[] if fails else [rank],
        context_bytes=CONTEXT,
        capacity_bytes=1000 * MIB,
        notes=[],
        seconds=1.0,
    )


def largest_batch(variant: str, provenance: Provenance, text: str) -> LargestBatchResult:
    """64 pairs fit, 66 do not."""
    tried = (("search", 64), ("search", 66), ("confirmation", 64), ("one_step_more", 66))
    return LargestBatchResult(
        variant=variant,
        status="ok",
        reason=None,
        limit_kind="data_segment",
        limit_bytes=512 * MIB,
        margin=0.05,
        source_tokens=30,
        target_tokens=30,
        largest_pairs=64,
        step_pairs=2,
        confirmed=True,
        trials=[
            BatchTrial(
                pairs=pairs,
                purpose=purpose,
                status="ok" if pairs == 64 else "oom",
                reason=None if pairs == 64 else f"The host ran out of memory. {text}",
                peak_bytes=400 * MIB if pairs == 64 else None,
                seconds=4.0,
            )
            for purpose, pairs in tried
        ],
        provenance=provenance,
    )


def write_memory(
    folder: Path, study: Study, specs: dict[str, RunSpec], provenance: Provenance, text: str
) -> None:
    """results/memory of the variants below ``folder``, which ended like their timed runs."""
    memory = folder / "memory"
    (memory / "largest_batch").mkdir(parents=True)
    results = [
        VariantResult.model_validate_json((folder / f"runs/{name}/metrics.json").read_text())
        for name in specs
    ]
    for result in results:
        ranks = specs[result.variant].world_size
        found = memory_result(result, ranks, provenance, text)
        (memory / f"{result.variant}.json").write_text(found.model_dump_json())
    predicted = PredictedMemory(predictions=[prediction_of(result, text) for result in results])
    (memory / "predicted.json").write_text(predicted.model_dump_json())
    asked = study.memory.largest_batch.variants if study.memory else []
    for name in asked:
        (memory / f"largest_batch/{name}.json").write_text(
            largest_batch(name, provenance, text).model_dump_json()
        )
