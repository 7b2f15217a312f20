"""Going on from a checkpoint."""

from typing import Any
from unittest import mock

import torch

from tests.attacks.planted.fault import BY_POWER, FP16, faults_of, reduced
from tests.attacks.planted.planting import Patch, swap
from transformer_core.parallel import hooks
from transformer_core.training import checkpoint, precision


def lost_on_loading(what: str) -> Patch:
    """A checkpoint that does not bring back everything."""

    def make(real: Any) -> Any:
        if what == "model":
            return lambda setup, tensors: None
        return lambda setup, tensors, scalars: None

    return swap(checkpoint, f"_load_{what}", make)


def after_loading(change: Any) -> Patch:
    """Something done to the optimizer's state after it was loaded: change(state of a tensor)."""

    def make(real: Any) -> Any:
        def load(setup: Any, tensors: Any, scalars: Any) -> None:
            real(setup, tensors, scalars)
            with torch.no_grad():
                for state in setup.optimizer.state.values():
                    change(state)

        return load

    return swap(checkpoint, "_load_optimizer", make)


resumed = faults_of("resuming")
resumed("resumed without the moments", lost_on_loading("optimizer"))
resumed("resumed without the weights", lost_on_loading("model"))
resumed("resumed with the step count at 0", after_loading(lambda state: state["step"].zero_()))
resumed(
    "resumed with moments of 8 bits",
    after_loading(lambda state: state["exp_avg"].copy_(state["exp_avg"].bfloat16())),
)
resumed(
    "resumed with the moments exchanged",
    after_loading(lambda state: state["exp_avg_sq"].copy_(state["exp_avg"].square())),
)
resumed(
    "resumed with other random numbers",
    lambda: mock.patch.object(checkpoint, "_load_random_state", return_value=None),
)


@reduced("resumed without the loss scale", precision.ScaledAutocast, "load", change=FP16)
def _(real, self, state):
    return None


resumed(
    "resumed without the memory of PowerSGD",
    hooks.PowerSgd,
    "remember",
    lambda real, self, memory, names: None,
    ranks=2,
    **BY_POWER,
)
