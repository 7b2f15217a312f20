"""Breakdowns of profiles: results/profiles/. Integers named ``_ns`` are nanoseconds, exact."""

from typing import Literal

from pydantic import Field

from schemas.base import Schema, StepsOrNone, Whole
from schemas.results.common import (
    Amount,
    Bytes,
    Elapsed,
    Few,
    Many,
    Measured,
    Nanoseconds,
    Operations,
    PerSecond,
    Proportion,
    SignedNanoseconds,
    Status,
)
from schemas.results.profile_details import (
    KernelTime,
    LaunchUse,
    LayerUse,
    PathPart,
    ShapeUse,
    StepBound,
    Straggler,
    StreamUse,
)


class Partition(Schema):
    """What a device did in a window of wall time. The parts of the partition (compute, exposed
    communication, exposed copies, exposed graphs, idle) sum to the window."""

    window_ns: Nanoseconds
    """Length of the window."""
    busy_ns: Nanoseconds
    """Anything runs."""
    idle_ns: Nanoseconds
    """Nothing runs."""
    compute_ns: Nanoseconds
    """Computation runs."""
    communication_ns: Nanoseconds
    """Communication runs."""
    overlap_ns: Nanoseconds
    """Computation and communication run at once."""
    exposed_communication_ns: Nanoseconds
    """Communication runs and computation does not."""
    exposed_copies_ns: Nanoseconds | None
    """Only copies and memory sets run; null on a CPU, which has no such events."""
    exposed_graphs_ns: Nanoseconds | None
    """Only CUDA graphs run that were recorded as a whole; null on a CPU."""


class ProfiledStep(Schema):
    """One optimizer step on one device."""

    step: StepsOrNone
    """Its number among the profiled steps, from 0."""
    start_ns: SignedNanoseconds
    """Its begin after that of the first event of the device."""
    partition: Partition
    """What the device did in it."""


class Activity(Schema):
    """One kind of work: its time summed over its events, whatever runs beside them."""

    name: str
    """A collective, a kind of copy, or a class of operators."""
    kind: str
    """compute, communication, memcpy, memset or graph."""
    count: Many
    """Events."""
    time_ns: Nanoseconds
    """Sum of their durations."""
    share: Proportion | None
    """Share of the sum over all activities: the study's 79 %; null if that is zero."""
    bytes: Bytes | None
    """Copied, set or communicated; null where the trace does not say."""


class CollectiveUse(Schema):
    """One kind of collective on one device."""

    collective: str
    """all_reduce, broadcast, ..."""
    count: Many
    """Executions."""
    bytes: Bytes | None
    """As nccl-tests counts them; null where the trace does not say."""
    time_ns: Nanoseconds
    """Sum of the durations."""
    union_ns: Nanoseconds
    """Time in which at least one runs."""
    transfer_ns: Nanoseconds | None
    """Sum over the executions of the shortest duration on any rank; null if the ranks cannot be
    compared."""
    waiting_ns: Nanoseconds | None
    """The rest: time spent on waiting for the slowest rank; null likewise."""
    bus_bandwidth: PerSecond | None
    """Bytes per second of the transfers as nccl-tests defines it; null where a part is unknown."""


class PhaseUse(Schema):
    """One phase of the training step on one device."""

    phase: str
    """data, forward, loss, backward, optimizer; loader for threads that launch no kernel of the
    step, whatever the phase; other for what no range owns."""
    host_ns: Nanoseconds | None
    """Time that the host spent in its ranges; null for loader and other."""
    busy_ns: Nanoseconds
    """Time in which the device ran something that was launched in it."""
    compute_ns: Nanoseconds
    """Computation launched in it."""
    communication_ns: Nanoseconds
    """Communication launched in it."""
    copies_ns: Nanoseconds | None
    """Copies and memory sets launched in it; null on a CPU."""


class OperatorClass(Schema):
    """One class of operators on one device (arXiv 2007.00072)."""

    operator_class: str
    """contraction, normalization, element_wise, communication or other."""
    count: Many
    """Kernels, or on a CPU stretches of self time."""
    time_ns: Nanoseconds
    """Sum of their durations."""
    share: Proportion | None
    """Share of the sum over all classes; null if that is zero."""
    flops: Operations | None
    """Floating-point operations, from the shapes of the operators; null where those are unknown."""
    bytes: Bytes | None
    """Bytes read and written, likewise."""
    counted_ns: Nanoseconds
    """The part of the time whose operators have known shapes."""
    intensity: Amount | None
    """FLOPs per byte; null where unknown."""


class ForwardBackward(Schema):
    """Time of the same operators in the forward and in the backward phase of one device."""

    operators: str
    """linear, attention, normalization or element_wise."""
    forward_ns: Nanoseconds
    """Sum of the durations in forward and loss."""
    backward_ns: Nanoseconds
    """Sum of the durations in backward."""
    ratio: Measured | None
    """Backward over forward; null if either is zero."""
    flops_ratio: Measured | None
    """The same of the FLOPs; null where those are unknown."""
    bytes_ratio: Measured | None
    """The same of the bytes read and written, likewise."""


class DeviceBreakdown(Schema):
    """One device of one rank."""

    rank: Few
    """Global rank, or the place of the file where the trace does not say it."""
    pid: Whole
    """The process."""
    device: str
    """cpu, cuda:<index> (ROCm too), or another accelerator with its index, as xpu:<index>."""
    events: Many
    """Device events."""
    kernels: Many
    """Kernels among them."""
    span: Partition
    """From the begin of the first event to the end of the last."""
    steps: list[ProfiledStep]
    """By step; empty if the trace marks none."""
    host_bound_ns: Nanoseconds | None
    """Idle time of the span in which the device waited for the host to launch the next event; null
    where launches are unknown, and on a CPU, where host and device are one."""
    streams: list[StreamUse]
    """By stream."""
    activities: list[Activity]
    """By time, longest first."""
    kernel_times: list[KernelTime]
    """The ten longest."""
    collectives: list[CollectiveUse]
    """By name."""
    phases: list[PhaseUse]
    """By order in the step; empty if the trace marks none."""
    operators: list[OperatorClass]
    """By class."""
    forward_backward: list[ForwardBackward]
    """By group of operators; empty without phases."""
    bound: StepBound | None = None
    """What the steps wait for."""
    launches: LaunchUse | None = None
    """How far the host runs ahead; null where launches are unknown, and on a CPU."""
    critical_path: list[PathPart] = Field(default_factory=list)
    """Of the step of median length, longest part first; empty if the trace marks no steps."""

    @property
    def profiled(self) -> Partition:
        """All steps together, or the span where the trace marks no steps."""
        parts = [step.partition for step in self.steps] or [self.span]
        totals: dict[str, int | None] = {}
        for name in Partition.model_fields:
            values = [getattr(part, name) for part in parts]
            totals[name] = None if None in values else sum(values)
        return Partition.model_validate(totals)


class ProfileSummary(Schema):
    """All devices together. Shares are of the wall time of the profiled steps, mean over devices;
    null where no device has such events, or there is nothing to take a share of."""

    step_seconds: Elapsed
    """Wall time of a step under the profiler, which slows it down; of the whole trace if it marks
    no steps."""
    compute: Proportion | None
    """Share in which computation runs."""
    exposed_communication: Proportion | None
    """Share in which communication runs and computation does not."""
    exposed_copies: Proportion | None
    """Share in which only copies and memory sets run."""
    exposed_graphs: Proportion | None
    """Share in which only CUDA graphs run that were recorded as a whole."""
    idle: Proportion | None
    """Share in which nothing runs."""
    overlap: Proportion | None
    """Share in which computation and communication run at once."""
    hidden_communication: Proportion | None
    """Share of the time of communication in which computation runs too."""
    communication_of_device_time: Proportion | None
    """Share of communication in the summed time of all activities: the study's 79 %."""
    host_bound: Proportion | None
    """Share of the span in which a device waited for the host to launch something."""
    operators: list[OperatorClass]
    """Classes of operators, summed over devices."""
    collectives: list[CollectiveUse]
    """Collectives, summed over devices; the bus bandwidth is the mean."""
    phases: list[PhaseUse]
    """Phases, summed over devices."""
    forward_backward: list[ForwardBackward]
    """Backward against forward, summed over devices."""
    stragglers: list[Straggler] = Field(default_factory=list)
    """By the waiting that they cause, most first; empty where no ranks can be compared."""
    bound: StepBound | None = None
    """What the steps wait for, summed over devices."""
    layers: list[LayerUse] = Field(default_factory=list)
    """The tree of modules, parents first; empty if the trace has no ranges of modules."""
    shapes: list[ShapeUse] = Field(default_factory=list)
    """Operators by shapes of their inputs, longest first; empty if the trace has no shapes."""


class Breakdown(Schema):
    """results/profiles/<name>/breakdown.json: what the devices did in a few steps."""

    name: str
    """The variant, or the name that the user gave."""
    status: Status
    """ok, or why there is no event: unsupported (no device), failed, ..."""
    reason: str | None = None
    """Why, where it is not ok."""
    source: Literal["nsys", "kineto"] | None
    """The format that was read."""
    source_version: str | None
    """Version of the format or of the tool that wrote it; null where it does not say."""
    profiler_reason: str | None
    """Why this profiler; null for a trace that a user brought."""
    viewer_files: list[str]
    """Files to open in Nsight Systems or Perfetto, relative to this file."""
    devices: list[DeviceBreakdown]
    """By rank and device."""
    summary: ProfileSummary | None = None
    """All devices together; null if there is none."""
    notes: list[str] = Field(default_factory=list)
    """What a reader must know: launches without a row, ranks that cannot be compared, ..."""
