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

    stream: Whole  # the profiler's number for it
    events: Many  # number of events on it
    busy_ns: Nanoseconds  # time during which at least one event ran
    occupancy: Proportion | None  # fraction of the span; null if that is zero


class KernelTime(Schema):
    """One kernel, or on a CPU one operator, by name."""

    name: str  # name in the trace
    kind: str  # compute or communication
    count: Many  # executions
    time_ns: Nanoseconds  # sum of their durations
    shortest_ns: Nanoseconds  # shortest execution
    longest_ns: Nanoseconds  # longest execution
    share: Proportion | None  # fraction of the time of all kernels; null if that is zero
    operators: list[str] = Field(default=[])  # inside a kernel of TorchInductor's
    operator_class: str | None = None  # contraction, normalization, element_wise, ...
    number_format: str | None = None  # of its inputs; null if mixed or unknown
    flops: Operations | None = None  # from shapes, or TorchInductor's count; null if unknown
    bytes: Bytes | None = None  # bytes read and written; null likewise
    counted_ns: Nanoseconds = 0  # time of the executions with known FLOPs or bytes
    roofline_share: Amount | None = None  # least time by the ceilings, over that time


class NodeUse(Schema):
    """One node of a CUDA graph."""

    node: Whole  # the profiler's number for it
    name: str  # kernel, copy or memory set
    count: Many  # executions
    time_ns: Nanoseconds  # sum of their durations


class GraphUse(Schema):
    """One CUDA graph on a device."""

    graph: Whole | None  # the profiler's number for it; null if the trace tells nodes alone
    launches: Many  # launches with events in the trace
    events: Many  # device events; one for each launch if graphs were recorded as a whole
    time_ns: Nanoseconds  # sum of their durations
    nodes: list[NodeUse]  # nodes, longest first; empty if graphs were recorded as a whole


class SourceUse(Schema):
    """Kernels that one function of the program launched, summed over devices and steps. Backward
    launches count for the function that called the operator in forward."""

    source: str  # innermost function outside PyTorch, as train.py(12): loss
    kernel: str  # name of the kernel, or on a CPU of the operator
    count: Many  # executions
    time_ns: Nanoseconds  # sum of their durations
    share: Proportion | None  # fraction of the time of all kernels; null if that is zero


class LayerUse(Schema):
    """One module of a model, including everything that runs inside it, summed over devices and
    steps."""

    path: str  # module names from the outermost to this one, separated by slashes
    calls: Many | None  # counting recomputation in backward; null without such ranges
    forward_ns: Nanoseconds  # device time of its launches in forward and loss
    backward_ns: Nanoseconds  # the same for backward
    other_ns: SignedNanoseconds  # the same outside both phases
    own_ns: SignedNanoseconds  # the part of all three not owned by a submodule
    flops: Operations | None  # of the calls with known shapes; null if there are none
    bytes: Bytes | None  # bytes that these calls read and write; null likewise
    held_bytes: SignedBytes | None  # allocated in its forward and held at its end

    @property
    def time_ns(self) -> int:
        return self.forward_ns + self.backward_ns + self.other_ns


class ShapeUse(Schema):
    """One operator with inputs of the same shapes, summed over devices and steps."""

    operator: str  # name in the trace
    shapes: str  # shapes of the tensor inputs
    number_format: str | None  # fp32, bf16, fp16, ...; null if mixed or unknown
    operator_class: str | None  # contraction, normalization, element_wise, communication or other
    count: Many  # number of kernels, or of self-time intervals on a CPU
    time_ns: Nanoseconds  # sum of their durations
    share: Proportion | None  # fraction of the time of all operators; null if that is zero
    flops: Operations | None  # floating-point operations; null if the shapes do not determine them
    bytes: Bytes | None  # bytes read and written; null likewise


class StepBound(Schema):
    """Causes of the steps' waiting on a device; the parts sum to their wall time."""

    window_ns: Nanoseconds  # wall time of the steps, or of the whole trace if it marks none
    device_ns: Nanoseconds  # time with computation or a CUDA graph running
    link_ns: Nanoseconds  # time with communication but no computation running
    copies_ns: Nanoseconds  # time with only copies and memory sets running
    input_ns: Nanoseconds  # time with nothing running while the host fetches the next batch
    host_ns: Nanoseconds  # nothing runs because the host has not launched the next event
    other_ns: SignedNanoseconds  # nothing runs although the next event was launched

    @property
    def verdict(self) -> str:
        """The largest part: device, link, copies, input, host or other."""
        parts = {name[:-3]: getattr(self, name) for name in type(self).model_fields}
        del parts["window"]
        return max(parts, key=lambda name: parts[name])


class LaunchUse(Schema):
    """How far the host runs ahead of a device."""

    launches: Many  # events with a known launch
    delay_median_ns: SignedNanoseconds  # from the start of the launch to the event
    queue_median: Amount  # events launched but not started, at a launch
    queue_largest: Many  # largest number of these at once


class PathPart(Schema):
    """Critical path of a step, by name; all parts sum to its wall time."""

    kind: str  # compute, communication, memcpy, memset, graph, host, input or latency
    name: str  # the operator or kernel, the collective, or the phase of the host's work
    count: Many  # number of intervals
    time_ns: Nanoseconds  # sum of their lengths


class Straggler(Schema):
    """A rank that the others wait for in collectives, over all comparable groups."""

    rank: Few  # global rank
    last: Many  # number of collectives in which it arrived last
    share: Proportion  # fraction of all executions
    caused_ns: Nanoseconds  # time that the other ranks waited in these, summed over the ranks


class Partition(Schema):
    """Device activity during a window of wall time. The parts of the partition (compute, exposed
    communication, exposed copies, exposed graphs, idle) sum to the window."""

    window_ns: Nanoseconds  # length of the window
    busy_ns: Nanoseconds  # time with anything running
    idle_ns: Nanoseconds  # time with nothing running
    compute_ns: Nanoseconds  # time with computation running
    communication_ns: Nanoseconds  # time with communication running
    overlap_ns: Nanoseconds  # time with computation and communication running at once
    exposed_communication_ns: Nanoseconds  # time with communication but no computation running
    exposed_copies_ns: Nanoseconds | None  # only copies and memory sets run
    exposed_graphs_ns: Nanoseconds | None  # only CUDA graphs recorded whole run


class ProfiledStep(Schema):
    """One optimizer step on one device."""

    step: StepsOrNone  # its number among the profiled steps, from 0
    start_ns: SignedNanoseconds  # its start, relative to the first event of the device
    partition: Partition  # device activity during the step


class Activity(Schema):
    """One kind of work: its time summed over its events, regardless of what runs concurrently."""

    name: str  # a collective, a kind of copy, or a class of operators
    kind: str  # compute, communication, memcpy, memset or graph
    count: Many  # events
    time_ns: Nanoseconds  # sum of their durations
    share: Proportion | None  # of the sum over all activities: the original study's 79 %
    bytes: Bytes | None  # bytes copied, set or communicated; null if the trace does not say


class CollectiveUse(Schema):
    """One kind of collective on one device."""

    collective: str  # all_reduce, broadcast, ..
    count: Many  # executions
    bytes: Bytes | None  # bytes as counted by nccl-tests; null if the trace does not say
    time_ns: Nanoseconds  # sum of the durations
    union_ns: Nanoseconds  # time during which at least one runs
    transfer_ns: Nanoseconds | None  # shortest duration on any rank, summed
    waiting_ns: Nanoseconds | None  # the rest: waiting for the slowest rank
    bus_bandwidth: PerSecond | None  # as in nccl-tests, bytes per second


class PhaseUse(Schema):
    """One phase of the training step on one device."""

    phase: str
    """data, forward, loss, backward, optimizer; loader for threads that launch no kernel of the
    step, whatever the phase; other for anything outside all ranges."""
    host_ns: Nanoseconds | None  # host time spent in its ranges; null for loader and other
    busy_ns: Nanoseconds  # time during which the device ran something launched in it
    compute_ns: Nanoseconds  # computation time launched in it
    communication_ns: Nanoseconds  # communication time launched in it
    copies_ns: Nanoseconds | None  # time of copies and memory sets launched in it; null on a CPU


class OperatorClass(Schema):
    """One class of operators on one device (arXiv 2007.00072)."""

    operator_class: str  # contraction, normalization, element_wise, communication or other
    count: Many  # number of kernels, or of self-time intervals on a CPU
    time_ns: Nanoseconds  # sum of their durations
    share: Proportion | None  # fraction of the sum over all classes; null if that is zero
    flops: Operations | None  # from the operators' shapes; null if unknown
    bytes: Bytes | None  # bytes read and written, likewise
    counted_ns: Nanoseconds  # time of the operators with known shapes
    intensity: Amount | None  # FLOPs per byte; null if unknown


class ForwardBackward(Schema):
    """Time of the same operators in the forward and backward phases of one device."""

    operators: str  # linear, attention, normalization or element_wise
    forward_ns: Nanoseconds  # sum of the durations in forward and loss
    backward_ns: Nanoseconds  # sum of the durations in backward
    ratio: Measured | None  # backward over forward; null if either is zero
    flops_ratio: Measured | None  # the same ratio for FLOPs; null if those are unknown
    bytes_ratio: Measured | None  # the same ratio for bytes read and written; null likewise


class DeviceBreakdown(Schema):
    """One device of one rank."""

    rank: Few  # global rank, or the position of the file if the trace does not give it
    pid: Whole  # process id
    device: str  # cpu, cuda:<index> (ROCm too), or another such as xpu:<index>
    events: Many  # device events
    kernels: Many  # kernels among them, without those launched outside of marked steps
    span: Partition  # from the start of the first event to the end of the last
    steps: list[ProfiledStep]  # by step; empty if the trace marks none
    streams: list[StreamUse]  # by stream
    activities: list[Activity]  # by time, longest first
    kernel_times: list[KernelTime]  # the ten longest
    collectives: list[CollectiveUse]  # by name
    phases: list[PhaseUse]  # by order in the step; empty if the trace marks no phases
    operators: list[OperatorClass]  # by class
    forward_backward: list[ForwardBackward]  # by group of operators; empty without phases
    bound: StepBound | None = None  # causes of waiting in the steps
    launches: LaunchUse | None = None  # how far the host runs ahead; null on a CPU
    graphs: list[GraphUse] = Field(default=[])  # CUDA graphs, longest first
    critical_path: list[PathPart] = Field(default=[])  # of the step of median length

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

    step_seconds: Elapsed  # wall time of a step under the profiler, or of the trace
    compute: Proportion | None  # fraction of time with computation running
    exposed_communication: Proportion | None  # communication, no computation
    exposed_copies: Proportion | None  # fraction of time with only copies and memory sets running
    exposed_graphs: Proportion | None  # only CUDA graphs recorded as a whole
    idle: Proportion | None  # fraction of time with nothing running
    overlap: Proportion | None  # computation and communication at once
    hidden_communication: Proportion | None  # with computation running too
    communication_of_device_time: Proportion | None  # original study: 79 %
    operators: list[OperatorClass]  # classes of operators, summed over devices
    collectives: list[CollectiveUse]  # summed over devices; mean bandwidth
    phases: list[PhaseUse]  # phases, summed over devices
    forward_backward: list[ForwardBackward]  # backward against forward, summed over devices
    stragglers: list[Straggler] = Field(default=[])  # by the waiting they cause, most first
    bound: StepBound | None = None  # causes of waiting in the steps, summed over devices
    layers: list[LayerUse] = Field(default=[])  # the module tree, parents first
    shapes: list[ShapeUse] = Field(default=[])  # operators by input shapes
    sources: list[SourceUse] = Field(default=[])  # kernels by launching function


class Breakdown(Schema):
    """results/profiles/<name>/breakdown.json: device activity during a few steps."""

    name: str  # the variant, or a name given by the user
    status: Status  # ok, or why there are no events: unsupported (no device), failed, ..
    reason: str | None = None  # why the status is not ok, if so
    source: Literal["nsys", "kineto"] | None = None  # format of the trace
    source_version: str | None = None  # of the format or of the tool that wrote it
    profiler_reason: str | None = None  # why this profiler was chosen; null for a trace of a user
    viewer_files: list[str] = Field(default=[])
    """Files to open in Nsight Systems or Perfetto, relative to this file."""
    devices: list[DeviceBreakdown] = Field(default=[])  # by rank and device
    summary: ProfileSummary | None = None  # all devices together; null if there is none
    notes: list[str] = Field(default=[])  # caveats, such as launches without a row

    @property
    def device_steps(self) -> int:
        """Steps of all devices, for means; a device whose trace marks none counts as one."""
        return sum(max(1, len(device.steps)) for device in self.devices)
