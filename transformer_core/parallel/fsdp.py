"""Fully sharded data parallelism (Zhao et al., VLDB 2023, arXiv 2304.11277), as FSDP2."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from schemas.config.parallel import Fsdp, Machine
from schemas.errors import Unsupported
from transformer_core.parallel.messages import Traffic
from transformer_core.parallel.strategy import ProcessGroupStrategy
from transformer_core.parallel.topology import Process, fsdp_fault


def repeated_layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the members of the outermost ``nn.ModuleList``s: the layers of any model."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (layer for layer in child if any(True for _ in layer.parameters()))
        else:
            yield from repeated_layers(child)


def _uses(module: nn.Module) -> Counter[nn.Parameter]:
    """How often each parameter is found in ``module``: one that several layers share, several times."""
    return Counter(p for _, p in module.named_parameters(remove_duplicate=False))


class FsdpStrategy(ProcessGroupStrategy):
    """Every rank holds its rows of parameters, gradients and optimizer state.

    FSDP gathers the parameters of a layer for its forward, and again for its backward unless they
    were kept, then reduces and scatters its gradients. Each layer is one message; everything outside
    the layers (embeddings, last normalizations) is one more.
    """

    averages = True

    def __init__(
        self, spec: Fsdp, process: Process, machine: Machine, synchronise_every: bool
    ) -> None:
        device = process.device
        if fault := fsdp_fault(device.type):
            raise Unsupported(fault)
        if spec.bf16 and device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 8:
            name = torch.cuda.get_device_name(device)
            raise Unsupported(f"{name} has no bfloat16 units (compute capability 8.0 or later)")
        super().__init__(process, machine)
        self.spec = spec
        self.mesh = init_device_mesh(self.device.type, (process.world_size,))
        self.synchronise_every = synchronise_every
        self.roots: list[FSDPModule] = []
        self.layers: list[nn.Module] = []
        self.mine = 0
        self.micro_batches = 0
        self.reductions = 0

    def wrap(self, module: nn.Module) -> nn.Module:
        policy = MixedPrecisionPolicy()
        if self.spec.bf16:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        shard = partial(
            fully_shard, mesh=self.mesh, mp_policy=policy, shard_placement_fn=self.placement
        )
        # FSDP takes no layer twice, and no parameter in two groups.
        uses = _uses(module)
        self.layers = [one for one in repeated_layers(module) if _uses(one).items() <= uses.items()]
        for layer in self.layers:
            shard(layer, reshard_after_forward=self.spec.reshard_after_forward)
        # A module gathers its parameters when called, and validation calls only the model. So the
        # roots are the children (the model), not the module that holds model and loss.
        for child in module.children():
            # A root keeps its parameters, which backward needs at once.
            shard(child, reshard_after_forward=False)
            self.roots.append(cast(FSDPModule, child))
        # Counted now, since gathered layers show their whole parameters.
        shards = [p for p in module.parameters() if isinstance(p, DTensor)]
        self.mine = sum(p.to_local().numel() for p in shards)
        return module

    def placement(self, parameter: nn.Parameter) -> Shard | None:
        """The dimension along which a parameter is divided; None for its rows."""
        return None

    def sync_context(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        reduce = last or self.synchronise_every
        self.micro_batches += 1
        self.reductions += reduce
        for root in self.roots:
            root.set_requires_gradient_sync(reduce)
        return contextlib.nullcontext()

    def communication(self) -> dict[str, Any] | None:
        """The traffic of training, without that of validations."""
        whole = _elements(self.roots)
        messages = len(self.layers) + len(self.roots)
        gathers, gathered = messages, whole
        if self.spec.reshard_after_forward:
            gathers += len(self.layers)
            gathered += _elements(self.layers)
        width = 2 if self.spec.bf16 else 4
        # gloo reduces everything on every rank, which then keeps its share.
        reduced = whole * 4 * (2 if self.backend == "gloo" else 1)
        traffic = Traffic()
        for operation, calls, payload in [
            ("all_gather", self.micro_batches * gathers, self.micro_batches * gathered * width),
            ("reduce_scatter", self.reductions * messages, self.reductions * reduced),
        ]:
            # A rank must send and receive at least everything but its own share.
            others = payload * (self.process.world_size - 1) // self.process.world_size
            traffic.add(operation, others, others, calls)
        return {
            "sharded_groups": messages,
            "parameters_by_rank": [int(count) for (count,) in self.gather([self.mine])],
            "synchronised_micro_batches": self.reductions,
            "micro_batches": self.micro_batches,
            "traffic": traffic.of_all_ranks(self.gather),
        }


def _elements(modules: Iterable[Any]) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())
