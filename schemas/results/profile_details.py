"""Details of breakdowns: streams, kernels, layers, shapes, and what steps and ranks wait for."""

from pydantic import Field

from schemas.base import Schema, Whole
from schemas.results.common import (
    Amount,
    Bytes,
    Few,
    Many,
    Nanoseconds,
    Operations,
    Proportion,
    SignedBytes,
    SignedNanoseconds,
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
