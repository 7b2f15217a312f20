"""AdamW for weights in bfloat16, which keeps them in 32 bits too (arXiv 1710.03740, 3.1).

An update is often smaller than half the distance between two numbers of 8 bits, and would be lost.
So it goes to the weights of 32 bits, the masters, from which those of 16 bits are rounded anew.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

MASTER = "master"
"""Name of the weights of 32 bits in the state of a parameter."""


class MasterAdamW(Optimizer):
    """AdamW (arXiv 1711.05101): 12 bytes of state per parameter, of which 4 are its master.

    Like torch's fused kernels it divides gradients by ``grad_scale``, where that is set, and writes
    the result in their place. On a CPU one compiled loop reads the gradient and writes everything
    else, on other devices torch's fused kernel works on copies in 32 bits.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self, parameters: Any, masters: Mapping[nn.Parameter, Tensor], **defaults: Any
    ) -> None:
        super().__init__(parameters, defaults | {"fused": True})  # steps are counted on the device
        for group in self.param_groups:
            for parameter in group["params"]:
                master = masters[parameter]
                self.state[parameter] = {
                    "step": torch.zeros((), device=master.device),
                    MASTER: master,
                    "exp_avg": torch.zeros_like(master),
                    "exp_avg_sq": torch.zeros_like(master),
                }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the weights of all parameters that have a gradient."""
        scale = getattr(self, "grad_scale", None)
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            gradients = [parameter.grad for parameter in moved]
            states = [self.state[parameter] for parameter in moved]
            if states:
                torch._foreach_add_([state["step"] for state in states], 1)
            on_cpu = bool(moved) and type(moved[0].data) is Tensor and moved[0].is_cpu
            update = in_one_loop if on_cpu else by_torch
            update(moved, gradients, states, group, scale)


def masters_of(optimizer: Optimizer) -> dict[Tensor, Tensor]:
    """By parameter, the weights of 32 bits that ``optimizer`` keeps beside it."""
    return {
        parameter: state[MASTER] for parameter, state in optimizer.state.items() if MASTER in state
    }


def by_torch(
    weights: list[nn.Parameter],
    gradients: list[Tensor],
    states: list[dict[str, Tensor]],
    group: Mapping[str, Any],
    scale: Tensor | None = None,
) -> None:
    """Torch's fused kernel on masters and gradients of 32 bits, then the weights anew."""
    if not weights:
        return
    if scale is not None:
        torch._foreach_div_(gradients, scale)
    masters = [state[MASTER] for state in states]
    wide = [torch.empty_like(master) for master in masters]
    torch._foreach_copy_(wide, gradients)
    torch._fused_adamw_(
        masters,
        wide,
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],
        [state["step"] for state in states],
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )
    torch._foreach_copy_([weight.data for weight in weights], masters)


def in_one_loop(
    weights: list[nn.Parameter],
    gradients: list[Tensor],
    states: list[dict[str, Tensor]],
    group: Mapping[str, Any],
    scale: Tensor | None = None,
) -> None:
    """The same on a CPU, in one pass over each parameter."""
    # Here, because the compiler takes half a second to import, in every process.
    from transformer_core.models import compiled_loops

    for weight, gradient, state in zip(weights, gradients, states, strict=True):
        arrays = (weight, gradient, state[MASTER], state["exp_avg"], state["exp_avg_sq"])
        factor = 1.0 if scale is None else 1 / float(scale)
        compiled_loops.update_masters(arrays, int(state["step"]), group, factor)
