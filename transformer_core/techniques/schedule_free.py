"""Schedule-free AdamW, by its authors' library."""

from typing import TYPE_CHECKING, ClassVar, Literal

from schemas.base import StepsOrNone
from schemas.config.facts import DecayedMoments, OptimizerState
from transformer_core.techniques import imported

if TYPE_CHECKING:
    from torch import device, nn
    from torch.optim import Optimizer


class ScheduleFreeAdamW(DecayedMoments):
    """AdamW that averages its weights instead of lowering the rate (arXiv 2405.15682), by the
    library schedulefree: gradients are taken between the average, whose share is betas[0], and the
    last weights; the average is validated and saved. Give it ``schedule: {kind: constant}``; not with
    ``parallel: {kind: local_steps}``, whose ranks would have different averages."""

    kind: Literal["adamw_schedule_free"]
    warmup: StepsOrNone = 0
    """Steps of warm-up that the library counts itself, for weighting the average."""

    state: ClassVar = OptimizerState(8.0, averages=True)
    rule: ClassVar = None

    def build(self, module: "nn.Module", device: "device", sharded: bool) -> "Optimizer":
        """Builds the optimizer of a module's parameters, in its training mode."""
        needs = "adamw_schedule_free needs the library schedulefree"
        library = imported("schedulefree", needs, "schedulefree")
        optimizer = library.AdamWScheduleFree(
            module.parameters(),
            lr=1e-3,  # the loop sets the schedule's rate at every step
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            warmup_steps=self.warmup,
        )
        optimizer.train()
        # Numbers in its groups that a checkpoint must store.
        optimizer.counted = ("k", "weight_sum", "lr_max")
        return optimizer
