"""What the model of a step says of runs of several processes, held against their measured times."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from schemas.config.link import LinkModel
from schemas.config.parallel import Central, CompressHook, Ddp, EmulatedLinkHook, Fsdp, PowerSgdHook
from schemas.config.run_spec import RunSpec
from schemas.results import (
    ComputeTimes,
    MeasuredLink,
    ProjectedStrategy,
    ProjectionCheck,
    VariantResult,
)
from transformer_core.decide.scaling.measured_link import MEASURED, as_model
from transformer_core.decide.scaling.step_model import Compute, step_seconds
from transformer_core.measure.compute.job import work
from transformer_core.parallel.communication.link_times import PAYLOAD_SHARE


def checks(
    specs: Mapping[str, RunSpec],
    results: Mapping[str, VariantResult],
    times: Sequence[ComputeTimes],
    measured: MeasuredLink | None,
) -> Iterator[ProjectionCheck]:
    """Every variant of several processes that ran, predicted and measured."""
    by_work = {work(specs[t.variant]): t for t in times if t.status == "ok"}
    for name, spec in specs.items():
        windows = [window for repeat in results[name].repeats for window in repeat.windows]
        if spec.world_size < 2 or results[name].status != "ok" or not windows:
            continue
        yield _check(spec, windows, by_work.get(work(spec)), measured)


def _check(
    spec: RunSpec,
    windows: Sequence[Any],
    times: ComputeTimes | None,
    measured: MeasuredLink | None,
) -> ProjectionCheck:
    seconds = median(w.seconds / (w.last_step - w.first_step + 1) for w in windows)
    link, name = _link_of(spec, measured)
    described = _strategy_of(spec)
    note = ""
    if isinstance(described, str):
        note = described
    elif link is None:
        note = "the link between its processes was not measured"
    elif times is None:
        note = "its work on one device was not measured"
    predicted = None
    if not note:
        assert link is not None
        assert times is not None
        assert not isinstance(described, str)
        strategy, manner = described
        devices = spec.world_size
        if isinstance(spec.parallel, Ddp) and isinstance(spec.parallel.hook, EmulatedLinkHook):
            devices = spec.parallel.hook.devices or devices
        gloo = times.topology is not None and times.topology.device == "cpu"
        predicted = step_seconds(
            strategy,
            Compute.of(times),
            link,
            devices,
            **manner,
            backend="gloo" if gloo else "nccl",
        )
    return ProjectionCheck(
        variant=spec.variant,
        devices=spec.world_size,
        link=name,
        strategy=None if isinstance(described, str) else described[0],
        predicted_seconds=predicted,
        measured_seconds=seconds,
        error=None if predicted is None else predicted / seconds - 1,
        note=note,
    )


def _strategy_of(spec: RunSpec) -> tuple[ProjectedStrategy, dict[str, Any]] | str:
    """Strategy of a spec and its manner as :func:`step_seconds` takes them, or why it has none."""
    parallel, accumulation = spec.parallel, spec.training.accumulation
    if isinstance(parallel, Fsdp):
        if parallel.bf16:
            return "the model knows FSDP in 32 bits only"
        return "fsdp", {"reshard": parallel.reshard_after_forward}
    if isinstance(parallel, Central):
        return "central", {"local_loss": parallel.local_loss}
    if not isinstance(parallel, Ddp):
        return f"the model does not know {parallel.kind}"
    if isinstance(parallel.hook, PowerSgdHook):
        return "the model does not know what PowerSGD computes"
    manner = {
        "bucket_mb": parallel.bucket_mb,
        "payload": 0.5 if isinstance(parallel.hook, CompressHook) else 1.0,
        "overlap": parallel.overlap,
    }
    if accumulation.micro_batches == 1:
        return "ddp" if parallel.overlap else "ddp_no_overlap", manner
    every = accumulation.synchronise == "every"
    return "accumulation_sync" if every else "accumulation_no_sync", manner


def _link_of(spec: RunSpec, measured: MeasuredLink | None) -> tuple[LinkModel | None, str]:
    """The link between the processes of a run, and its name."""
    if isinstance(spec.parallel, Ddp) and isinstance(spec.parallel.hook, EmulatedLinkHook):
        return spec.parallel.hook, "emulated"
    if spec.machine.link is not None:
        return LinkModel(bandwidth=PAYLOAD_SHARE * spec.machine.link.bandwidth), "limited"
    # What was measured is the link within one host.
    if measured is None or spec.machine.nodes > 1:
        return None, MEASURED
    return as_model(measured), MEASURED
