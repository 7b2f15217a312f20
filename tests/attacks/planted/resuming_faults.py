"""Going on from a checkpoint."""

from typing import Any
from unittest import mock

import torch

from tests.attacks.planted.fault import FP16, POWER, Fault, reduced, spread
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


FAULTS = [
    Fault("resumed without the moments", "resuming", lost_on_loading("optimizer")),
    Fault("resumed without the weights", "resuming", lost_on_loading("model")),
    Fault(
        "resumed with the step count at 0",
        "resuming",
        after_loading(lambda state: state["step"].zero_()),
    ),
    Fault(
        "resumed with moments of 8 bits",
        "resuming",
        after_loading(lambda state: state["exp_avg"].copy_(state["exp_avg"].bfloat16())),
    ),
    Fault(
        "resumed with the moments exchanged",
        "resuming",
        after_loading(lambda state: state["exp_avg_sq"].copy_(state["exp_avg"].square())),
    ),
    Fault(
        "resumed with other random numbers",
        "resuming",
        lambda: mock.patch.object(checkpoint, "_load_random_state", return_value=None),
    ),
    reduced(
        "resumed without the loss scale",
        swap(autocast.ScaledAutocast, "load", lambda _: lambda self, state: None),
        FP16,
    ),
    spread(
        "resumed without the memory of PowerSGD",
        "resuming",
        swap(power_sgd.PowerSgd, "remember", lambda _: lambda self, memory, names: None),
        POWER,
        kind="statistical",
    ),
]
