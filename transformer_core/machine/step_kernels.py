"""The kernels of a training's first step."""

import contextlib
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from schemas.results.runs import StepKernels
from transformer_core.machine.hardware import allocator, cuda_allocator
from transformer_core.training.observer import Observer

ATTENTION = ("scaled_dot_product", "flash_attention", "efficient_attention", "varlen")
UPDATE = ("_fused_", "_foreach_")


class FirstStep(contextlib.AbstractContextManager["FirstStep"]):
    """Observes the operators between :meth:`begin` and :meth:`end`, within a context.

    It sees operators of the thread that trains, and of autograd's thread for it. It adds a few
    microseconds to each, too much for timed steps.
    """

    def __init__(self) -> None:
        self.seen: set[tuple[object, torch.dtype | None]] = set()
        self._open = contextlib.ExitStack()

    def begin(self) -> None:
        self._open.enter_context(_Seen(self.seen))

    def end(self) -> None:
        """Ends the observation; later calls do nothing."""
        self._open.close()

    def __exit__(self, *_: object) -> None:
        self.end()

    def read(self, model: nn.Module) -> StepKernels:
        """The observed kernels, for the record of a training of ``model``."""
        names = sorted(
            f"{operator} {str(dtype).removeprefix('torch.')}" if dtype else str(operator)
            for operator, dtype in self.seen
        )
        return StepKernels(
            operators=names,
            attention=[name for name in names if any(part in name for part in ATTENTION)],
            update=[name for name in names if any(part in name for part in UPDATE)],
            compiled=any(
                hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
                for module in model.modules()
            ),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            allocator=", ".join(filter(None, (allocator(), cuda_allocator()))),
            threads=torch.get_num_threads(),
        )


class FirstKernels(Observer):
    """Lets ``first`` observe the first step of a training, or the first one after resuming."""

    def __init__(self, first: FirstStep) -> None:
        self.first = first

    def start(self, step: int) -> None:
        self.first.begin()

    def updated(
        self, step: int, target_tokens: int, loss_sum: torch.Tensor, norm: torch.Tensor
    ) -> None:
        self.first.end()


class _Seen(TorchDispatchMode):
    def __init__(self, seen: set[tuple[object, torch.dtype | None]]) -> None:
        super().__init__()
        self.seen = seen

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Lets compiled code run unobserved, as in later steps, rather than not at all."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        dtypes = (leaf.dtype for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor))
        self.seen.add((func.overloadpacket, next(dtypes, None)))
        return func(*args, **(kwargs or {}))
