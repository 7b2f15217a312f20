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
    GraphUse,
    KernelTime,
    LaunchUse,
    LayerUse,
    PathPart,
    ShapeUse,
    SourceUse,
    StepBound,
    Straggler,
    StreamUse,
)


class Partition(Schema):
    """Device activity during a window of wall time. The parts of the partition (compute, exposed
    communication, exposed copies, exposed graphs, idle) sum to the window."""

    window_ns: Nanoseconds
    """Length of the window."""
    busy_ns: Nanoseconds
    """Time with anything running."""
    idle_ns: Nanoseconds
    """Time with nothing running."""
    compute_ns: Nanoseconds
    """Time with computation running."""
    communication_ns: Nanoseconds
    """Time with communication running."""
    overlap_ns: Nanoseconds
    """Time with computation and communication running at once."""
    exposed_communication_ns: Nanoseconds
    """Time with communication but no computation running."""
    exposed_copies_ns: Nanoseconds | None
    """Time with only copies and memory sets running; null on a CPU, which has no such events."""
    exposed_graphs_ns: Nanoseconds | None
    """Time with only CUDA graphs running that were recorded as a whole; null on a CPU."""


class ProfiledStep(Schema):
    """One optimizer step on one device."""

    step: StepsOrNone
    """Its number among the profiled steps, from 0."""
    start_ns: SignedNanoseconds
    """Its start, relative to the first event of the device."""
    partition: Partition
    """Device activity during the step."""


class Activity(Schema):
    """One kind of work: its time summed over its events, regardless of what runs concurrently."""

    name: str
    """A collective, a kind of copy, or a class of operators."""
    kind: str
    """compute, communication, memcpy, memset or graph."""
    count: Many
    """Events."""
    time_ns: Nanoseconds
    """Sum of their durations."""
    share: Proportion | None
    """Fraction of the sum over all activities: the original study's 79 %; null if that is zero."""
    bytes: Bytes | None
    """Bytes copied, set or communicated; null if the trace does not say."""


class CollectiveUse(Schema):
    """One kind of collective on one device."""

    collective: str
    """all_reduce, broadcast, ..."""
    count: Many
    """Executions."""
    bytes: Bytes | None
    """Bytes as counted by nccl-tests; null if the trace does not say."""
    time_ns: Nanoseconds
    """Sum of the durations."""
    union_ns: Nanoseconds
    """Time during which at least one runs."""
    transfer_ns: Nanoseconds | None
    """Sum over executions of the shortest duration on any rank; null if the ranks cannot be
    compared."""
    waiting_ns: Nanoseconds | None
    """The remaining time, spent waiting for the slowest rank; null likewise."""
    bus_bandwidth: PerSecond | None
    """Bus bandwidth of the transfers as defined by nccl-tests, in bytes per second; null if any
    part is unknown."""


class PhaseUse(Schema):
    """One phase of the training step on one device."""

    phase: str
    """data, forward, loss, backward, optimizer; loader for threads that launch no kernel of the
    step, whatever the phase; other for anything outside all ranges."""
    host_ns: Nanoseconds | None
    """Host time spent in its ranges; null for loader and other."""
    busy_ns: Nanoseconds
    """Time during which the device ran something launched in it."""
    compute_ns: Nanoseconds
    """Computation time launched in it."""
    communication_ns: Nanoseconds
    """Communication time launched in it."""
    copies_ns: Nanoseconds | None
    """Time of copies and memory sets launched in it; null on a CPU."""


class OperatorClass(Schema):
    """One class of operators on one device (arXiv 2007.00072)."""

    operator_class: str
    """contraction, normalization, element_wise, communication or other."""
    count: Many
    """Number of kernels, or of self-time intervals on a CPU."""
    time_ns: Nanoseconds
    """Sum of their durations."""
    share: Proportion | None
    """Fraction of the sum over all classes; null if that is zero."""
    flops: Operations | None
    """Floating-point operations, from the operators' shapes; null if those are unknown."""
    bytes: Bytes | None
    """Bytes read and written, likewise."""
    counted_ns: Nanoseconds
    """Time of the operators with known shapes."""
    intensity: Amount | None
    """FLOPs per byte; null if unknown."""


class ForwardBackward(Schema):
    """Time of the same operators in the forward and backward phases of one device."""

    operators: str
    """linear, attention, normalization or element_wise."""
    forward_ns: Nanoseconds
    """Sum of the durations in forward and loss."""
    backward_ns: Nanoseconds
    """Sum of the durations in backward."""
    ratio: Measured | None
    """Backward over forward; null if either is zero."""
    flops_ratio: Measured | None
    """The same ratio for FLOPs; null if those are unknown."""
    bytes_ratio: Measured | None
    """The same ratio for bytes read and written; null likewise."""


class DeviceBreakdown(Schema):
    """One device of one rank."""

    rank: Few
    """Global rank, or the position of the file if the trace does not give it."""
    pid: Whole
    """Process id."""
    device: str
    """cpu, cuda:<index> (ROCm too), or another accelerator with its index, such as xpu:<index>."""
    events: Many
    """Device events."""
    kernels: Many
    """Kernels among them."""
    span: Partition
    """From the start of the first event to the end of the last."""
    steps: list[ProfiledStep]
    """By step; empty if the trace marks none."""
    host_bound_ns: Nanoseconds | None
    """Idle time of the span during which the device waited for the host to launch the next
    event; null if launches are unknown, and on a CPU, where host and device are the same."""
    streams: list[StreamUse]
    """By stream."""
    activities: list[Activity]
    """By time, longest first."""
    kernel_times: list[KernelTime]
    """The ten longest."""
    collectives: list[CollectiveUse]
    """By name."""
    phases: list[PhaseUse]
    """By order in the step; empty if the trace marks no phases."""
    operators: list[OperatorClass]
    """By class."""
    forward_backward: list[ForwardBackward]
    """By group of operators; empty without phases."""
    bound: StepBound | None = None
    """Causes of waiting in the steps."""
    launches: LaunchUse | None = None
    """How far the host runs ahead; null if launches are unknown, and on a CPU."""
    graphs: list[GraphUse] = Field(default_factory=list)
    """CUDA graphs, longest first."""
    critical_path: list[PathPart] = Field(default_factory=list)
    """Critical path of the step of median length, longest part first; empty if the trace marks
    no steps."""

    @property
    def profiled(self) -> Partition:
        """All steps together, or the span if the trace marks no steps."""
        parts = [step.partition for step in self.steps] or [self.span]
        totals: dict[str, int | None] = {}
        for name in Partition.model_fields:
            values = [getattr(part, name) for part in parts]
            totals[name] = None if None in values else sum(values)
        return Partition.model_validate(totals)


class ProfileSummary(Schema):
    """All devices together. Fractions are of the wall time of the profiled steps, averaged over
    devices; null if no device has such events, or the total is zero."""

    step_seconds: Elapsed
    """Wall time of a step under the profiler, which slows it down; of the whole trace if it
    marks no steps."""
    compute: Proportion | None
    """Fraction of time with computation running."""
    exposed_communication: Proportion | None
    """Fraction of time with communication but no computation running."""
    exposed_copies: Proportion | None
    """Fraction of time with only copies and memory sets running."""
    exposed_graphs: Proportion | None
    """Fraction of time with only CUDA graphs running that were recorded as a whole."""
    idle: Proportion | None
    """Fraction of time with nothing running."""
    overlap: Proportion | None
    """Fraction of time with computation and communication running at once."""
    hidden_communication: Proportion | None
    """Fraction of communication time during which computation runs too."""
    communication_of_device_time: Proportion | None
    """Fraction of communication in the summed time of all activities: the original study's 79 %."""
    host_bound: Proportion | None
    """Fraction of the span during which a device waited for the host to launch something."""
    operators: list[OperatorClass]
    """Classes of operators, summed over devices."""
    collectives: list[CollectiveUse]
    """Collectives, summed over devices; the bus bandwidth is the mean."""
    phases: list[PhaseUse]
    """Phases, summed over devices."""
    forward_backward: list[ForwardBackward]
    """Backward against forward, summed over devices."""
    stragglers: list[Straggler] = Field(default_factory=list)
    """Ranks by the waiting they cause, most first; empty if no ranks can be compared."""
    bound: StepBound | None = None
    """Causes of waiting in the steps, summed over devices."""
    layers: list[LayerUse] = Field(default_factory=list)
    """The module tree, parents first; empty if the trace has no module ranges."""
    shapes: list[ShapeUse] = Field(default_factory=list)
    """Operators by input shapes, longest first; empty if the trace has no shapes."""
    sources: list[SourceUse] = Field(default_factory=list)
    """Kernels by the function of the program that launched them, longest first; empty if the trace
    has no stacks."""


class Breakdown(Schema):
    """results/profiles/<name>/breakdown.json: device activity during a few steps."""

    name: str
    """The variant, or a name given by the user."""
    status: Status
    """ok, or why there are no events: unsupported (no device), failed, ..."""
    reason: str | None = None
    """Why the status is not ok, if so."""
    source: Literal["nsys", "kineto"] | None
    """Format of the trace."""
    source_version: str | None
    """Version of the format or of the tool that wrote it; null if unknown."""
    profiler_reason: str | None
    """Why this profiler was chosen; null for a user-provided trace."""
    viewer_files: list[str]
    """Files to open in Nsight Systems or Perfetto, relative to this file."""
    devices: list[DeviceBreakdown]
    """By rank and device."""
    summary: ProfileSummary | None = None
    """All devices together; null if there is none."""
    notes: list[str] = Field(default_factory=list)
    """Caveats for the reader: launches without a row, ranks that cannot be compared, ..."""
