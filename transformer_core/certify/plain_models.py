"""Independent implementations of the models as plain functions of their weights: the Transformer,
the language model, and models that only their own code can compute (another library's or a user's).

The first two follow their papers (arXiv 1706.03762 and those named in the code). They share no code
with the trained models, losses and optimizers, so a mistake there is not repeated here. They take
weights under their canonical names, in any number format, and know nothing of strategies and ranks.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from schemas.config.model import (
    DecoderOnly,
    Gelu,
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
    Transformer,
)
from schemas.config.run_spec import AnyTask, AnyTrained
from transformer_core.certify.number_formats import Format, to_bf16, whole_products
from transformer_core.certify.replay import Drops
from transformer_core.certify.tensors import trained_names
from transformer_core.models.objective import objective
from transformer_core.models.qkv_projection import canonical_state_dict
from transformer_core.models.registry import build_model

PADDING = 0
"""Token id of padding, as in the tokenizer."""
EPSILON = 1e-5
"""Added to the variance by layer normalization."""
SCORES_AT_ONCE = 2**26
"""Maximum number of logits at a time; larger batches are processed in slices of rows."""
TOKENS_AT_ONCE = 2**11
"""Maximum number of tokens at a time on a GPU, whose memory is smaller."""
SEEN = 256
"""Number of tokens whose ReLU inputs are kept."""

NONE_DROPPED = Drops(0.0)

Weights = Mapping[str, Tensor]
Tokens = tuple[Tensor, Tensor, Tensor]
"""source [b, s], target input [b, t] and labels [b, t]."""


@contextlib.contextmanager
def _in_any_order(device: torch.device) -> Iterator[None]:
    """Allows nondeterministic algorithms on a GPU: some operations have no others, and in 64 bits the
    order of additions does not matter."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if device.type != "cpu":
        torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


class Pass(NamedTuple):
    """The results of a plain function for given weights and a batch."""

    loss: float
    """Per target token, in nats."""
    gradients: dict[str, Tensor]
    """By name; empty without a backward pass."""
    losses: Tensor
    """Loss of each label, [b, t] in nats; 0 for padding."""
    inputs: list[Tensor]
    """Inputs of each ReLU, [tokens, d_ff] for the first tokens, relative to the root mean square of all
    inputs."""


class Plain:
    """Loss and gradients of a model; a subclass computes its logits. Drops only given elements."""

    embedding: str
    """Canonical name of a weight matrix with one row per token of the vocabulary."""

    weights: Weights
    form: Format
    drops: Drops
    inputs: list[Tensor]
    """The state that :meth:`during` sets, and :attr:`Pass.inputs` so far."""

    def __init__(self, spec: Any, label_smoothing: float, published_loss: bool = False) -> None:
        self.spec, self.smoothing, self.published_loss = spec, label_smoothing, published_loss
        self.device = torch.device("cpu")
        """Computes here, wherever the weights are."""

    def during(self, weights: Weights, form: Format, drops: Drops = NONE_DROPPED) -> Self:
        """This function with the weights, number format and masks of one pass."""
        one = copy.copy(self)
        one.weights, one.form, one.drops, one.inputs = weights, form, drops, []
        return one

    def loss_and_gradients(
        self,
        weights: Weights,
        tokens: Tokens,
        form: Format,
        drops: Drops = NONE_DROPPED,
        backward: bool = True,
    ) -> Pass:
        """One pass over ``tokens``; gradients are in the base of ``form``, where the weights are."""
        device = self.device
        own = {
            name: w.detach().to(device, form.base).requires_grad_(backward)
            for name, w in weights.items()
        }
        source, target, labels = (each.to(device) for each in tokens)
        count = int((labels != PADDING).sum())
        vocabulary = own[self.embedding].size(0)
        width = max(1, source.size(1), target.size(1))
        rows = max(1, SCORES_AT_ONCE // (vocabulary * max(1, target.size(1))))
        if device.type != "cpu":
            rows = max(1, min(rows, TOKENS_AT_ONCE // width))
        row, losses = 0, []
        for part in zip(source.split(rows), target.split(rows), labels.split(rows), strict=True):
            used = {name: form.weight(w) for name, w in own.items()}
            one = self.during(used, form, drops.rows(row, row + len(part[0])))
            row += len(part[0])
            with _in_any_order(device), whole_products(device):
                loss = one.token_losses(*part)
                if backward:
                    (loss.sum() * (form.loss_scale / count)).backward()
            losses.append(loss.detach().double().cpu())
        of_labels = torch.cat(losses)
        gradients = {}
        if backward:
            for name, w in own.items():
                gradients[name] = torch.zeros_like(w) if w.grad is None else w.grad
            if form.loss_scale != 1.0:
                torch._foreach_div_(list(gradients.values()), form.loss_scale)
            gradients = {name: gradients[name].to(w.device) for name, w in weights.items()}
        return Pass(float(of_labels.sum()) / count, gradients, of_labels, one.inputs)

    def token_losses(self, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        """The :func:`smoothed_loss` of every label, [b, t]; 0 for padding."""
        logits, real = self.logits(source, target), target != PADDING
        loss = whole_smoothed_loss if self.form.whole_targets else smoothed_loss
        losses = loss(logits, labels[real], self.smoothing, self.published_loss)
        return logits.new_zeros(labels.shape).masked_scatter(real, losses)

    def logits(self, source: Tensor, target: Tensor) -> Tensor:
        """source [b, s], target [b, t] -> [n, v] logits after each of the n target tokens that are not
        padding."""
        raise NotImplementedError

    def dropped(self, place: str, x: Tensor, where: "Places | None" = None) -> Tensor:
        """x after the dropout of ``place``: [b, n, d], or [tokens, d] with their places ``where``."""
        mask = self.drops.masks.get(place)
        if mask is None:
            return x
        mask = mask.to(x.device)
        kept = (mask if where is None else where.listed(mask)).to(x.dtype)
        return self.form.between(x * kept.div_(1 - self.drops.p))

    def rectified(self, x: Tensor) -> Tensor:
        """The ReLU of x [..., d_ff], which opens at a gate other than 0 if the format has gates."""
        with torch.no_grad():
            size = torch.linalg.vector_norm(x) / math.sqrt(x.numel())
            gate = self.form.gates[len(self.inputs)] if self.form.gates else 0.0
            self.inputs.append(x.flatten(0, -2)[:SEEN] / size)
            opened = (x > gate * size).to(x.dtype)
        return x * opened

    def attended(self, place: str, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        """Attention of q [b, h, n, k] to k and v [b, h, m, k], dropout included."""
        scores = self.form.product(q / math.sqrt(q.size(-1)), k.transpose(-1, -2))
        factor = self.drops.factor(place)
        if factor is not None:
            factor = factor.to(v.device, v.dtype)
        return SoftmaxProduct.apply(scores, hidden, v, factor, self.form)

    def linear(self, name: str, x: Tensor) -> Tensor:
        """The linear map ``name`` of x, with its bias if it has one."""
        result = self.form.product(x, self.weights[f"{name}.weight"].T)
        bias = self.weights.get(f"{name}.bias")
        return result if bias is None else result.add_(bias)


class Places:
    """The positions of the tokens in [b, n] that are not padding; only these are computed."""

    def __init__(self, tokens: Tensor) -> None:
        self.shape = tokens.shape
        self.real = (tokens != PADDING).flatten().nonzero().squeeze(1)
        self.columns = self.real % tokens.size(1)

    def listed(self, rows: Tensor) -> Tensor:
        """[b, n, ...] -> [tokens, ...]."""
        return rows.flatten(0, 1).index_select(0, self.real)

    def in_rows(self, x: Tensor) -> Tensor:
        """[tokens, d] -> [b, n, d], 0 where there is padding."""
        rows = x.new_zeros(self.shape.numel(), x.size(1)).index_copy_(0, self.real, x)
        return rows.unflatten(0, self.shape)


class PlainModel(Plain):
    """The Transformer of arXiv 1706.03762."""

    embedding = "source_embedding.weight"

    def logits(self, source: Tensor, target: Tensor) -> Tensor:
        """Implements :meth:`Plain.logits`. Inside, activations are lists of tokens [tokens, d]."""
        theirs, mine = Places(source), Places(target)
        memory = self._embedded("source_embedding", source, theirs)
        memory = self.dropped("source_embedding", memory, theirs)
        hidden = (source == PADDING)[:, None, None, :]
        for layer in range(self.spec.encoder_layers):
            at = _Layer(self, f"encoder.{layer}.", theirs)
            memory = at.residual(0, memory, partial(at.self_attention, hidden=hidden))
            memory = at.residual(1, memory, at.feed_forward)
        if self.spec.norm == "pre":
            memory = self.normalised("encoder_norm", memory)
        tied = self.spec.tied_embeddings
        x = self._embedded("source_embedding" if tied else "target_embedding", target, mine)
        x = self.dropped("target_embedding", x, mine)
        place = torch.arange(target.size(1), device=target.device)
        later = place[None, :] > place[:, None]
        for layer in range(self.spec.decoder_layers):
            at = _Layer(self, f"decoder.{layer}.", mine)
            cross = partial(at.cross_attention, memory=memory, theirs=theirs, hidden=hidden)
            x = at.residual(0, x, partial(at.self_attention, hidden=later))
            x = at.residual(1, x, cross)
            x = at.residual(2, x, at.feed_forward)
        if self.spec.norm == "pre":
            x = self.normalised("decoder_norm", x)
        return self.linear("source_embedding" if tied else "output", x)

    def _embedded(self, name: str, tokens: Tensor, where: Places) -> Tensor:
        d, form = self.spec.d_model, self.form
        rows = self.weights[f"{name}.weight"].index_select(0, where.listed(tokens))
        positions = _sinusoids(torch.arange(tokens.size(1), device=tokens.device), d)
        # If weights are rounded, so is every intermediate result.
        added = form.weight(positions.to(rows.dtype)).index_select(0, where.columns)
        return form.between(form.weight(form.between(rows) * math.sqrt(d)) + added)

    def normalised(self, name: str, x: Tensor) -> Tensor:
        """Layer normalization (arXiv 1607.06450), or that of the Annotated Transformer, which divides
        by the sample standard deviation."""
        centred = x - x.mean(-1, keepdim=True)
        if isinstance(self.spec, Transformer) and self.spec.norm_method.by_sample_deviation:
            size = (centred.square().sum(-1, keepdim=True) / (x.size(-1) - 1)).sqrt() + 1e-6
        else:
            size = (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()
        scaled = centred / size * self.weights[f"{name}.weight"]
        return self.form.between(scaled + self.weights[f"{name}.bias"])


def _sinusoids(place: Tensor, d: int) -> Tensor:
    """Positions ``place`` [...] -> sinusoidal encodings [..., d] in 64 bits (arXiv 1706.03762, 3.5)."""
    column = torch.arange(d // 2, device=place.device, dtype=torch.float64)
    angle = place[..., None] / 10_000 ** (2 * column / d)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


def smoothed_loss(
    logits: Tensor, labels: Tensor, smoothing: float, published: bool = False
) -> Tensor:
    """Label-smoothed cross-entropy (arXiv 1512.00567) in nats of every label [...], given logits
    [..., v]; 0 for padding. With ``published``, as in the Annotated Transformer, the label itself and
    padding get no share of the smoothing."""
    right = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    if published:
        every = logits.sum(-1) - right - logits[..., PADDING]
        others = every / (logits.size(-1) - 2)
    else:
        others = logits.mean(-1)
    # The weights of all logits add up to 1, so logsumexp, which turns them into log-probabilities,
    # needs subtracting only once.
    smoothed = (1 - smoothing) * right + smoothing * others - logits.logsumexp(-1)
    return -smoothed.masked_fill(labels == PADDING, 0.0)


def whole_smoothed_loss(
    logits: Tensor, labels: Tensor, smoothing: float, published: bool = False
) -> Tensor:
    """:func:`smoothed_loss` as a sum over the vocabulary: minus the log-probability of each token times
    its target."""
    share = smoothing / (logits.size(-1) - 2 * published)
    targets = torch.full_like(logits, share)
    own = 1 - smoothing if published else 1 - smoothing + share
    targets.scatter_(-1, labels.unsqueeze(-1), own)
    if published:
        targets[..., PADDING] = 0.0
    losses = -(targets * logits.log_softmax(-1)).sum(-1)
    return losses.masked_fill(labels == PADDING, 0.0)


class _Layer:
    """The sub-layers of one layer; their x [tokens, d] holds the tokens at the places ``where``."""

    def __init__(self, model: PlainModel, prefix: str, where: Places) -> None:
        self.model, self.prefix, self.where = model, prefix, where

    def residual(self, number: int, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        model, place = self.model, f"{self.prefix}residuals.{number}"
        pre, norm = model.spec.norm == "pre", f"{place}.norm"
        inner = sublayer(model.normalised(norm, x) if pre else x)
        added = model.form.between(x + model.dropped(place, inner, self.where))
        return added if pre else model.normalised(norm, added)

    def self_attention(self, x: Tensor, hidden: Tensor) -> Tensor:
        name = "self_attention"
        q, k, v = (
            self._heads(f"{name}.project.{part}", x, self.where)
            for part in ("query", "key", "value")
        )
        return self._attended(name, q, k, v, hidden)

    def cross_attention(self, x: Tensor, memory: Tensor, theirs: Places, hidden: Tensor) -> Tensor:
        name = "cross_attention"
        q = self._heads(f"{name}.project_state.query", x, self.where)
        k, v = (
            self._heads(f"{name}.project_memory.{part}", memory, theirs)
            for part in ("key", "value")
        )
        return self._attended(name, q, k, v, hidden)

    def feed_forward(self, x: Tensor) -> Tensor:
        name = f"{self.prefix}feed_forward"
        inner = self.model.rectified(self.model.linear(f"{name}.inner", x))
        return self.model.linear(f"{name}.outer", self.model.dropped(name, inner, self.where))

    def _attended(self, name: str, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        place = f"{self.prefix}{name}"
        heads = self.model.attended(place, q, k, v, hidden)
        return self.model.linear(
            f"{place}.output", self.where.listed(heads.transpose(1, 2).flatten(2))
        )

    def _heads(self, name: str, x: Tensor, where: Places) -> Tensor:
        """x [tokens, d] at the places ``where`` -> [b, h, n, k]."""
        rows = where.in_rows(self.model.linear(f"{self.prefix}{name}", x))
        return rows.unflatten(-1, (self.model.spec.heads, -1)).transpose(1, 2).contiguous()


class SoftmaxProduct(torch.autograd.Function):
    """softmax(scores [b, h, n, m]) v [b, h, m, k] -> [b, h, n, k]; ``hidden`` scores count as -inf. If
    there is a ``factor`` (dropout mask over the probability to keep), it multiplies the softmax.

    The backward pass follows FlashAttention (arXiv 2205.14135, algorithm 4), which derives the sum
    over P dP from the output. No other way is as sensitive to an output with few bits.
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, hidden: Tensor, v: Tensor, factor: Tensor | None, form: Format
    ) -> Tensor:
        scores = scores.masked_fill(hidden, -math.inf)
        # Subtracting the largest score prevents overflow.
        shares = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
        shares.div_(shares.sum(-1, keepdim=True))
        used = form.rounded(shares if factor is None else shares * factor)
        result = form.rounded(used @ form.rounded(v), result=True)
        ctx.save_for_backward(shares, used, v, result)
        ctx.form, ctx.factor = form, factor
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        shares, used, v, result = ctx.saved_tensors
        form, grad = ctx.form, ctx.form.rounded(grad)
        of_v = used.transpose(-1, -2) @ grad
        of_shares = grad @ form.rounded(v).transpose(-1, -2)
        if ctx.factor is not None:
            of_shares.mul_(ctx.factor)
        of_scores = of_shares.sub_((grad * result).sum(-1, keepdim=True)).mul_(shares)
        rounded = form.rounded(of_scores, result=True), form.rounded(of_v, result=True)
        return rounded[0], None, rounded[1], None, None


BEGIN = 1
"""Token id at the beginning of every text, as in batches."""


class PlainDecoder(Plain):
    """A decoder-only language model. With ``masked``, attention stays within each text of a row, and
    positions start again with every text."""

    embedding = "embedding.weight"

    def __init__(
        self, spec: DecoderOnly, smoothing: float, masked: bool, published_loss: bool = False
    ) -> None:
        super().__init__(spec, smoothing, published_loss)
        self.masked = masked

    def logits(self, source: Tensor, target: Tensor) -> Tensor:
        """Implements :meth:`Plain.logits`; source is empty, [b, 0]."""
        column = torch.arange(target.size(1), device=target.device)
        hidden = (column[None, :] > column[:, None])[None]
        place = column.expand_as(target)
        if self.masked:
            begins = target == BEGIN
            number = begins.cumsum(1)
            hidden = hidden | (number[:, :, None] != number[:, None, :])
            # A token's text begins at the last begin token up to it.
            place = column - (column * begins).cummax(1).values
        x = self.dropped("embedding", self.form.between(self._embedded(target, place)))
        for layer in range(self.spec.layers):
            at = f"layers.{layer}."
            attended = self._attention(at, self._norm(f"{at}attention_norm", x), place, hidden)
            x = self.form.between(x + self.dropped(f"{at}residuals.0", attended))
            inner = self._feed_forward(at, self._norm(f"{at}feed_forward_norm", x))
            x = self.form.between(x + self.dropped(f"{at}residuals.1", inner))
        x = self._norm("norm", x[target != PADDING])
        return self.linear("embedding" if self.spec.tied_embeddings else "output", x)

    def _embedded(self, tokens: Tensor, place: Tensor) -> Tensor:
        """tokens [b, t] at the positions ``place`` [b, t] -> [b, t, d]."""
        x = self.weights["embedding.weight"][tokens]
        if isinstance(self.spec.positions, LearnedPositions):
            return x + self.weights["places.weight"][place]
        if isinstance(self.spec.positions, SinusoidalPositions):
            d, form = self.spec.d_model, self.form
            # Embeddings are scaled as in arXiv 1706.03762, section 3.4.
            return form.weight(x * math.sqrt(d)) + form.weight(_sinusoids(place, d).to(x.dtype))
        return x

    def _norm(self, name: str, x: Tensor) -> Tensor:
        """RMS normalization (arXiv 1910.07467), or layer normalization (arXiv 1607.06450)."""
        norm = self.spec.norm
        if norm.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        scaled = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        scaled = scaled * self.weights[f"{name}.weight"]
        bias = self.weights.get(f"{name}.bias")
        return self.form.between(scaled if bias is None else scaled + bias)

    def _attention(self, at: str, x: Tensor, place: Tensor, hidden: Tensor) -> Tensor:
        name, heads = f"{at}self_attention", self.spec.heads
        kv_heads = self.spec.kv_heads or heads
        q, k, v = (
            self.linear(f"{name}.project.{part}", x).unflatten(-1, (count, -1)).transpose(1, 2)
            for part, count in (("query", heads), ("key", kv_heads), ("value", kv_heads))
        )
        if isinstance(self.spec.positions, RotaryPositions):
            q, k = (self._turned(part, place, self.spec.positions.base) for part in (q, k))
        # heads // kv_heads adjacent query heads share a key head.
        serving = torch.arange(heads, device=x.device) // (heads // kv_heads)
        seen = self.attended(name, q, k[:, serving], v[:, serving], hidden[:, None])
        return self.linear(f"{name}.output", seen.transpose(1, 2).flatten(2))

    @staticmethod
    def _turned(x: Tensor, place: Tensor, base: float) -> Tensor:
        """Rotates x [b, h, t, k] by its positions (arXiv 2104.09864): as in Llama, elements i and
        i + k / 2 are the real and imaginary part of a complex number."""
        half = x.size(-1) // 2
        wave = base ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
        angle = (place[:, None, :, None] * wave).to(x.dtype)
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
            torch.ones_like(angle), angle
        )
        return torch.cat([turned.real, turned.imag], -1)

    def _feed_forward(self, at: str, x: Tensor) -> Tensor:
        inner = self.linear(f"{at}feed_forward.inner", x)
        kind = self.spec.feed_forward
        if kind.kind == "swiglu":
            gate, value = inner.chunk(2, -1)
            inner = gate / (1 + (-gate).exp()) * value
        elif isinstance(kind, Gelu):
            inner = inner * _normal_share(inner, kind.approximate == "tanh")
        else:
            inner = self.rectified(inner)
        return self.linear(f"{at}feed_forward.outer", self.form.between(inner))


def _normal_share(x: Tensor, approximate: bool) -> Tensor:
    """The cumulative normal distribution at x (arXiv 1606.08415), or its tanh approximation."""
    if approximate:
        return (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh()) / 2
    return (1 + (x / math.sqrt(2)).erf()) / 2


class OwnModel:
    """Stands in for :class:`Plain` if only the model's own code can compute it: the model in one
    process, without dropout. This checks how a variant computes the model, not the model itself, but for two
    rules: logits depend neither on later tokens nor on padding."""

    device = torch.device("cpu")

    def __init__(
        self,
        spec: AnyTrained,
        vocabulary: int,
        label_smoothing: float,
        task: AnyTask,
        published_loss: bool = False,
    ) -> None:
        self.smoothing, self.vocabulary = label_smoothing, vocabulary
        self.published_loss = published_loss
        with torch.random.fork_rng(devices=[]):
            self.model = build_model(spec.model_copy(update={"dropout": 0.0}), vocabulary)
        self.buffers = {name: buffer.dtype for name, buffer in self.model.named_buffers()}
        self.forward = objective(task, self.model).logits
        self.trained = trained_names(self.model)
        self.checked = False

    def during(self, weights: Weights, form: Format, device: torch.device = device) -> Self:
        """This model with the weights and the number format of its next passes."""
        # Not by the module's own method: it discards imaginary parts.
        model = self.model._apply(partial(form.stored, device=device))
        with torch.no_grad():
            for name, tensor in canonical_state_dict(model).items():
                tensor.copy_(weights[name])
            # With rounded weights a training computes in bfloat16 without casts; buffers stay as they are.
            for name, tensor in chain(model.named_buffers(), model.named_parameters()):
                if form.weights and tensor.is_floating_point():
                    tensor.data = tensor.data.to(self.buffers.get(name, torch.bfloat16))
        self.form = form
        return self

    @torch.no_grad()
    def logits(self, source: Tensor, texts: Tensor) -> Tensor:
        """The logits [b * t, v] after every prefix of ``texts`` [b, t], whole sentences without the padding of
        ``source`` [b, s], one after the other."""
        self.model.eval()
        with self._autocast(source.device, self.form):
            every = [
                self.forward(row[row != PADDING][None], text[None])
                for row, text in zip(source, texts, strict=True)
            ]
        return torch.cat(every).flatten(0, 1)

    def loss_and_gradients(
        self,
        weights: Weights,
        tokens: Tokens,
        form: Format,
        drops: Drops = NONE_DROPPED,
        backward: bool = True,
    ) -> Pass:
        """One pass over ``tokens``, with gradients in 64 bits; without ``backward``, as in validation.
        The inputs of ReLUs are unknown.

        Ignores ``drops``: only the model itself knows where it drops. Raises ValueError if a second pass
        gives other logits, since no comparison could tell a fault from that, or if logits change with a
        later token.
        """
        source, target, labels = tokens
        model = self.model.train(backward)

        def logits_of_weights() -> Tensor:
            self.during(weights, form, source.device)
            with self._autocast(source.device, form):
                return self.forward(source, target)

        if not self.checked:
            with torch.no_grad():
                once, again = logits_of_weights(), logits_of_weights()
            if not _alike(once, again):
                raise ValueError(
                    "the model gives other logits for the same tokens and weights, although its dropout "
                    "is 0; remedy: let it draw random numbers only with dropout, and keep what it changes "
                    "in persistent buffers"
                )
            self._require_that_later_tokens_do_not_count(source, target)
            self.checked = True
        model.train(backward).zero_grad()
        count = int((labels != PADDING).sum())
        with torch.set_grad_enabled(backward):
            logits = logits_of_weights()
        loss = smoothed_loss(logits.to(form.base), labels, self.smoothing, self.published_loss)
        losses = loss.detach().double()
        gradients = {}
        if backward:
            (loss.sum() / count).backward()
            # They replace the weights, because only the model can give them their canonical names.
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
            gradients = {
                name: tensor.to(weights[name].device, torch.float64, copy=True)
                for name, tensor in canonical_state_dict(model).items()
                if name in self.trained
            }
        return Pass(float(losses.sum()) / count, gradients, losses, [])

    @torch.no_grad()
    def _require_that_later_tokens_do_not_count(self, source: Tensor, target: Tensor) -> None:
        """Replaces the last token of each row of ``target`` [b, t]: no logits before it may change."""
        self.model.eval()  # In training, batch normalization mixes all tokens.
        place = torch.arange(target.size(1), device=target.device)
        last = (target != PADDING).sum(1, keepdim=True) - 1
        before = self.forward(source, target)
        highest = before.size(-1) - 1
        other = torch.where(target == highest, highest - 1, highest)
        after = self.forward(source, torch.where(place == last, other, target))
        earlier = place < last
        if not _alike(before[earlier], after[earlier]):
            raise ValueError(
                "the model's logits change with a later token of target_input, which is the one to be predicted; "
                "remedy: mask all later places, in attention by is_causal=True"
            )

    @staticmethod
    def _autocast(device: torch.device, form: Format) -> contextlib.AbstractContextManager[object]:
        dtype = torch.bfloat16 if form.rounding is to_bf16 else torch.float16
        return torch.autocast(device.type, dtype, enabled=bool(form.rounding) and not form.weights)


def _alike(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True)
