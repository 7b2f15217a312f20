"""Going on from a checkpoint."""

from typing import Any
from unittest import mock

import torch

from tests.attacks.planted.fault import BY_POWER, FP16, fault, reduced, spread
from tests.attacks.planted.planting import Patch, swap
from transformer_core.parallel import hooks as power_sgd
from transformer_core.training import checkpoint
from transformer_core.training import precision as autocast


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


fault("resumed without the moments", "resuming", lost_on_loading("optimizer"))
fault("resumed without the weights", "resuming", lost_on_loading("model"))
fault(
    "resumed with the step count at 0",
    "resuming",
    after_loading(lambda state: state["step"].zero_()),
)
fault(
    "resumed with moments of 8 bits",
    "resuming",
    after_loading(lambda state: state["exp_avg"].copy_(state["exp_avg"].bfloat16())),
)
fault(
    "resumed with the moments exchanged",
    "resuming",
    after_loading(lambda state: state["exp_avg_sq"].copy_(state["exp_avg"].square())),
)
fault(
    "resumed with other random numbers",
    "resuming",
    lambda: mock.patch.object(checkpoint, "_load_random_state", return_value=None),
)


@reduced("resumed without the loss scale", autocast.ScaledAutocast, "load", change=FP16)
def _(real, self, state):
    return None


@spread(
    "resumed without the memory of PowerSGD", "resuming", power_sgd.PowerSgd, "remember", **BY_POWER
)
def _(real, self, memory, names):
    return None
