"""The machine: results/machine/."""

from schemas.base import Schema


class Gpu(Schema):
    """One GPU as NVML describes it."""

    index: int
    """NVML index."""
    name: str
    """Product name."""
    memory_bytes: int
    """Memory of the device."""
    compute_capability: str | None
    """For example 9.0."""
    driver: str
    """Driver version."""
    power_limit_watts: float | None
    """Enforced power limit."""


class Hardware(Schema):
    """results/machine/hardware.json: the machine, read inside a job."""

    platform: str
    """Operating system and architecture."""
    cpu: str
    """Product name of the CPU."""
    cores: int
    """Cores this job may use."""
    logical_cpus: int
    """Logical CPUs of the host."""
    memory_bytes: int
    """Main memory of the host, or of its control group where that is smaller."""
    cpu_features: list[str]
    """Instruction sets that matter to training (avx512f, avx512_bf16, amx_bf16, ...)."""
    gpus: list[Gpu]
    """The GPUs, empty where there is none."""
    gpu_note: str | None
    """Why no GPU is listed, where none is."""
    allocator: str
    """C memory allocator of the process."""
