"""What breakdowns say of streams, kernels, layers, shapes, and what steps and ranks wait for."""

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
    """The profiler's number of it."""
    events: Many
    """How many ran on it."""
    busy_ns: Nanoseconds
    """Time in which at least one ran."""
    occupancy: Proportion | None
    """Share of the span; null if that is zero."""


class KernelTime(Schema):
    """One kernel, or on a CPU one operator, by name."""

    name: str
    """As the trace names it."""
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
    """Share of the time of all kernels; null if that is zero."""


class LayerUse(Schema):
    """One module of a model, with all that runs inside it, summed over devices and steps."""

    path: str
    """Names from the outermost module to this one, by slashes."""
    calls: Many | None
    """Times that it ran, again in backward where it is computed anew; null without such ranges."""
    forward_ns: Nanoseconds
    """Device time of what forward and loss launched in it, and in the modules within."""
    backward_ns: Nanoseconds
    """Likewise of backward: what autograd computes for an operator belongs to its module."""
    other_ns: SignedNanoseconds
    """Likewise of what lies in neither phase."""
    own_ns: SignedNanoseconds
    """The part of all three that no module within owns."""
    flops: Operations | None
    """Floating-point operations of the calls whose shapes are known; null where there is none."""
    bytes: Bytes | None
    """Bytes that those read and write; null likewise."""
    held_bytes: SignedBytes | None
    """Memory that is still allocated when its forward ends and was not when it began, summed over
    the calls in forward; null where the trace holds no events of the allocator."""

    @property
    def time_ns(self) -> int:
        """Device time in all phases."""
        return self.forward_ns + self.backward_ns + self.other_ns


class ShapeUse(Schema):
    """One operator with inputs of the same shapes, summed over devices and steps."""

    operator: str
    """As the trace names it."""
    shapes: str
    """Of the inputs that are tensors."""
    number_format: str | None
    """fp32, bf16, fp16, ...; null where the inputs have several, or the trace does not say."""
    operator_class: str | None
    """contraction, normalization, element_wise, communication or other."""
    count: Many
    """Kernels, or on a CPU stretches of self time."""
    time_ns: Nanoseconds
    """Sum of their durations."""
    share: Proportion | None
    """Share of the time of all operators; null if that is zero."""
    flops: Operations | None
    """Floating-point operations; null where the shapes do not tell."""
    bytes: Bytes | None
    """Bytes read and written; null likewise."""


class StepBound(Schema):
    """What the steps of a device wait for; the parts sum to their wall time."""

    window_ns: Nanoseconds
    """Wall time of the steps, or of the whole trace where it marks none."""
    device_ns: Nanoseconds
    """Computation runs, or a CUDA graph."""
    link_ns: Nanoseconds
    """Communication runs and computation does not."""
    copies_ns: Nanoseconds
    """Only copies and memory sets run."""
    input_ns: Nanoseconds
    """Nothing runs while the host fetches the next batch."""
    host_ns: Nanoseconds
    """Nothing runs because the host has not launched the next event; on a CPU: Python, dispatch."""
    other_ns: SignedNanoseconds
    """Nothing runs though the next event was launched: latency, or a wait for another stream; or
    the launch is unknown."""

    @property
    def verdict(self) -> str:
        """The part that takes most: device, link, copies, input, host or other."""
        parts = {name[:-3]: getattr(self, name) for name in type(self).model_fields}
        del parts["window"]
        return max(parts, key=lambda name: parts[name])


class LaunchUse(Schema):
    """How far the host runs ahead of a device."""

    launches: Many
    """Events whose launch is known."""
    delay_median_ns: SignedNanoseconds
    """From the begin of the launch to that of the event: half of them take less."""
    delay_95_ns: SignedNanoseconds
    """Likewise: 95 % take less."""
    queue_median: Amount
    """Events that are launched and have not begun, at the moment of a launch."""
    queue_largest: Many
    """The most at once."""


class PathPart(Schema):
    """What lies on the critical path of a step, by name; all parts sum to its wall time."""

    kind: str
    """compute, communication, memcpy, memset, graph, host, input, or latency between a launch and
    its event."""
    name: str
    """The operator or kernel, the collective, or the phase in which the host worked."""
    count: Many
    """Stretches."""
    time_ns: Nanoseconds
    """Sum of their lengths."""


class Straggler(Schema):
    """A rank that the others wait for in collectives, over all groups that can be compared."""

    rank: Few
    """Global rank."""
    last: Few
    """Executions of collectives to which it came last."""
    share: Proportion
    """Share of all executions."""
    caused_ns: Nanoseconds
    """Time that the other ranks waited in them, summed over those."""
