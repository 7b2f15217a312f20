"""All comparisons of a study: ratios, verdicts, and notes that help to read them.

Throughput and memory come from the paired runs. Peak memory varies from process to process, and
paired runs have several processes of each side. Traffic is counted in each variant's own run.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from math import log
from pathlib import Path

from schemas.results import (
    Certificate,
    CertificateStatus,
    Comparison,
    Effect,
    LogRatio,
    Pair,
    PairedRun,
    Quantity,
    Session,
    VariantResult,
)
from schemas.results.comparisons import FOREIGN_LIMIT
from transformer_core.certify.kernels import turns_otherwise
from transformer_core.common.digests import write_result
from transformer_core.common.job import Job
from transformer_core.common.percent import percent
from transformer_core.common.records import read_record
from transformer_core.decide.intervals import simultaneous_ratios
from transformer_core.decide.verdicts import judge, not_measured, timed_differently, traffic

INPUT_WAIT_LIMIT = 0.05
"""Fraction of time spent waiting for input above which throughput says little about training."""
HELD_LIMIT = 0.05  # share of the rounds for which a GPU's clock may be held down without a note
PROBE_LIMIT = 0.1  # change of the machine's speed during a session above which a note is added

NO_SPEEDUP: dict[CertificateStatus, str] = {
    "not_equivalent": "{} does not train the same model: no speed-up",
    "different": "{} trains a different model by design: no speed-up of the same training",
}
"""Notes on a ratio for a side without a certificate; other statuses are named as they are."""


def compare(
    runs: Sequence[PairedRun],
    results: Mapping[str, VariantResult],
    certificates: Mapping[str, Certificate],
    margin: float,
) -> list[Comparison]:
    """A comparison for each paired run, in order; the intervals of all hold at once."""
    timed = [run for run in runs if run.status == "ok"]
    speed = _effects("throughput", timed, [run.ratios for run in timed], margin)
    weighed, ratios = [], []
    for run in timed:
        peaks = [[side.peak_memory_bytes or 0 for side in one.sides] for one in run.sessions]
        if all(map(all, peaks)):
            weighed.append(run)
            # One number per session, without its own error.
            logs = (log(variant / reference) for reference, variant in peaks)
            ratios.append(
                [LogRatio(*run.pair, each, error=0.0, freedom=0, pairs=1) for each in logs]
            )
    memory = _effects("peak_memory", weighed, ratios, margin)
    comparisons = []
    for run in runs:
        ended = f"{run.ended_by} ended {run.status}"
        if run.reason:
            ended += f": {run.reason.rstrip('.')}"
        unknown = ended if run.status != "ok" else "the peak memory of one side is unknown"
        sides = (run.reference, run.variant)
        said = {name: _about_certificate(run, name, certificates[name]) for name in sides}
        notes = [ended]
        if run.status == "ok":
            notes = [*filter(None, (note for _, note in said.values())), *about_sessions(run)]
        comparisons.append(
            Comparison(
                variant=run.variant,
                reference=run.reference,
                effects=[
                    speed.get(run.pair) or not_measured("throughput", ended),
                    memory.get(run.pair) or not_measured("peak_memory", unknown),
                    traffic_effect(results[run.variant], results[run.reference]),
                ],
                certificate=said[run.variant][0],
                counts=counts(run, certificates),
                note="; ".join(dict.fromkeys(notes)),
            )
        )
    return comparisons


def _effects(
    quantity: Quantity,
    runs: Sequence[PairedRun],
    ratios: Sequence[Sequence[LogRatio]],
    margin: float,
) -> dict[Pair, Effect]:
    intervals = simultaneous_ratios(ratios, [run.looks for run in runs])
    return {
        run.pair: judge(quantity, interval, margin, len(run.sessions))
        for run, interval in zip(runs, intervals, strict=True)
    }


def traffic_effect(variant: VariantResult, reference: VariantResult) -> Effect:
    """Bytes sent by all ranks per optimizer step."""
    for result in (reference, variant):
        if result.status != "ok":
            return not_measured("traffic", f"{result.variant} ended {result.status}")
    sent, base = _bytes_sent(variant), _bytes_sent(reference)
    if sent is None or base is None:
        name = (variant if sent is None else reference).variant
        return not_measured("traffic", f"the traffic of {name} is not counted")
    # Variants may differ in steps; integers keep equal traffic equal. Only one that sends nothing may
    # have no counted steps: it resumed at its last one.
    steps, base_steps = (one.repeats[0].counted_steps or 1 for one in (variant, reference))
    return traffic(sent * base_steps, base * steps)


def _bytes_sent(result: VariantResult) -> int | None:
    """Bytes sent by all ranks of the first repeat; null if not counted."""
    repeat = result.repeats[0]
    traffic = (repeat.communication or {}).get("traffic")
    if traffic is not None:
        sent = sum(sum(operation["sent_bytes"]) for operation in traffic.values())
        return sent if repeat.counted_steps else None
    alone = repeat.topology is not None and repeat.topology.world_size == 1
    # A process that drives several devices moves data between them uncounted.
    return 0 if alone and len({memory.device for memory in repeat.memory}) <= 1 else None


def _about_certificate(
    run: PairedRun, name: str, certificate: Certificate
) -> tuple[CertificateStatus, str]:
    """Status of a side's certificate in this comparison, and a note on it."""
    status, otherwise = certificate.status, turns_otherwise(run, name, certificate)
    if otherwise and status in ("equivalent", "different"):
        return "inconclusive", f"{timed_differently(name, otherwise)}: no speed-up"
    if status == "equivalent":
        return status, ""
    said = NO_SPEEDUP.get(status, f"{{}} has no certificate ({status}): no speed-up")
    return status, said.format(name)


def counts(run: PairedRun, certificates: Mapping[str, Certificate]) -> bool:
    """Whether both sides have a certificate for what was timed: a speed-up of the same training."""
    return run.status == "ok" and all(
        _about_certificate(run, name, certificates[name])[0] == "equivalent" for name in run.pair
    )


def about_sessions(run: PairedRun) -> Iterator[str]:
    for name in (run.reference, run.variant):
        windows = [window for session in run.sessions for window in session.windows(name)]
        waited = sum(window.input_wait_seconds for window in windows)
        share = waited / sum(window.seconds for window in windows)
        if share > INPUT_WAIT_LIMIT:
            yield f"{name} waited for input {percent(share, 0)} of the time"
    cores = run.provenance[run.reference].hardware.logical_cpus
    foreign = max((session.foreign_share(cores) or 0.0 for session in run.sessions), default=0.0)
    if foreign > FOREIGN_LIMIT:
        yield f"other processes took up to {percent(foreign, 0)} of the CPUs"
    changes = [change for session in run.sessions for change in _probe_changes(session)]
    worst = max(changes, key=lambda change: abs(log(change)), default=1.0)
    if abs(log(worst)) > log(1 + PROBE_LIMIT):
        yield f"the machine's own speed changed by a factor of {worst:.2f} within a session"
    throttled = {
        reason
        for session in run.sessions
        for state in (session.before, session.after)
        for gpu in state.gpus
        for reason in gpu.throttled or []
    }
    if throttled:
        yield f"the GPU's clock was held down: {', '.join(sorted(throttled))}"
    yield from _held_down(run)
    theirs, ours = (side.topology for side in run.sessions[0].sides)
    if ours and theirs:
        if ours.device != theirs.device:
            yield f"{ours.device} against {theirs.device}"
        if ours.world_size != theirs.world_size:
            yield f"{ours.world_size} against {theirs.world_size} ranks"
        if ours.threads_per_rank != theirs.threads_per_rank:
            yield f"{ours.threads_per_rank} against {theirs.threads_per_rank} threads per rank"
        for name, side in ((run.reference, theirs), (run.variant, ours)):
            threads = side.local_world_size * side.threads_per_rank
            cores = run.provenance[name].hardware.cores
            if side.device == "cpu" and threads > cores:
                yield f"{name} had {threads} threads for {cores} core{'s' * (cores != 1)}"


def _held_down(run: PairedRun) -> Iterator[str]:
    """Limits that held the clock of a GPU down for more than HELD_LIMIT of the rounds."""
    total = sum(session.rounds_seconds for session in run.sessions)
    work = [gpu for s in run.sessions for r in s.rounds for gpu in r.gpus]
    for index in sorted({gpu.index for gpu in work}):
        mine = [gpu for gpu in work if gpu.index == index]
        for limit in ("power", "heat"):
            seconds = sum(getattr(gpu, f"{limit}_held_seconds") or 0.0 for gpu in mine)
            if seconds > HELD_LIMIT * total:
                share = percent(seconds / total, 0)
                yield f"{limit} held the clock of GPU {index} down for {share} of the rounds"


def _probe_changes(session: Session) -> list[float]:
    """Changes of the probes from before a session to after it, as factors."""
    before = {probe.device: probe for probe in session.before.probes}
    return [
        getattr(after, rate) / getattr(before[after.device], rate)
        for after in session.after.probes
        if after.device in before
        for rate in ("matmul_flops_per_second", "copy_bytes_per_second")
    ]


class CompareJob(Job):
    """Compares variants with their references: ratios of throughput, memory and traffic with
    intervals that hold all at once, and verdicts."""

    kind = "compare"

    margin: float  # ratios up to 1 + margin are the same
    pairs: tuple[Path, ...] = ()  # paired runs
    results: list[Path]  # metrics.json of every variant
    certificates: list[Path]
    output: Path

    def run(self, log_file: Path | None) -> None:
        runs = [read_record(file, PairedRun) for file in self.pairs]
        results = {r.variant: r for r in (read_record(f, VariantResult) for f in self.results)}
        certificates = {
            c.variant: c for c in (read_record(f, Certificate) for f in self.certificates)
        }
        compared = compare(runs, results, certificates, self.margin)
        comparisons = [
            one.model_copy(update={"record": os.path.relpath(file, self.output.parent)})
            for one, file in zip(compared, self.pairs, strict=True)
        ]
        text = json.dumps([item.model_dump(mode="json") for item in comparisons], indent=1)
        write_result(self.output, text + "\n")
