"""ZeRO-1: every rank keeps the optimizer state of its share of the parameters."""

from typing import TYPE_CHECKING, ClassVar, Literal

from schemas.config.facts import DecayedMoments, OptimizerState
from schemas.errors import Unsupported

if TYPE_CHECKING:
    from torch import device, nn
    from torch.optim import Optimizer


class ZeroRedundancy(DecayedMoments):
    """AdamW whose state is divided among the ranks (ZeRO stage 1, arXiv 1910.02054), by torch's
    ZeroRedundancyOptimizer: each rank updates its share of the parameters and sends them to the
    others, which the traffic in reports leaves out. 8 bytes of state per parameter, over all ranks.
    Needs DDP."""

    kind: Literal["adamw_zero"]

    state: ClassVar = OptimizerState(8.0, divided=True)

    def build(self, module: "nn.Module", device: "device", sharded: bool) -> "Optimizer":
        """Builds the optimizer of a module's parameters, with the state of this rank's share.

        Raises Unsupported without a group of ranks that hold whole parameters.
        """
        import torch.distributed as dist
        from torch.distributed.optim import ZeroRedundancyOptimizer
        from torch.optim import AdamW

        if sharded:
            raise Unsupported("adamw_zero cannot divide what FSDP has already divided: use adamw")
        if not dist.is_initialized() or dist.get_world_size() == 1:
            raise Unsupported("adamw_zero has no other rank to share its state with: use DDP")
        optimizer = ZeroRedundancyOptimizer(
            module.parameters(),
            optimizer_class=AdamW,
            lr=0.0,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=device.type in ("cuda", "cpu"),
        )
        # The usual place for the state, here that of this rank's share.
        optimizer.state = optimizer.optim.state
        return optimizer
