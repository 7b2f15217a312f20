"""Faults written after the certificates were, without a look at how these compare; and changes that
look as odd but train the same model."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from schemas.base import merge
from tests.attacks.planted import changes
from tests.attacks.planted.dropout_faults import in_module
from tests.attacks.planted.fault import HARMLESS, faults_of
from tests.attacks.planted.number_faults import after_update
from tests.attacks.planted.planting import (
    Patch,
    around_step,
    batches,
    before_update,
    calling,
    each_micro,
    put,
    several,
    swap,
)
from transformer_core.data.batching import feeding
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD
from transformer_core.models import attention, dropout, language_model, objective, transformer
from transformer_core.models.loss import _OnePass
from transformer_core.models.qkv_projection import FusedProjection
from transformer_core.models.sublayers import (
    FeedForward,
    FusedNorm,
    Residual,
    RmsNorm,
    SelfAttention,
)
from transformer_core.models.transformer import EncoderDecoder
from transformer_core.parallel import central, ddp, fsdp, tensor_parallel
from transformer_core.parallel.messages import gradients
from transformer_core.parallel.strategy import Strategy
from transformer_core.training import assemble, checkpoint, evaluation, loop, precision
from transformer_core.training.history import History
from transformer_core.training.optimizer import MASTER

held = faults_of("held out")
whole_loss = faults_of("held out", objective.LOGITS_LOSSES, "whole")
fused_attention = faults_of("held out", F, "scaled_dot_product_attention")
dropping = faults_of("held out", **changes.DROPPING)
texts = faults_of("held out", base=changes.TEXTS)
accumulated = faults_of("held out", change=changes.TWO)
in_ddp = faults_of("held out", ranks=2, change=changes.DDP)
in_central = faults_of("held out", central, ranks=2, change=changes.CENTRAL)
harmless = faults_of("harmless", into=HARMLESS, missed="it trains the same model")

# Attention, layers and embeddings


@fused_attention("a mask of ones and zeros is added to the scores")
def added_mask(real, *qkv, attn_mask=None, **named):
    mask = None if attn_mask is None else attn_mask.to(qkv[0].dtype)
    return real(*qkv, attn_mask=mask, **named)


fused_attention(
    "scores are divided by the root of the whole width",
    lambda real, q, *rest, **named: real(q / q.size(1) ** 0.5, *rest, **named),
)


@fused_attention("heads are joined without being transposed")
def reshaped(real, q, *rest, **named):
    b, h, n, k = q.shape
    return real(q, *rest, **named).reshape(b, n, h, k).transpose(1, 2)


@held("cross-attention alone sees padding of the source", EncoderDecoder, "decode")
def unmasked_across(real, self, memory, source, target, cache=None, **named):
    return real(self, memory, source, target, cache, **named | {"masked": cache is not None})


@held("embeddings are scaled after positions are added", transformer.Positions, "forward")
def scaled_later(real, self, x, *rest):
    scale = self.d_model**0.5
    return real(self, x / scale, *rest) * scale


def passes(module: nn.Module) -> None:
    module.forward = lambda x: x


held("the encoder's last normalization is left out", in_module("encoder_norm", passes))


@held("the residual stream goes on from its normalization", Residual, "forward")
def from_normalized(real, self, x, sublayer):
    normed = self.norm(x)
    return self.dropout.added(normed, sublayer(normed))


def shares_a_norm(layer: Any) -> None:
    layer.residuals[1].norm.forward = lambda x: layer.residuals[0].norm(x)


held("a normalization has the weights of the one before", in_module("decoder.1", shares_a_norm))


@held("a normalization's weights get the gradient of half of the rows", FusedNorm, "forward")
def half_of_the_rows(real, self, x):
    n = max(1, len(x) // 2)
    fixed = self.weight.detach(), self.bias.detach()
    return torch.cat([real(self, x[:n]), F.layer_norm(x[n:], x.shape[-1:], *fixed, self.eps)])


def stops_the_gradient(residual: Any) -> None:
    residual.forward = lambda x, sublayer: residual.dropout.added(
        x, sublayer(residual.norm(x.detach()))
    )


held(
    "the gradient of one sub-layer does not reach its input",
    in_module("encoder.1.residuals.0", stops_the_gradient),
)


class OneOfEqual(torch.autograd.Function):
    """An embedding whose gradient is written, not added."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor) -> Tensor:
        ctx.tokens, ctx.weight = tokens, weight
        return weight[tokens]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        found = torch.zeros_like(ctx.weight)
        found[ctx.tokens.flatten()] = grad.reshape(-1, grad.size(-1))
        return found, None


@held("a token that occurs twice has one gradient", F, "embedding")
def one_of_equal(real, tokens, weight, *rest):
    return OneOfEqual.apply(weight, tokens)


@held("feed-forward layers begin with torch's own weights", transformer, "_initialise")
def drawn_by_torch(real, module):
    real(module)
    if isinstance(module, FeedForward):
        module.inner.reset_parameters()
        module.outer.reset_parameters()


# Loss


@whole_loss("every sentence counts alike, however long it is")
def means_of_sentences(real, x, y, s=0.0):
    losses = F.cross_entropy(
        x.transpose(1, 2), y, label_smoothing=s, ignore_index=PAD, reduction="none"
    )
    counts = (y != PAD).sum(1)
    return (losses.sum(1) / counts.clamp(min=1)).mean() * counts.sum()


@whole_loss("large logits cost a little")
def with_z_loss(real, x, y, s=0.0):
    return real(x, y, s) + 1e-4 * (x.logsumexp(-1).square() * (y != PAD)).sum()


@whole_loss("smoothing gives padding no share")
def no_share_of_padding(real, x, y, s=0.0):
    padding = x.log_softmax(-1)[..., PAD] * (y != PAD)
    return real(x, y, s) + s / x.size(-1) * padding.sum()


@whole_loss("tokens that fill up the vocabulary are predicted, too")
def filled_vocabulary(real, x, y, s=0.0):
    wide = F.pad(x, (0, -x.size(-1) % 8)).flatten(0, 1)
    return F.cross_entropy(wide, y.flatten(), label_smoothing=s, ignore_index=PAD, reduction="sum")


whole_loss("logits are capped at 30", lambda real, x, y, s=0.0: real(30 * torch.tanh(x / 30), y, s))
held(
    "the loss in one pass ignores the gradient that it gets",
    _OnePass,
    "backward",
    lambda real, ctx, grad: real(ctx, torch.ones_like(grad)),
    change=changes.ONE_PASS,
)

# Batches


@held("the short last batch of an epoch is left out", Strategy, "batches", base=changes.UNEVEN)
def full_batches_only(real, self, *given):
    for item in real(self, *given):
        if item.pairs == 7:
            yield item


@held("an epoch is in the order of lengths", feeding, "plan_epoch")
def shortest_first(real, store, *given):
    for window in real(store, *given):
        lengths = store.source.lengths(window.spans)
        yield replace(window, order=np.argsort(lengths, kind="stable"))


@held("sources lack their end", each_micro)
def without_ends(micro):
    return replace(micro, source=micro.source.masked_fill(micro.source == EOS, PAD))


# Accumulation, optimizer, schedule and clipping


@held("gradients of one tensor add up over steps", torch.optim.Optimizer, "zero_grad")
def one_left(real, self, *given, **named):
    first = self.param_groups[0]["params"][0]
    kept = first.grad
    real(self, *given, **named)
    first.grad = kept


def after_backward(change: Any) -> Patch:
    """Calls change(trainer) after each backward pass of a step."""
    steps: list[Any] = []

    def step(real: Any, trainer: Any, *given: Any) -> Any:
        steps[:] = [trainer]
        return real(trainer, *given)

    def backward(real: Any, self: Any, loss: Tensor) -> None:
        real(self, loss)
        if steps:
            change(steps[0])

    return several(
        swap(loop, "optimizer_step", calling(step)),
        swap(precision.Precision, "backward", calling(backward)),
    )


def clip(trainer: Any) -> None:
    nn.utils.clip_grad_norm_(trainer.module.parameters(), trainer.spec.training.clip_norm)


def round_gradients(trainer: Any) -> None:
    for p in trainer.module.parameters():
        if p.grad is not None:
            p.grad.copy_(p.grad.bfloat16())


accumulated(
    "gradients are clipped after each micro-batch",
    after_backward(clip),
    base={"training": {"clip_norm": 0.5}},
)
accumulated("gradients add up in 16 bits", after_backward(round_gradients))
accumulated(
    "gradients add up in 16 bits under bf16",
    after_backward(round_gradients),
    change=merge(changes.BF16, changes.TWO),
    kind="statistical",
    missed="to round gradients to 8 bits is within the error of products in 8 bits",
)


@held(
    "weights decay by the peak rate",
    assemble,
    "build_optimizer",
    base=merge(
        changes.schedule("linear"),
        {"training": {"optimizer": {"kind": "adamw", "weight_decay": 0.1}}},
    ),
)
def decay_by_peak(real, spec, module, *more):
    made = real(spec.model_copy(update={"weight_decay": 0.0}), module, *more)
    step = made.step

    @torch.no_grad()
    def decay_first(*given: Any) -> None:
        for group in made.param_groups:
            for p in group["params"]:
                p.mul_(1 - 3e-3 * spec.weight_decay)
        step(*given)

    made.step = decay_first
    return made


@held("Adam's count of steps is one ahead", precision.Precision, "update")
def one_ahead(real, self, optimizer, norm):
    real(self, optimizer, norm)
    for state in optimizer.state.values():
        if state["step"] == 1:
            state["step"] += 1


@held("two tensors get each other's gradient", before_update)
def exchanged(parameters):
    first, second = [p.grad for p in parameters if p.dim() == 2 and p.size(0) == p.size(1)][:2]
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)


def vectors_rounded(w: Tensor, state: Any, before: Tensor) -> None:
    if w.dim() == 1:
        state[MASTER].copy_(w)


held(
    "vectors keep no masters",
    after_update(vectors_rounded),
    change=changes.MASTERS,
    kind="statistical",
)


@held(
    "float16 without a loss scale",
    precision.ScaledAutocast,
    "__init__",
    **changes.IN_FP16,
)
def unscaled(real, self, device, spec):
    real(self, device, spec)
    self.scaler = torch.amp.GradScaler(device.type, init_scale=1.0, growth_interval=2_000)


@held(
    "the decay ends at a tenth of the peak",
    loop,
    "learning_rate",
    base=changes.schedule("cosine"),
)
def with_a_floor(real, s, n, *rest):
    rate = real(s, n, *rest)
    return rate if n <= s.warmup else 0.1 * s.peak + 0.9 * rate


@held(
    "short gradients are lengthened to the limit",
    precision,
    "scale_down",
    base={"training": {"clip_norm": 5.0}},
)
def lengthened(real, gradients, norm, limit):
    torch._foreach_mul_(list(gradients), limit / (norm + 1e-6))


# Dropout


@dropping("what should be kept is dropped", dropout.DROPOUTS, "shared_draws")
def the_others(real, x, p):
    return real(x, 1 - p) * (p / (1 - p)) if p else x


@dropping("dropout comes before the sub-layer", Residual, "forward")
def dropped_before(real, self, x, sublayer):
    return x + sublayer(self.dropout(self.norm(x)))


@dropping("attention weights add up to 1 after dropout", attention.ATTENTIONS, "sdpa")
def again_to_one(real, q, k, v, mask, causal, p, drop):
    def dropped(x: Tensor, p: float) -> Tensor:
        found = drop(x, p)
        return found / found.sum(-1, keepdim=True).clamp(min=1e-6)

    return real(q, k, v, mask, causal, p, dropped if p else drop)


# Language models


@texts(
    "a token sees the last eight only",
    language_model.CausalAttention,
    "attention",
    base=changes.JOINED,
)
def near_only(real, self, q, k, v, mask, causal):
    if causal and q.size(-2) > 1:
        mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril().triu(-7)
    return real(self, q, k, v, mask, causal and q.size(-2) == 1)


texts(
    "the first token of a text belongs to the text before",
    objective,
    "text_segments",
    lambda _, tokens: (tokens == BOS).cumsum(1) - (tokens == BOS).long(),
)


@texts(
    "angles of rotary positions keep 8 bits under bf16",
    language_model,
    "rotation",
    missed="with 12 places an angle is off by 0.04 at most; with thousands by whole turns",
    **changes.IN_BF16,
)
def rounded_angles(real, places, width, base):
    even = torch.arange(0, width, 2).bfloat16()
    angle = places.bfloat16()[..., None] * base ** (-even / width)
    if places.dim() == 2:
        angle = angle[:, None]
    return angle.cos(), angle.sin()


@texts(
    "RMS normalization in 8 bits", RmsNorm, "forward", change=changes.RESIDUAL, kind="statistical"
)
def normalized_in_8_bits(real, self, x):
    if x.dtype != torch.bfloat16:
        return real(self, x)
    return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight.to(x.dtype)


@texts("decoded tokens are not turned", language_model.Decoder, "_embed")
def unturned(real, self, tokens, places, start):
    return real(self, tokens, places * (start == 0), start)


# Several ranks


@in_ddp("the embedding is not synchronised", ddp.DdpStrategy, "wrap")
def without_the_embedding(real, self, module):
    ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(module, ["model.source_embedding.weight"])
    return real(self, module)


def average_weights(trainer: Any, *_: Any) -> None:
    for p in trainer.model.parameters():
        dist.all_reduce(p)
        p.div_(dist.get_world_size())


in_ddp(
    "ranks average weights, not gradients",
    several(
        put(ddp.DdpStrategy, "sync_context", lambda self, last: self.module.no_sync()),
        around_step(average_weights),
    ),
)
in_ddp(
    "the rate grows with the number of ranks",
    loop,
    "learning_rate",
    lambda real, *given: real(*given) * dist.get_world_size(),
)


@in_ddp("rank 1 repeats a pair to fill its share", each_micro, base=changes.UNEVEN)
def filled_up(micro):
    if dist.get_rank() != 1 or micro.pairs != 3:
        return micro
    rows = torch.tensor([0, 1, 2, 0])
    return micro._with(lambda tensor: tensor[rows])


@in_central("the center averages gradients that it should add up", "copy_back")
def averaged(real, flat, tensors):
    real(flat / 2 if dist.get_rank() == 0 else flat, tensors)


@in_central("the center joins logits in another order", "gather_with_gradient")
def joined_otherwise(real, own, what, hub):
    found = real(own, what, hub)
    return torch.cat(found.chunk(2)[::-1]) if hub.is_main else found


@held("the last row of an uneven shard never learns", around_step, ranks=2, change=changes.FSDP)
def last_row_back(trainer, before, _):
    for (name, p), old in zip(trainer.model.named_parameters(), before, strict=True):
        if name.endswith("embedding.weight") and dist.get_rank() == 1:
            p.to_local()[-1] = old.to_local()[-1]


def with_every_bias() -> Any:
    style = tensor_parallel.RowwiseParallel
    real = style._prepare_output_fn

    def output(layouts: Any, local: Any, module: Any, outputs: Any, mesh: Any) -> Any:
        return real(layouts, local, module, outputs, mesh) + module.bias.to_local()

    return put(style, "_prepare_output_fn", staticmethod(output))()


held(
    "every rank adds the bias to its part of a result",
    with_every_bias,
    ranks=2,
    change=changes.TENSOR,
    base=changes.GPT2,
)

# Resuming, decoding and validation


_POSITION = History.position.fget


def next_but_one(history: Any) -> tuple[int, int]:
    epoch, batch = _POSITION(history)
    if not history.steps:
        return epoch, batch
    return (epoch, batch + 1) if batch < 5 else (epoch + 1, 1)


held("a resumed run leaves out a batch", put(History, "position", property(next_but_one)))


@held("resumed from weights of 8 bits", checkpoint, "_load_model")
def rounded_weights(real, setup, tensors):
    real(setup, tensors)
    with torch.no_grad():
        for p in setup.model.parameters():
            p.copy_(p.bfloat16())


def rates_a_step_late() -> Any:
    resumed: list[bool] = []
    real_history = History.from_state

    def from_state(state: Any) -> History:
        resumed.append(True)
        return real_history(state)

    def rate(real: Any, schedule: Any, step: int, *rest: Any) -> float:
        return real(schedule, step - bool(resumed), *rest)

    return several(
        put(History, "from_state", staticmethod(from_state)),
        swap(loop, "learning_rate", calling(rate)),
    )()


held(
    "after resuming, rates are those of the step before",
    rates_a_step_late,
    base=changes.schedule("cosine"),
)


@held("a decoded token sees the first one only", SelfAttention, "causal")
def aligned_at_the_start(real, self, x, cache, mask=None):
    if cache is None:
        return real(self, x, cache, mask)
    q, k, v = self.project(x)
    return self.attention(q, *cache.extend(k, v), None, True)


@held("validation reads the training's pairs", evaluation, "validation_loss")
def of_training(real, setup, *given):
    return real(replace(setup, validation_store=setup.train_store), *given)


@held("validation cuts targets after four tokens", evaluation, "evaluation_batches")
def cut_targets(real, *given):
    for rows, batch in real(*given):
        labels = batch.target_output.clone()
        labels[:, 4:] = PAD
        yield rows, replace(batch, target_output=labels)


# Harmless changes


@harmless("masks add -10,000 to scores", F, "scaled_dot_product_attention")
def large_and_negative(real, *qkv, attn_mask=None, **named):
    mask = None if attn_mask is None else ~attn_mask * -1e4
    return real(*qkv, attn_mask=mask, **named)


@harmless("a mask in place of the causal flag", F, "scaled_dot_product_attention")
def masked_causal(real, q, k, v, **named):
    if named.get("is_causal"):
        mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril()
        named |= {"is_causal": False, "attn_mask": mask}
    return real(q, k, v, **named)


@harmless("attention divides by the sum at its end", attention.ATTENTIONS, "sdpa")
def divided_last(real, q, k, v, mask, causal, *rest):
    scores = (q @ k.transpose(-1, -2)) * q.size(-1) ** -0.5
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    shares = (scores - scores.amax(-1, keepdim=True)).exp()
    return (shares @ v) / shares.sum(-1, keepdim=True)


@harmless("values, keys and queries in one product", FusedProjection, "forward")
def last_part_first(real, self, x):
    _, weights, biases = zip(*[*self.blocks()][::-1], strict=True)
    together = F.linear(x, torch.cat(weights), torch.cat(biases))
    parts = together.unflatten(-1, (len(weights), -1, self.width)).transpose(1, 3).unbind(2)
    return parts[::-1]


@harmless("tokens are embedded by a product", F, "embedding")
def by_product(real, tokens, weight, *rest):
    return F.one_hot(tokens, len(weight)).to(weight.dtype) @ weight


@harmless("layers are normalized in 64 bits", F, "layer_norm")
def in_64_bits(real, x, shape, weight, bias, eps):
    return real(x.double(), shape, weight.double(), bias.double(), eps).to(x.dtype)


@harmless("the loss of torch", objective.LOGITS_LOSSES, "whole")
def by_torch(real, x, y, s=0.0):
    flat = x.flatten(0, 1)
    return F.cross_entropy(flat, y.flatten(), label_smoothing=s, ignore_index=PAD, reduction="sum")


@harmless("positions turn by complex numbers", language_model, "rotated", base=changes.TEXTS)
def turned_by_numbers(real, x, turn):
    turned = torch.complex(*x.chunk(2, dim=-1)) * torch.complex(*turn)
    return torch.cat([turned.real, turned.imag], dim=-1)


harmless("rows in reverse order", each_micro(lambda m: m._with(lambda tensor: tensor.flip(0))))


@harmless("more padding", each_micro)
def more_padding(micro):
    rows, width = micro.source.shape
    return micro.widened(rows + 1, width + 3, micro.target_input.size(1) + 2)


harmless(
    "micro-batches in reverse order",
    batches(lambda b: replace(b, micro_batches=b.micro_batches[::-1])),
    change=changes.TWO,
)


def thousandfold() -> Any:
    """Gradients are a thousand times too large until the optimizer's step unscales them."""

    def unscale(real: Any, self: Any, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.div_(1_000)

    return several(
        swap(
            precision.Precision,
            "backward",
            calling(lambda real, self, loss: real(self, 1_000 * loss)),
        ),
        swap(precision.Precision, "unscale", calling(unscale)),
    )()


harmless("a loss scale in 32 bits", thousandfold)


@harmless("the optimizer takes tensors in reverse order", assemble, "build_optimizer")
def reversed_tensors(real, spec, module, *more):
    return real(spec, nn.ParameterList([*module.parameters()][::-1]), *more)


@harmless(
    "gradients are divided after they are added up",
    ddp.DdpStrategy,
    "_reduce_late",
    ranks=2,
    change=changes.LATE,
)
def divided_afterwards(real, self):
    for gradient in gradients(self.replica.parameters()):
        dist.all_reduce(gradient)
        gradient.div_(dist.get_world_size())


harmless(
    "shards are reduced after each micro-batch",
    fsdp.FsdpStrategy,
    "sync_context",
    lambda real, self, last: real(self, True),
    ranks=2,
    change=merge(changes.FSDP, changes.TWO),
)


@harmless("masks are drawn column by column", dropout.DROPOUTS, "shared_draws", **changes.DROPPING)
def by_columns(real, x, p):
    return real(x.transpose(-1, -2).contiguous(), p).transpose(-1, -2)


harmless(
    "dropout before ReLU",
    dropout.Dropout,
    "of_relu",
    lambda real, self, x: F.relu(self(x)),
    **changes.DROPPING,
)
