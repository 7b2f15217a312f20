"""Breakdowns of traces: results/profiles/."""

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
    SignedBytes,
    SignedNanoseconds,
    Status,
)


class StreamUse(Schema):
    """One stream of a device, or one thread of a CPU."""

    stream: Whole
    """The profiler's number for it."""
    events: Many
    """Number of events on it."""
    busy_ns: Nanoseconds
    """Time during which at least one event ran."""
    occupancy: Proportion | None
    """Fraction of the span; null if that is zero."""


class KernelTime(Schema):
    """One kernel, or on a CPU one operator, by name."""

    name: str
    """Name in the trace."""
    kind: str
    """compute or communication."""
    count: Many
    """Executions."""
    time_ns: Nanoseconds
    """Sum of their durations."""
    shortest_ns: Nanoseconds
    """Shortest execution."""
    longest_ns: Nanoseconds
    """Longest execution."""
    share: Proportion | None
    """Fraction of the time of all kernels; null if that is zero."""
    operators: list[str] = Field(default_factory=list)
    """Operators inside a kernel that TorchInductor made; empty for any other."""
    operator_class: str | None = None
    """contraction, normalization, element_wise, communication or other."""
    number_format: str | None = None
    """Format of its inputs: fp32, bf16, ...; null if there are several, or the trace does not say."""
    flops: Operations | None = None
    """Floating-point operations, from the shapes of the operators that launched it or as
    TorchInductor counted them; null if one is unknown."""
    bytes: Bytes | None = None
    """Bytes read and written; null likewise."""
    roofline_share: Amount | None = None
    """Least time that the measured ceilings allow, over the time taken; null without ceilings."""


class NodeUse(Schema):
    """One node of a CUDA graph."""

    node: Whole
    """The profiler's number for it."""
    name: str
    """Kernel, copy or memory set."""
    count: Many
    """Executions."""
    time_ns: Nanoseconds
    """Sum of their durations."""


class GraphUse(Schema):
    """One CUDA graph on a device."""

    graph: Whole | None
    """The profiler's number for it; null if the trace tells nodes alone."""
    launches: Many
    """Launches with events in the trace."""
    events: Many
    """Device events; one for each launch if graphs were recorded as a whole."""
    time_ns: Nanoseconds
    """Sum of their durations."""
    nodes: list[NodeUse]
    """Nodes, longest first; empty if graphs were recorded as a whole."""


class SourceUse(Schema):
    """What one function of the program launched, by kernel, summed over devices and steps. Backward
    launches count for the function that called the operator in forward."""

    source: str
    """File, first line and name of the innermost function outside PyTorch: train.py(12): loss."""
    kernel: str
    """Name of the kernel, or on a CPU of the operator."""
    count: Many
    """Executions."""
    time_ns: Nanoseconds
    """Sum of their durations."""
    share: Proportion | None
    """Fraction of the time of all kernels; null if that is zero."""


class LayerUse(Schema):
    """One module of a model, including everything that runs inside it, summed over devices and
    steps."""

    path: str
    """Module names from the outermost to this one, separated by slashes."""
    calls: Many | None
    """Number of calls, counting recomputation in backward; null without such ranges."""
    forward_ns: Nanoseconds
    """Device time of everything launched in it or its submodules during forward and loss."""
    backward_ns: Nanoseconds
    """The same for backward: autograd's work for an operator belongs to its module."""
    other_ns: SignedNanoseconds
    """The same outside both phases."""
    own_ns: SignedNanoseconds
    """The part of all three not owned by a submodule."""
    flops: Operations | None
    """Floating-point operations of the calls with known shapes; null if there are none."""
    bytes: Bytes | None
    """Bytes that these calls read and write; null likewise."""
    held_bytes: SignedBytes | None
    """Memory allocated during its forward and still held at its end, summed over the forward
    calls; null if the trace has no allocator events."""

    @property
    def time_ns(self) -> int:
        """Device time in all phases."""
        return self.forward_ns + self.backward_ns + self.other_ns


class ShapeUse(Schema):
    """One operator with inputs of the same shapes, summed over devices and steps."""

    operator: str
    """Name in the trace."""
    shapes: str
    """Shapes of the tensor inputs."""
    number_format: str | None
    """fp32, bf16, fp16, ...; null if the inputs have several, or the trace does not say."""
    operator_class: str | None
    """contraction, normalization, element_wise, communication or other."""
    count: Many
    """Number of kernels, or of self-time intervals on a CPU."""
    time_ns: Nanoseconds
    """Sum of their durations."""
    share: Proportion | None
    """Fraction of the time of all operators; null if that is zero."""
    flops: Operations | None
    """Floating-point operations; null if the shapes do not determine them."""
    bytes: Bytes | None
    """Bytes read and written; null likewise."""


class StepBound(Schema):
    """Causes of the steps' waiting on a device; the parts sum to their wall time."""

    window_ns: Nanoseconds
    """Wall time of the steps, or of the whole trace if it marks none."""
    device_ns: Nanoseconds
    """Time with computation or a CUDA graph running."""
    link_ns: Nanoseconds
    """Time with communication but no computation running."""
    copies_ns: Nanoseconds
    """Time with only copies and memory sets running."""
    input_ns: Nanoseconds
    """Time with nothing running while the host fetches the next batch."""
    host_ns: Nanoseconds
    """Time with nothing running because the host has not launched the next event; on a CPU:
    Python, dispatch."""
    other_ns: SignedNanoseconds
    """Time with nothing running although the next event was launched: latency, or a wait for
    another stream; or the launch is unknown."""

    @property
    def verdict(self) -> str:
        """The largest part: device, link, copies, input, host or other."""
        parts = {name[:-3]: getattr(self, name) for name in type(self).model_fields}
        del parts["window"]
        return max(parts, key=lambda name: parts[name])


class LaunchUse(Schema):
    """How far the host runs ahead of a device."""

    launches: Many
    """Events with a known launch."""
    delay_median_ns: SignedNanoseconds
    """Median time from the start of the launch to the start of the event."""
    delay_95_ns: SignedNanoseconds
    """95th percentile of the same."""
    queue_median: Amount
    """Median number of launched events that have not started, at the moment of a launch."""
    queue_largest: Many
    """Largest number of these at once."""


class PathPart(Schema):
    """Critical path of a step, by name; all parts sum to its wall time."""

    kind: str
    """compute, communication, memcpy, memset, graph, host, input, or latency between a launch and
    its event."""
    name: str
    """The operator or kernel, the collective, or the phase of the host's work."""
    count: Many
    """Number of intervals."""
    time_ns: Nanoseconds
    """Sum of their lengths."""


class Straggler(Schema):
    """A rank that the others wait for in collectives, over all comparable groups."""

    rank: Few
    """Global rank."""
    last: Few
    """Number of collectives in which it arrived last."""
    share: Proportion
    """Fraction of all executions."""
    caused_ns: Nanoseconds
    """Time that the other ranks waited in these, summed over the ranks."""


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
