"""AdamW whose whole step is compiled."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from schemas.config.facts import DecayedMoments, OptimizerState
from schemas.errors import Unsupported

if TYPE_CHECKING:
    from torch import device, nn
    from torch.optim import Optimizer


class CompiledAdamW(DecayedMoments):
    """AdamW by torch.compile: the step of all parameters becomes a few kernels that torch writes
    for their shapes. Compiling takes a while, before the timed steps; needs a C++ compiler on a
    CPU."""

    kind: Literal["adamw_compiled"]

    backend: ClassVar[str] = "inductor"
    state: ClassVar = OptimizerState(8.0)

    def build(self, module: "nn.Module", device: "device", sharded: bool) -> "Optimizer":
        """Builds the optimizer of a module's parameters. Unsupported for shards."""
        import inspect

        import torch
        from torch._subclasses.fake_tensor import FakeTensor

        if sharded:
            raise Unsupported("adamw_compiled does not support shards: use DDP, or adamw with FSDP")
        # The bare method, without torch's wrappers, since those of our subclass call the hooks.
        plain = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))
        compiled = torch.compile(plain, backend=self.backend)

        class Compiled(torch.optim.AdamW):
            rates: list[Any]

            def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
                from torch._dynamo.exc import TorchDynamoException

                if isinstance(self.param_groups[0]["params"][0].data, FakeTensor):
                    plain(self)  # predictions only have shapes, so there is nothing to compile
                    return
                rates = [group["lr"] for group in self.param_groups]
                for group, rate, kept in zip(self.param_groups, rates, self.rates, strict=True):
                    # A tensor, because a number would become a constant and need a new compilation.
                    group["lr"] = kept.fill_(rate)
                try:
                    compiled(self)
                except TorchDynamoException as error:
                    reason = str(error).strip().split("\n")[0]
                    raise Unsupported(f"adamw_compiled cannot be compiled: {reason}") from error
                finally:
                    for group, rate in zip(self.param_groups, rates, strict=True):
                        group["lr"] = rate

        adam: dict[str, Any] = {"betas": self.betas, "eps": self.eps}
        adam |= {"weight_decay": self.weight_decay, "capturable": device.type == "cuda"}
        optimizer = Compiled(module.parameters(), lr=0.0, **adam)
        optimizer.rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        return optimizer
