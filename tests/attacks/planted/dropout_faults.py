"""Dropout."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint as recomputation
from torch import Tensor, nn

from tests.attacks.planted.fault import BF16, DDP, PLAIN_ATTENTION, WIDE, Fault, dropping, spread
from tests.attacks.planted.planting import Patch, swap, swap_item
from transformer_core.models import attention, dropout, objective, sublayers
from transformer_core.models import compiled_loops as dropout_kernels
from transformer_core.models import dropout as fused_dropout
from transformer_core.models.transformer import EncoderDecoder
from transformer_core.training import assemble


def attending_without_dropout(real: Any) -> Any:
    return lambda q, k, v, mask, causal, _, *drop: real(q, k, v, mask, causal, 0.0, *drop)


def seeded(seed: Callable[[Tensor], int]) -> Callable[[Any], Any]:
    """Dropout whose masks come from a seed."""

    def make(real: Any) -> Any:
        def drop(x: Tensor, p: float) -> Tensor:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed(x))
                return real(x, p)

        return drop

    return make


def one_mask_for_all_rows(real: Any) -> Any:
    return lambda x, p: x * (real(torch.ones_like(x[:1]), p) if p else 1.0)


def same_after_seed(real: Any) -> Any:
    """Masks that depend on the random state at the start of a pass alone."""
    return seeded(lambda _: _passes[0])(real)


_passes = [0]


def counting(real: Any) -> Any:
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        _passes[0] = int(torch.randint(2**31, (1,)))
        return real(self, *args, **named)

    return forward


@contextlib.contextmanager
def masks_of_layers_alike() -> Iterator[None]:
    with (
        swap(EncoderDecoder, "forward", counting)(),
        swap_item(dropout.DROPOUTS, "shared_draws", same_after_seed)(),
    ):
        yield


def without_module(path: str) -> Patch:
    """A dropout module that drops nothing, by the end of its name."""

    def make(real: Any) -> Any:
        def build(*args: Any, **named: Any) -> Any:
            model = real(*args, **named)
            for name, module in model.named_modules():
                if name.endswith(path):
                    module.p = 0.0
            return model

        return build

    return swap(assemble, "build_model", make)


def unscaled(drop: Any, x: Tensor, p: float) -> Tensor:
    return drop(x, p) * (1 - p)


def unscaled_module(path: str) -> Patch:
    """A dropout module that does not scale what it keeps, by the end of its name."""

    def make(real: Any) -> Any:
        def build(*args: Any, **named: Any) -> Any:
            model = real(*args, **named)
            for name, module in model.named_modules():
                if name.endswith(path):
                    module.drop = partial(unscaled, module.drop)
            return model

        return build

    return swap(assemble, "build_model", make)


def seed_of_all(real: Any) -> Any:
    """Ranks that make their masks from one seed."""
    import torch.distributed as dist

    return lambda seed: real(1 if dist.is_initialized() and seed == 2 else seed)


def always_in_training(real: Any) -> Any:
    def attention(self: Any, *args: Any, **named: Any) -> Any:
        was, self.training = self.training, True
        try:
            return real(self, *args, **named)
        finally:
            self.training = was

    return attention


OWN_MODEL = {
    "model": {
        "kind": "import",
        "factory": "docs.examples.own_model:build",
        "d_model": 16,
        "d_ff": 32,
        "heads": 2,
    }
}


def reseeded(real: Any) -> Any:
    def forward(self: Any, *args: Any) -> Any:
        torch.manual_seed(7)
        return real(self, *args)

    return forward


def other_mask(_: Any) -> Any:
    return lambda ctx, grad: (grad, ctx.kernels.kept(grad, ctx.seed + 1, ctx.p), None)


def unscaled_gradient(real: Any) -> Any:
    return lambda gradient, result, p: real(gradient, result, p) * (1 - p)


FUSED = {"model": {"dropout_method": {"kind": "fused"}}}
FAULTS = [
    spread(
        "both ranks drop the same",
        "dropout",
        lambda: mock.patch.object(torch, "manual_seed", seed_of_all(torch.manual_seed)),
        DDP,
        base=WIDE,
        dropout=0.2,
    ),
    dropping(
        "attention drops nothing",
        swap_item(attention.ATTENTIONS, "sdpa", attending_without_dropout),
    ),
    dropping(
        "attention drops nothing under bf16",
        swap_item(attention.ATTENTIONS, "sdpa", attending_without_dropout),
        BF16,
        kind="statistical",
    ),
    dropping(
        "plain attention drops nothing",
        swap_item(attention.ATTENTIONS, "reference", attending_without_dropout),
        PLAIN_ATTENTION,
    ),
    dropping(
        "attention drops half of what it should",
        swap(
            sublayers.Attention,
            "__init__",
            lambda real: (
                lambda self, spec: (real(self, spec), setattr(self, "dropout", spec.dropout / 2))[0]
            ),
        ),
    ),
    dropping(
        "embeddings drop nothing",
        swap(
            EncoderDecoder,
            "__init__",
            lambda real: (
                lambda self, spec, v: (real(self, spec, v), setattr(self.dropout, "p", 0.0))[0]
            ),
        ),
    ),
    dropping("feed-forward layers drop nothing", without_module("feed_forward.dropout")),
    dropping("one residual drops nothing", without_module("decoder.1.residuals.2.dropout")),
    dropping(
        "one residual of the encoder drops nothing",
        without_module("encoder.0.residuals.0.dropout"),
    ),
    dropping(
        "what one residual keeps is not scaled",
        unscaled_module("decoder.1.residuals.2.dropout"),
    ),
    dropping(
        "what one residual of the encoder keeps is not scaled",
        unscaled_module("encoder.1.residuals.1.dropout"),
    ),
    dropping(
        "what is kept is not scaled",
        swap_item(dropout.DROPOUTS, "shared_draws", lambda real: lambda x, p: real(x, p) * (1 - p)),
    ),
    dropping(
        "kept units of the feed-forward layer are not scaled",
        swap(
            sublayers.FeedForward,
            "__init__",
            lambda real: (
                lambda self, spec: (
                    real(self, spec),
                    setattr(self.dropout, "drop", lambda x, p: dropout.dropout(x, p) * (1 - p)),
                )[0]
            ),
        ),
    ),
    dropping(
        "a tenth less is dropped",
        swap_item(dropout.DROPOUTS, "shared_draws", lambda real: lambda x, p: real(x, 0.9 * p)),
    ),
    dropping(
        "dropout goes on in evaluation",
        swap(dropout.Dropout, "forward", lambda _: lambda self, x: self.drop(x, self.p)),
    ),
    dropping(
        "attention drops in evaluation",
        swap(sublayers.Attention, "attention", lambda real: always_in_training(real)),
    ),
    dropping(
        "the same masks at every step",
        swap_item(dropout.DROPOUTS, "shared_draws", seeded(lambda x: x.numel())),
    ),
    dropping("the same masks in all layers", masks_of_layers_alike),
    dropping(
        "the same mask for all sentences",
        swap_item(dropout.DROPOUTS, "shared_draws", one_mask_for_all_rows),
    ),
    dropping(
        "other masks when layers are computed once more",
        swap(
            recomputation,
            "checkpoint",
            lambda real: lambda *args, **named: real(*args, preserve_rng_state=False, **named),
        ),
        {"model": {"checkpoint": "layers"}},
    ),
    dropping(
        "the same masks in all micro-batches and steps",
        swap(objective.Objective, "forward", reseeded),
        {"training": {"accumulation": {"micro_batches": 2}}},
    ),
    Fault(
        "a user's model that drops nothing where it is trained",
        "dropout",
        swap(nn.Dropout, "forward", lambda _: lambda self, x: x),
        {"training": {"accumulation": {"micro_batches": 2}}},
        OWN_MODEL,
        dropout=0.2,
    ),
    dropping(
        "fused dropout with another mask in the backward pass",
        swap(fused_dropout._Added, "backward", other_mask),
        FUSED,
    ),
    dropping(
        "the gradient of fused dropout is not scaled",
        swap(dropout_kernels, "where_positive", unscaled_gradient),
        FUSED,
    ),
    dropping(
        "fused dropout drops the residual too",
        swap(
            dropout_kernels,
            "added",
            lambda real: lambda r, x, seed, p: dropout_kernels.kept(r + x, seed, p),
        ),
        FUSED,
    ),
    dropping(
        "the gradient of dropped units passes",
        swap(dropout_kernels, "where_positive", lambda _: lambda g, result, p: g / (1 - p)),
        FUSED,
    ),
]
