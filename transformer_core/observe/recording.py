"""Profilers as the profiled process sees them. Light: observers of users' scripts import it."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from schemas.errors import Unsupported
from transformer_core.observe.nsys import CAPTURE_RANGE, DOMAIN
from transformer_core.observe.ranges import nvtx_range, torch_range


class TorchRecording:
    """torch.profiler, with the shapes of the operators' inputs."""

    def __init__(self, output: Path, rank: int, device: torch.device) -> None:
        self.output = output
        self.name = f"rank-{rank}.pt.trace.json.gz"
        self.cuda = device.type == "cuda"
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.cuda:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        # All threads: some techniques communicate on threads of their own.
        every = torch.profiler._ExperimentalConfig(profile_all_threads=True)
        self.profiler = torch.profiler.profile(
            activities=activities, record_shapes=True, experimental_config=every
        )

    @staticmethod
    def range_named(name: str) -> AbstractContextManager[Any]:
        return torch_range(name)

    def prepare(self) -> None:
        self.profiler.prepare_trace()

    def start(self) -> None:
        self.profiler.start_trace()

    def stop(self) -> None:
        self.profiler.stop_trace()

    def save(self) -> list[str]:
        if self.cuda and not self._kernels():
            raise Unsupported(
                "torch.profiler recorded no CUDA kernel: CUPTI may be missing, in use by another "
                "profiler, or not permitted here (NVreg_RestrictProfilingToAdminUsers)"
            )
        self.profiler.export_chrome_trace(str(self.output / self.name))
        return [self.name]

    def _kernels(self) -> bool:
        results: Any = self.profiler.profiler.kineto_results  # type: ignore[union-attr]
        cuda = torch.autograd.DeviceType.CUDA
        return any(event.device_type() == cuda for event in results.events())


class NsysRecording:
    """Nsight Systems, which started this process and waits for the range to be captured."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.range: Any = None

    @staticmethod
    def range_named(name: str) -> AbstractContextManager[Any]:
        return nvtx_range(name)

    def prepare(self) -> None:
        pass

    def start(self) -> None:
        import nvtx

        if self.cuda:
            torch.cuda.profiler.start()
        self.range = nvtx.start_range(CAPTURE_RANGE, domain=DOMAIN)

    def stop(self) -> None:
        import nvtx

        nvtx.end_range(self.range)
        if self.cuda:
            torch.cuda.profiler.stop()

    def save(self) -> list[str]:
        return []  # nsys writes them when this process has ended


Recording = TorchRecording | NsysRecording
