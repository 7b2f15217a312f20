"""The machine at one moment: clocks, temperatures, load, and the share that other processes
take."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from schemas.results import MachineState, Probe
from transformer_core.parallel import nvml

_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")


def machine_state(probes: Sequence[Probe]) -> MachineState:
    """The machine now, beside what ``probes`` just found; null where the kernel does not tell."""
    return MachineState(
        probes=list(probes),
        cpu_megahertz=cpu_megahertz(),
        cpu_celsius=cpu_celsius(),
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        gpus=nvml.states(),
    )


def cpu_megahertz() -> float | None:
    """Mean clock of the cores."""
    try:
        clock = psutil.cpu_freq()
    except (AttributeError, NotImplementedError, OSError):
        return None
    return clock.current if clock is not None and clock.current > 0 else None


def cpu_celsius() -> float | None:
    """Highest temperature of the CPU's sensors; virtual machines have none."""
    try:
        sensors = psutil.sensors_temperatures()
    except (AttributeError, OSError):
        return None
    found = [
        sensor.current
        for name in _CPU_SENSORS
        for sensor in sensors.get(name, [])
        if sensor.current
    ]
    return max(found, default=None)


@dataclass(frozen=True)
class CpuTime:
    """CPU seconds so far, of the whole host and of this process with all below it."""

    host: float
    own: float

    def foreign_until(self, later: "CpuTime") -> float:
        """CPU seconds that others took between this reading and a later one.

        Both counts move in ticks of the kernel: a tiny negative difference is none.
        """
        return max(0.0, (later.host - self.host) - (later.own - self.own))


def cpu_time() -> CpuTime | None:
    """The counts now; None where the kernel does not tell.

    Those of the host hold what a virtual machine's own host took away (steal).
    """
    try:
        times = psutil.cpu_times()
        own = psutil.Process()
        processes = [own, *own.children(recursive=True)]
    except (OSError, psutil.Error):
        return None
    busy = sum(
        getattr(times, field, 0.0)
        for field in ("user", "nice", "system", "irq", "softirq", "steal")
    )
    return CpuTime(host=busy, own=sum(map(_seconds, processes)))


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0  # it has just ended
    return times.user + times.system
