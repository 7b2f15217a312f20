"""Dropout."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint as recomputation
from torch import Tensor, nn

from tests.attacks.planted import changes
from tests.attacks.planted.fault import dropping, fault, faults_of
from tests.attacks.planted.planting import Patch, calling, put, several, swap
from transformer_core.models import attention, compiled_loops, dropout, objective, sublayers
from transformer_core.models.transformer import EncoderDecoder
from transformer_core.training import assemble, evaluation


def attending_without_dropout(real, q, k, v, mask, causal, p, *drop):
    return real(q, k, v, mask, causal, 0.0, *drop)


def seeded(seed: Callable[[Tensor], int]) -> Callable[[Any], Any]:
    """Dropout whose masks come from a seed."""

    def drop(real: Any, x: Tensor, p: float) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed(x))
            return real(x, p)

    return calling(drop)


def masks_of_layers_alike() -> Any:
    """Masks depend only on the random state at the start of a pass."""
    seed = 0

    def forward(real: Any, *args: Any, **named: Any) -> Any:
        nonlocal seed
        seed = int(torch.randint(2**31, (1,)))
        return real(*args, **named)

    alike = swap(dropout.DROPOUTS, "shared_draws", seeded(lambda _: seed))
    return several(swap(EncoderDecoder, "forward", calling(forward)), alike)()


def in_module(path: str, change: Callable[[Any], None]) -> Patch:
    """Changes the modules whose names have this ending."""

    def build(real: Any, *args: Any, **named: Any) -> Any:
        model = real(*args, **named)
        for name, module in model.named_modules():
            if name.endswith(path):
                change(module)
        return model

    return swap(assemble, "build_model", calling(build))


def without_module(path: str) -> Patch:
    """The dropout modules whose names have this ending drop nothing."""
    return in_module(path, lambda module: setattr(module, "p", 0.0))


def unscaled_module(path: str) -> Patch:
    """The dropout modules whose names have this ending do not scale the elements that they keep."""
    return in_module(path, lambda module: setattr(module, "drop", partial(unscaled, module.drop)))


def unscaled(drop: Any, x: Tensor, p: float) -> Tensor:
    return drop(x, p) * (1 - p)


def seed_of_all(real: Any, seed: int) -> Any:
    """All ranks make their masks from one seed."""
    return real(1 if torch.distributed.is_initialized() and seed == 2 else seed)


OWN = {"kind": "import", "factory": "docs.examples.own_model:build"}
OWN_MODEL = {"model": {**OWN, "d_model": 16, "d_ff": 32, "heads": 2, "dropout": 0.0}}
drawn = faults_of("dropout", dropout.DROPOUTS, "shared_draws", **changes.DROPPING)
FUSED = {"model": {"dropout_method": {"kind": "fused"}}}
fused = faults_of("dropout", change=FUSED, **changes.DROPPING)
attending = faults_of("dropout", attention.ATTENTIONS, **changes.DROPPING)

dropping("both ranks drop the same", torch, "manual_seed", seed_of_all, change=changes.DDP, ranks=2)
attending("attention drops nothing", "sdpa", attending_without_dropout)
attending(
    "attention drops nothing under bf16", "sdpa", attending_without_dropout, **changes.IN_BF16
)
in_plain = attending_without_dropout
attending("plain attention drops nothing", "reference", in_plain, change=changes.PLAIN_ATTENTION)


@dropping("attention drops half of what it should", sublayers.Attention, "__init__")
def _(real, self, spec):
    real(self, spec)
    self.dropout /= 2


@dropping("embeddings drop nothing", EncoderDecoder, "__init__")
def embeddings_drop_nothing(real, self, spec, vocabulary):
    real(self, spec, vocabulary)
    self.dropout.p = 0.0


dropping("feed-forward layers drop nothing", without_module("feed_forward.dropout"))
dropping("one residual drops nothing", without_module("decoder.1.residuals.2.dropout"))
dropping(
    "one residual of the encoder drops nothing", without_module("encoder.0.residuals.0.dropout")
)
dropping("what one residual keeps is not scaled", unscaled_module("decoder.1.residuals.2.dropout"))
dropping(
    "what one residual of the encoder keeps is not scaled",
    unscaled_module("encoder.1.residuals.1.dropout"),
)
drawn("what is kept is not scaled", unscaled)


@dropping("kept units of the feed-forward layer are not scaled", sublayers.FeedForward, "__init__")
def _(real, self, spec):
    real(self, spec)
    self.dropout.drop = partial(unscaled, dropout.dropout)


drawn("a tenth less is dropped", lambda real, x, p: real(x, 0.9 * p))


@dropping("after a validation nothing is dropped", evaluation, "validation_loss")
def stays_in_evaluation(real, setup, *rest, **named):
    found = real(setup, *rest, **named)
    setup.model.eval()
    return found


in_evaluation = put(dropout.Dropout, "forward", lambda self, x: self.drop(x, self.p))
dropping("dropout goes on in evaluation", in_evaluation)


@dropping("attention drops in evaluation", sublayers.Attention, "attention")
def _(real, self, *args, **named):
    was, self.training = self.training, True
    try:
        return real(self, *args, **named)
    finally:
        self.training = was


drawn("the same masks at every step", seeded(lambda x: x.numel()), made=True)
dropping("the same masks in all layers", masks_of_layers_alike)


@drawn("the same mask for all sentences")
def one_mask_for_all_rows(real, x, p):
    return x * (real(torch.ones_like(x[:1]), p) if p else 1.0)


def alike_in(name: str, dimensions: int, part: Callable[[Tensor], Tensor]) -> None:
    """Adds the fault that all elements of tensors of so many dimensions share the mask of a part."""

    def drop(real: Any, x: Tensor, p: float) -> Tensor:
        masked = part(x) if x.dim() == dimensions else x
        return x * real(torch.ones_like(masked), p) if p else x

    dropping(name, dropout.DROPOUTS, "shared_draws", drop)


alike_in("one mask for all heads", 4, lambda x: x[:, :1])
alike_in("one mask for all queries", 4, lambda x: x[:, :, :1])
alike_in("whole tokens are dropped", 3, lambda x: x[..., :1])
alike_in("one mask for all tokens of a sentence", 3, lambda x: x[:, :1])


dropping(
    "other masks when layers are computed once more",
    recomputation,
    "checkpoint",
    lambda real, *args, **named: real(*args, preserve_rng_state=False, **named),
    change=changes.CHECKPOINT,
)


@dropping(
    "the same masks in all micro-batches and steps",
    objective.Objective,
    "forward",
    change={"training": {"accumulation": {"micro_batches": 2}}},
)
def reseeded(real, self, *args):
    torch.manual_seed(7)
    return real(self, *args)


fault(
    "a user's model that drops nothing where it is trained",
    "dropout",
    nn.Dropout,
    "forward",
    lambda real, self, x: x,
    change={"training": {"accumulation": {"micro_batches": 2}}},
    base=OWN_MODEL,
    dropout=0.2,
)


@fused("fused dropout with another mask in the backward pass", dropout._Added, "backward")
def other_mask(real, ctx, grad):
    return (grad, compiled_loops.kept(grad, ctx.seed + 1, ctx.p), None)


@fused("the gradient of fused dropout is not scaled", compiled_loops, "where_positive")
def unscaled_gradient(real, gradient, result, p):
    return real(gradient, result, p) * (1 - p)


added = put(compiled_loops, "added", lambda r, x, seed, p: compiled_loops.kept(r + x, seed, p))
fused("fused dropout drops the residual too", added)
passed = put(compiled_loops, "where_positive", lambda gradient, result, p: gradient / (1 - p))
fused("the gradient of dropped units passes", passed)
