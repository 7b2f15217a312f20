"""Observers inside a script's process: the parts of its memory, and a profile of its steps."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from transformer_core.machine.peak_memory import peak_rss_bytes
from transformer_core.observe.ranges import TorchRecording, mark_forward, mark_layers, torch_range
from transformer_core.tune.boundaries import Boundaries


def bytes_of(tensors: Any) -> int:
    """Bytes of this rank's shards of tensors; shared memory counts once."""
    found = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        found[local.data_ptr(), local.numel()] = local.numel() * local.element_size()
    return sum(found.values())


class Memory:
    """Peak memory of the steps that are not recorded, and its parts."""

    def __init__(self, boundaries: Boundaries) -> None:
        self.boundaries = boundaries
        self.before = psutil.Process().memory_info().rss
        """Bytes in use before the script's first line: Python and its libraries."""

    def reset(self) -> None:
        """Forget the peak so far, if the system allows it."""
        if _on_gpu():
            torch.cuda.reset_peak_memory_stats()
        else:
            try:
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            except OSError:
                return  # The peak is then that of the whole process.

    def parts(self) -> dict[str, int]:
        """Bytes at a boundary, while gradients exist: the peak, its known parts, and the memory of the
        device (``room``)."""
        modules, optimizers = self.boundaries.modules, self.boundaries.optimizers
        parameters = [parameter for _, parameter in self.boundaries.parameters()]
        buffers = [buffer for module in modules for buffer in module.buffers()]
        states = [
            value
            for optimizer in optimizers
            for state in optimizer.state.values()
            for value in (state.values() if isinstance(state, dict) else ())
            if isinstance(value, Tensor)
        ]
        gpu = _on_gpu()
        return {
            "peak": int(torch.cuda.max_memory_allocated()) if gpu else peak_rss_bytes(),
            "libraries": 0 if gpu else self.before,
            "weights": bytes_of([*parameters, *buffers]),
            "gradients": bytes_of(p.grad for p in parameters if p.grad is not None),
            "optimizer": bytes_of(states),
            "room": torch.cuda.mem_get_info()[1] if gpu else psutil.virtual_memory().total,
        }


def _on_gpu() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


class Profile:
    """torch.profiler over a few steps."""

    def __init__(self, boundaries: Boundaries) -> None:
        self.boundaries = boundaries
        self._running: Any = None
        self._step: AbstractContextManager[Any] | None = None

    def start(self, folder: Path, rank: int) -> None:
        """Start recording; the trace goes into ``folder``."""
        modules = self.boundaries.modules
        for module in modules:
            # Users' names for layers, next to torch's own ranges for data, backward and optimizer.
            mark_forward(module, torch_range)
            mark_layers(module, torch_range)
        device = next((p.device for m in modules for p in m.parameters()), torch.device("cpu"))
        folder.mkdir(parents=True, exist_ok=True)
        self._running = TorchRecording(folder, rank, device)
        self._running.prepare()
        self._running.start()
        self._begin_step()

    def boundary(self, last: bool) -> None:
        """Ends a step, and begins the next unless it was the ``last``."""
        if self._step is None:
            return
        self._step.__exit__(None, None, None)
        self._step = None
        if not last:
            self._begin_step()

    def save(self) -> str:
        """Stop, write the trace and return its path."""
        self._running.stop()
        (name,) = self._running.save()
        return str(self._running.output / name)

    def _begin_step(self) -> None:
        self._step = torch_range("step")
        self._step.__enter__()
