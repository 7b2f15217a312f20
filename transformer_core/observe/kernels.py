"""The operators and kernels of the first step of a training."""

from torch import Tensor

from transformer_core.machine.step_kernels import FirstStep
from transformer_core.training.observer import Observer


class FirstKernels(Observer):
    """Shows ``first`` the first step, and no step if training resumes later: observing slows a step
    down."""

    def __init__(self, first: FirstStep) -> None:
        self.first = first

    def start(self, step: int) -> None:
        if step == 0:
            self.first.begin()

    def updated(self, step: int, target_tokens: int, loss_sum: Tensor, norm: Tensor) -> None:
        self.first.end()
