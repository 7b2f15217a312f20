"""Muon for matrices, AdamW for everything else: settings and optimizer."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from schemas.base import Fraction
from schemas.config.facts import DecayedMoments, OptimizerState
from schemas.errors import Unsupported

if TYPE_CHECKING:  # reading schemas must not import torch
    from torch import device, nn
    from torch.optim import Optimizer


class Muon(DecayedMoments):
    """Muon (Jordan et al., 2024, kellerjordan.github.io/posts/muon) for the matrices of the layers:
    the momentum of each is made orthogonal by Newton-Schulz iterations. Embeddings, the output map
    and vectors are trained by AdamW, as its authors do. Updates are scaled to the size of AdamW's
    (arXiv 2502.16982), so the schedule's learning rate serves both."""

    kind: Literal["muon"]
    momentum: Fraction = 0.95  # fraction of the previous momentum that is kept

    # An upper bound: 4 for matrices, 8 for embeddings.
    state: ClassVar = OptimizerState(8.0)
    rule: ClassVar = None

    def build(self, module: "nn.Module", device: "device", sharded: bool) -> "Optimizer":
        """Builds the optimizer of a module's parameters. Raises Unsupported for shards, since then no
        rank has a whole matrix, and if torch is too old."""
        import torch
        from torch.nn import Embedding
        from torch.optim import AdamW, Optimizer

        if sharded:
            raise Unsupported("muon needs whole matrices: use DDP, or another optimizer with FSDP")
        if not hasattr(torch.optim, "Muon"):
            raise Unsupported(f"muon needs torch 2.9 or newer; this is {torch.__version__}")
        matrices: list[Any] = []
        others: list[Any] = []
        embeddings = {part.weight for part in module.modules() if isinstance(part, Embedding)}
        for name, p in module.named_parameters():
            of_tokens = p in embeddings or name.endswith(_OUTPUT_MAPS)
            (others if of_tokens or p.ndim != 2 else matrices).append(p)
        fused = device.type in ("cuda", "cpu") or None
        decay: dict[str, Any] = {"lr": 0.0, "weight_decay": self.weight_decay}
        parts: list[Optimizer] = []
        if others:
            parts.append(AdamW(others, betas=self.betas, eps=self.eps, fused=fused, **decay))
        if matrices:
            parts.append(
                torch.optim.Muon(
                    matrices, momentum=self.momentum, adjust_lr_fn="match_rms_adamw", **decay
                )
            )
        return together(parts)


_OUTPUT_MAPS = (
    *("model.output.weight", "own.output.weight"),
    *("head.weight", "embed_out.weight", "output_projection.weight"),
)
"""How names of output maps end in this project, in users' models, and in the transformers library."""


def together(parts: "list[Optimizer]") -> "Optimizer":
    """Combines several optimizers in one, with a common state and all their groups."""
    from torch.optim import Optimizer

    class Together(Optimizer):
        def __init__(self) -> None:
            super().__init__(
                [p for part in parts for g in part.param_groups for p in g["params"]], {}
            )
            self.param_groups = [group for part in parts for group in part.param_groups]
            for part in parts:
                part.state = self.state

        def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
            for part in parts:
                part.step()

    return Together()
