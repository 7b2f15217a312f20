"""Tensor and sequence parallelism (arXiv 1909.08053, 2205.05198) of a language model, by DTensor.

Ranks of a group share each layer: every rank has some heads of the attention and some columns of
the feed-forward layers. Every rank of a group has whole embeddings, normalizations, output map and
batches. With ``sequence`` each rank only holds its part of every row between the sub-layers. Groups
divide batches among each other by FSDP2.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn.functional import pad

from schemas.config.parallel import Fsdp, Machine, TensorParallel
from schemas.errors import Unsupported
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.language_model import Decoder
from transformer_core.models.qkv_projection import FusedProjection
from transformer_core.parallel.fsdp import FsdpStrategy
from transformer_core.parallel.topology import Process


class TensorParallelStrategy(FsdpStrategy):
    """Groups of neighbouring ranks share each layer; several groups shard the rest.

    Raises Unsupported for a model that it cannot divide in this way.
    """

    def __init__(
        self, spec: TensorParallel, process: Process, machine: Machine, synchronise_every: bool
    ) -> None:
        if process.world_size % spec.ranks:
            raise Unsupported(
                f"parallel.ranks: groups of {spec.ranks} ranks do not divide a run of "
                f"{process.world_size} ranks"
            )
        fsdp = Fsdp(kind="fsdp")
        super().__init__(fsdp, process, machine, synchronise_every)
        groups = process.world_size // spec.ranks
        mesh = init_device_mesh(
            self.device.type, (groups, spec.ranks), mesh_dim_names=("groups", "shared")
        )
        self.divided, self.mesh = spec, mesh["groups"]
        self.shared = mesh["shared"]
        for part in (self.mesh, self.shared):
            self.allow_time(part.get_group())
        self.groups = groups
        self.width = 0
        self.partial: list[nn.Parameter] = []
        """Parameters whose gradient on each rank of a group only covers its part of the rows."""

    @property
    def share(self) -> tuple[int, int]:
        return self.mesh.get_local_rank(), self.groups

    @property
    def loss_scale(self) -> float:
        return float(self.groups)

    def wrap(self, module: nn.Module) -> nn.Module:
        model: Any = module.model
        self._check(model)
        sequence = self.divided.sequence
        for layer in model.layers:
            parallelize_module(layer, self.shared, dict(_styles(layer, sequence)))
        if sequence:
            # Inner hooks are registered first, and run first.
            model.layers[0].register_forward_pre_hook(self._divide_rows)
            model.norm.register_forward_pre_hook(self._gather_rows)
            model.register_forward_pre_hook(self._fill, with_kwargs=True)
            model.register_forward_hook(self._cut)
        if self.groups > 1:
            return super().wrap(module)
        whole = [p for p in module.parameters() if not isinstance(p, DTensor)]
        if sequence:
            within = {id(p) for layer in model.layers for p in layer.parameters()}
            self.partial = [p for p in whole if id(p) in within]
        self.replica = nn.ParameterList(whole)
        return module

    def placement(self, parameter: nn.Parameter) -> Shard | None:
        """Groups divide along another dimension than the ranks of a group."""
        if not isinstance(parameter, DTensor):
            return None
        (place,) = parameter.placements
        return Shard(1 - place.dim) if parameter.dim() == 2 else None  # type: ignore[attr-defined]

    def _check(self, model: nn.Module) -> None:
        ranks, spec = self.divided.ranks, getattr(model, "spec", None)
        reason = ""
        if not isinstance(model, Decoder) or spec is None:
            reason = "divides the layers of model: {kind: decoder_only} only"
        elif spec.dropout:
            reason = (
                "would drop different elements on each rank, but all must drop the same: set "
                "model.dropout: 0"
            )
        elif spec.heads % ranks or (spec.kv_heads or spec.heads) % ranks or spec.d_ff % ranks:
            reason = f"needs model.heads, kv_heads and d_ff that are multiples of {ranks} ranks"
        elif spec.qkv.kind == "fused" and spec.kv_heads not in (None, spec.heads):
            reason = "divides grouped queries only if model.qkv is separate"
        elif spec.bias and self.groups > 1 and _has_parts(model.layers[0]):
            # DTensor cannot name shards of a vector that is divided by parts.
            reason = (
                "with several groups cannot divide biases of maps with several parts: set "
                "model.qkv to separate and model.feed_forward to gelu or relu, or model.bias: false"
            )
        elif self.divided.sequence and self.groups > 1:
            reason = "with sequence: true needs as many ranks as the run has"
        elif self.divided.sequence and spec.tokens.kind != "padded":
            reason = "with sequence: true needs padded rows (model.tokens), not lists of tokens"
        if reason:
            raise Unsupported(f"parallel: {{kind: tensor}} {reason}")

    def _divide_rows(self, layer: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._placed(given[0], Replicate(), Shard(1)), *given[1:]

    def _gather_rows(self, norm: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._placed(given[0], Shard(1), Replicate()),)

    def _placed(self, x: Tensor, now: Placement, then: Placement) -> Tensor:
        spread = DTensor.from_local(x, self.shared, [now], run_check=False)
        return spread.redistribute(placements=[then]).to_local(grad_placements=[then])

    def _fill(
        self, model: nn.Module, given: Sequence[Any], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Pads rows until the ranks can divide them."""
        self.width = given[0].size(1)
        missing = -self.width % self.divided.ranks
        if missing:  # tokens, targets, and numbers of texts, where padding has a separate number
            values = (PAD, PAD, -1)
            given = [
                pad(x, (0, missing), value=values[number]) if isinstance(x, Tensor) else x
                for number, x in enumerate(given)
            ]
        return tuple(given), named

    def _cut(self, model: nn.Module, given: Any, result: Tensor) -> Tensor:
        return result[:, : self.width] if result.dim() else result

    def reduce_gradients(self) -> None:
        for parameter in self.partial:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=self.shared.get_group())

    def sum(self, values: Tensor) -> Tensor:
        # Ranks of a group hold equal values.
        values = values.to(self.device, copy=True)
        with self.waiting():
            dist.all_reduce(values, group=self.mesh.get_group())
        return values

    def communication(self) -> dict[str, Any] | None:
        return None


class Columns(ColwiseParallel):
    """Divides the columns of a linear map, separately for each of its adjacent ``parts``."""

    def __init__(self, parts: int, rows: Placement) -> None:
        super().__init__(input_layouts=rows)
        self.parts = parts

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: Any) -> None:
        place = Shard(0) if self.parts == 1 else _StridedShard(0, split_factor=self.parts)
        for key, parameter in list(module.named_parameters()):
            spread = distribute_tensor(parameter, device_mesh, [place], src_data_rank=None)
            module.register_parameter(key, nn.Parameter(spread, parameter.requires_grad))

    @staticmethod
    def _prepare_output_fn(
        output_layouts: Any, use_local_output: bool, mod: nn.Module, outputs: Any, device_mesh: Any
    ) -> Tensor:
        return outputs.to_local()


def _has_parts(layer: nn.Module) -> bool:
    return any(getattr(style, "parts", 1) > 1 for _, style in _styles(layer, False))


def _styles(layer: nn.Module, sequence: bool) -> Iterator[tuple[str, ParallelStyle]]:
    """Yields how to divide the linear maps of a layer, by name."""
    rows: Placement = Shard(1) if sequence else Replicate()
    attention: Any = layer.self_attention
    if isinstance(attention.project, FusedProjection):
        yield "self_attention.project.linear", Columns(3, rows)
    else:
        for part in attention.project.parts:
            yield f"self_attention.project.{part}", Columns(1, rows)
    feed_forward: Any = layer.feed_forward
    parts = feed_forward.inner.out_features // feed_forward.outer.in_features
    yield "feed_forward.inner", Columns(parts, rows)
    for name in ("self_attention.output", "feed_forward.outer"):
        yield name, RowwiseParallel(output_layouts=rows)
