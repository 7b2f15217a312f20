"""Compares the time of a step with the time that its arithmetic and memory traffic need.

The timed step is divided among operator classes in the proportions of the profile. Each class is
compared with the time for its products at the measured rate of matrix products, and with the time
for its bytes, read and written by one operator after another, at the measured bandwidth; the longer
of the two is what perfect kernels for the same operators would take (Williams, Waterman and
Patterson, Roofline, 2009).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.config.run_spec import RunSpec
from schemas.results import Breakdown, OperatorClass, Roofline, Session, Topology
from transformer_core.decide.utilisation import ceiling, devices_and_threads


@dataclass(frozen=True)
class Part:
    """One class of operators in a step; all in seconds."""

    name: str
    seconds: float  # time of the class within the step
    products: float | None
    """Time for its floating-point operations at the measured rate; None if unknown."""
    traffic: float | None  # time for its bytes at the measured bandwidth; None if unknown

    @property
    def least(self) -> float | None:
        """Minimum time by both limits; None if neither is known."""
        known = [time for time in (self.products, self.traffic) if time is not None]
        return max(known, default=None)

    @property
    def left(self) -> float | None:
        """Time beyond that minimum; negative if cached bytes make it faster."""
        return None if self.least is None else self.seconds - self.least


@dataclass(frozen=True)
class Headroom:
    """A step and its parts."""

    name: str
    seconds: float  # duration of the timed step
    parts: list[Part]  # parts by class, longest first
    idle: float  # seconds of the step in which no operator runs

    @property
    def products(self) -> float:
        """Seconds needed for all floating-point operations."""
        return sum(part.products or 0.0 for part in self.parts)

    @property
    def traffic(self) -> float:
        """Seconds needed for all bytes."""
        return sum(part.traffic or 0.0 for part in self.parts)


def topology_of(sessions: Sequence[Session], side: str) -> Topology | None:
    """Devices and processes of ``side``."""
    sides = (found for session in sessions for found in session.sides if found.name == side)
    return next((found.topology for found in sides if found.topology), None)


def headroom(
    name: str,
    spec: RunSpec,
    topology: Topology,
    seconds: float,
    profile: Breakdown,
    roofline: Roofline,
) -> Headroom | None:
    """The limits of a step of ``seconds``; None if the profile has no events, or the rate of
    matrix products was not measured."""
    rate, _, _ = ceiling(spec, topology, roofline)
    summary = profile.summary
    bandwidth = _bandwidth(spec, topology, roofline)
    total = sum(use.time_ns for use in summary.operators) if summary else 0
    if summary is None or rate is None or bandwidth is None or not total:
        return None
    steps = max(1, len(profile.devices[0].steps))
    idle = seconds * (summary.idle or 0.0)

    def part(use: OperatorClass) -> Part:
        return Part(
            name=use.operator_class,
            seconds=(seconds - idle) * use.time_ns / total,
            products=None if use.flops is None else use.flops / steps / rate,
            traffic=None if use.bytes is None else use.bytes / steps / bandwidth,
        )

    parts = sorted(map(part, summary.operators), key=lambda found: -found.seconds)
    return Headroom(name, seconds, parts, idle)


def _bandwidth(spec: RunSpec, topology: Topology, roofline: Roofline) -> float | None:
    """Bytes per second of all devices of a run; on a CPU, for the threads of all its processes."""
    devices, threads = devices_and_threads(spec, topology)
    rates = [m.bytes_per_second for m in roofline.memory if m.threads == threads]
    return max(rates) * devices if rates else None
