"""Independent implementations of the models as plain functions of their weights: the Transformer,
the language model, and models that only their own code can compute (another library's or a user's).

The first two follow their papers (arXiv 1706.03762 and those named in the code). They share no code
with the trained models, losses and optimizers, so a mistake there is not repeated here. They take
weights under their canonical names, in any number format, and know nothing of strategies and ranks.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from schemas.config.model import (
    DecoderOnly,
    Gelu,
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
    TorchTransformer,
    Transformer,
)
from schemas.config.run_spec import AnyTask, AnyTrained, Translation
from transformer_core.certify.number_formats import Format
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


class Plain:
    """Loss and gradients of a model; a subclass computes its logits. Drops only given elements."""

    embedding: str
    """Canonical name of a weight matrix with one row per token of the vocabulary."""

    def __init__(self, label_smoothing: float, published_loss: bool = False) -> None:
        self.smoothing = label_smoothing
        self.published_loss = published_loss
        self.inputs: list[Tensor] = []
        """Inputs of each ReLU in the last pass, [tokens, d_ff] for the first tokens, relative to the
        root mean square of all inputs."""
        self.losses = torch.zeros(0, 0)
        """Loss of each label in the last pass, [b, t] in nats, 0 for padding; one batch only."""
        self._drops = NONE_DROPPED
        self.device = torch.device("cpu")
        """Device for 64 bits; other formats are computed on the CPU, and all results return there."""

    def loss_and_gradients(
        self,
        weights: Weights,
        batches: Iterable[Tokens],
        number_format: Format,
        drops: Drops = NONE_DROPPED,
        backward: bool = True,
    ) -> tuple[float, dict[str, Tensor]]:
        """Loss per target token in nats over ``batches``, and its gradients by name, in the base of
        ``number_format``; no gradients without ``backward``.

        With ``drops``, there must be a single batch, to which its masks belong.
        """
        exact = number_format.base == torch.float64
        device = self.device if exact else torch.device("cpu")
        own = {
            name: w.detach().to(device, number_format.base).requires_grad_(backward)
            for name, w in weights.items()
        }
        there = [(s.to(device), t.to(device), y.to(device)) for s, t, y in batches]
        slices = [part for tokens in there for part in self._slices(tokens, own)]
        count = sum(int((labels != PADDING).sum()) for _, _, labels in slices)
        row, losses = 0, []
        for part in slices:
            self._drops, self.inputs = drops.rows(row, row + len(part[0])), []
            row += len(part[0])
            used = {name: number_format.weight(w) for name, w in own.items()}
            with _in_any_order(device):
                loss = self.token_losses(used, *part, number_format)
                if backward:
                    (loss.sum() * (number_format.loss_scale / count)).backward()
            losses.append(loss.detach().double().cpu())
        self._drops = NONE_DROPPED
        self.losses = torch.cat(losses)
        mean = float(self.losses.sum()) / count
        if not backward:
            return mean, {}
        gradients = {
            name: torch.zeros_like(w) if w.grad is None else w.grad for name, w in own.items()
        }
        if number_format.loss_scale != 1.0:
            torch._foreach_div_(list(gradients.values()), number_format.loss_scale)
        return mean, {name: gradient.cpu() for name, gradient in gradients.items()}

    def token_losses(
        self, weights: Weights, source: Tensor, target: Tensor, labels: Tensor, form: Format
    ) -> Tensor:
        """The :func:`smoothed_loss` of every label, [b, t]; 0 for padding."""
        logits, real = self.logits(weights, source, target, form), target != PADDING
        losses = smoothed_loss(logits, labels[real], self.smoothing, self.published_loss)
        return logits.new_zeros(labels.shape).masked_scatter(real, losses)

    def logits(self, weights: Weights, source: Tensor, target: Tensor, form: Format) -> Tensor:
        """source [b, s], target [b, t] -> [n, v] logits after each of the n target tokens that are not
        padding."""
        raise NotImplementedError

    def dropped(self, place: str, x: Tensor, form: Format, where: "Places | None" = None) -> Tensor:
        """x after the dropout of ``place``: [b, n, d], or [tokens, d] with their places ``where``."""
        mask = self._drops.masks.get(place)
        if mask is None:
            return x
        kept = (mask if where is None else where.listed(mask)).to(x.device, x.dtype)
        return form.between(x * kept.div_(1 - self._drops.p))

    def rectified(self, x: Tensor, form: Format) -> Tensor:
        """The ReLU of x [..., d_ff], which opens at a gate other than 0 if ``form`` has gates."""
        with torch.no_grad():
            size = torch.linalg.vector_norm(x) / math.sqrt(x.numel())
            gate = form.gates[len(self.inputs)] if form.gates else 0.0
            self.inputs.append(x.flatten(0, -2)[:SEEN] / size)
            opened = (x > gate * size).to(x.dtype)
        return x * opened

    def attended(
        self, place: str, scores: Tensor, hidden: Tensor, v: Tensor, form: Format
    ) -> Tensor:
        """:class:`SoftmaxProduct` of scores [b, h, n, m] and v [b, h, m, k], dropout included."""
        factor = self._drops.factor(place)
        if factor is not None:
            factor = factor.to(v.device, v.dtype)
        result: Tensor = SoftmaxProduct.apply(scores, hidden, v, factor, form)
        return result

    def _slices(self, tokens: Tokens, weights: Weights) -> list[Tokens]:
        source, target, labels = tokens
        vocabulary = weights[self.embedding].size(0)
        rows = max(1, SCORES_AT_ONCE // (vocabulary * max(1, target.size(1))))
        parts = zip(source.split(rows), target.split(rows), labels.split(rows), strict=True)
        return list(parts)


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

    def __init__(
        self,
        spec: Transformer | TorchTransformer,
        label_smoothing: float,
        published_loss: bool = False,
    ) -> None:
        super().__init__(label_smoothing, published_loss)
        self.spec = spec
        self.published_norm = isinstance(spec, Transformer) and spec.norm_method.by_sample_deviation

    def logits(self, weights: Weights, source: Tensor, target: Tensor, form: Format) -> Tensor:
        """Implements :meth:`Plain.logits`. Inside, activations are lists of tokens [tokens, d]."""
        theirs, mine = Places(source), Places(target)
        memory = self._embedded(weights, "source_embedding", source, theirs, form)
        memory = self.dropped("source_embedding", memory, form, theirs)
        hidden = (source == PADDING)[:, None, None, :]
        for layer in range(self.spec.encoder_layers):
            at = _Layer(self, weights, f"encoder.{layer}.", form, theirs)
            memory = at.residual(0, memory, partial(at.self_attention, hidden=hidden))
            memory = at.residual(1, memory, at.feed_forward)
        if self.spec.norm == "pre":
            memory = self.normalised(weights, "encoder_norm", memory, form)
        tied = self.spec.tied_embeddings
        x = self._embedded(
            weights, "source_embedding" if tied else "target_embedding", target, mine, form
        )
        x = self.dropped("target_embedding", x, form, mine)
        length = target.size(1)
        place = torch.arange(length, device=target.device)
        later = place[None, :] > place[:, None]
        for layer in range(self.spec.decoder_layers):
            at = _Layer(self, weights, f"decoder.{layer}.", form, mine)
            cross = partial(at.cross_attention, memory=memory, theirs=theirs, hidden=hidden)
            x = at.residual(0, x, partial(at.self_attention, hidden=later))
            x = at.residual(1, x, cross)
            x = at.residual(2, x, at.feed_forward)
        if self.spec.norm == "pre":
            x = self.normalised(weights, "decoder_norm", x, form)
        output = weights["source_embedding.weight" if tied else "output.weight"]
        return form.product(x, output.T)

    def _embedded(
        self, weights: Weights, name: str, tokens: Tensor, where: Places, form: Format
    ) -> Tensor:
        d = self.spec.d_model
        rows = form.between(weights[f"{name}.weight"].index_select(0, where.listed(tokens)))
        positions = _sinusoids(torch.arange(tokens.size(1), device=tokens.device), d)
        # If weights are rounded, so is every intermediate result.
        added = form.weight(positions.to(rows.dtype)).index_select(0, where.columns)
        return form.between(form.weight(rows * math.sqrt(d)) + added)

    def normalised(self, weights: Weights, name: str, x: Tensor, form: Format) -> Tensor:
        """Layer normalization (arXiv 1607.06450), or that of the Annotated Transformer, which divides
        by the sample standard deviation."""
        centred = x - x.mean(-1, keepdim=True)
        if self.published_norm:
            size = (centred.square().sum(-1, keepdim=True) / (x.size(-1) - 1)).sqrt() + 1e-6
        else:
            size = (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()
        return form.between(centred / size * weights[f"{name}.weight"] + weights[f"{name}.bias"])


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


class _Layer:
    """The sub-layers of one layer; their x [tokens, d] holds the tokens at the places ``where``."""

    def __init__(
        self, model: PlainModel, weights: Weights, prefix: str, form: Format, where: Places
    ) -> None:
        self.model, self.spec = model, model.spec
        self.weights, self.prefix, self.form = weights, prefix, form
        self.where = where

    def residual(self, number: int, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        place = f"{self.prefix}residuals.{number}"
        normalised = partial(self.model.normalised, self.weights, f"{place}.norm", form=self.form)
        inner = sublayer(normalised(x=x) if self.spec.norm == "pre" else x)
        added = self.form.between(x + self.model.dropped(place, inner, self.form, self.where))
        return added if self.spec.norm == "pre" else normalised(x=added)

    def self_attention(self, x: Tensor, hidden: Tensor) -> Tensor:
        project = "self_attention.project."
        q, k, v = (self._heads(project + part, x, self.where) for part in ("query", "key", "value"))
        return self._attended("self_attention", q, k, v, hidden)

    def cross_attention(self, x: Tensor, memory: Tensor, theirs: Places, hidden: Tensor) -> Tensor:
        q = self._heads("cross_attention.project_state.query", x, self.where)
        k, v = (
            self._heads(f"cross_attention.project_memory.{part}", memory, theirs)
            for part in ("key", "value")
        )
        return self._attended("cross_attention", q, k, v, hidden)

    def feed_forward(self, x: Tensor) -> Tensor:
        inner = self._linear("feed_forward.inner", x)
        inner = self.model.rectified(inner, self.form)
        inner = self.model.dropped(f"{self.prefix}feed_forward", inner, self.form, self.where)
        return self._linear("feed_forward.outer", inner)

    def _attended(self, name: str, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        scores = self.form.product(q / math.sqrt(q.size(-1)), k.transpose(-1, -2))
        heads = self.model.attended(f"{self.prefix}{name}", scores, hidden, v, self.form)
        together = self.where.listed(heads.transpose(1, 2).flatten(2))
        return self._linear(f"{name}.output", together)

    def _heads(self, name: str, x: Tensor, where: Places) -> Tensor:
        """x [tokens, d] at the places ``where`` -> [b, h, n, k]."""
        rows = where.in_rows(self._linear(name, x))
        return rows.unflatten(-1, (self.spec.heads, -1)).transpose(1, 2).contiguous()

    def _linear(self, name: str, x: Tensor) -> Tensor:
        weight = self.weights[f"{self.prefix}{name}.weight"]
        bias = self.weights[f"{self.prefix}{name}.bias"]
        return self.form.product(x, weight.T).add_(bias)


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
        self,
        spec: DecoderOnly,
        label_smoothing: float,
        masked: bool,
        published_loss: bool = False,
    ) -> None:
        super().__init__(label_smoothing, published_loss)
        self.spec = spec
        self.masked = masked

    def logits(self, weights: Weights, source: Tensor, target: Tensor, form: Format) -> Tensor:
        """Implements :meth:`Plain.logits`; source is empty, [b, 0]."""
        length = target.size(1)
        column = torch.arange(length, device=target.device)
        hidden = (column[None, :] > column[:, None])[None]
        place = column.expand_as(target)
        if self.masked:
            begins = target == BEGIN
            number = begins.cumsum(1)
            hidden = hidden | (number[:, :, None] != number[:, None, :])
            # A token's text begins at the last begin token up to it.
            place = column - (column * begins).cummax(1).values
        x = form.between(self._embedded(weights, target, place, form))
        x = self.dropped("embedding", x, form)
        for layer in range(self.spec.layers):
            at = f"layers.{layer}."
            attended = self._attention(
                weights,
                at,
                self._norm(weights, f"{at}attention_norm", x, form),
                place,
                hidden,
                form,
            )
            x = form.between(x + self.dropped(f"{at}residuals.0", attended, form))
            inner = self._norm(weights, f"{at}feed_forward_norm", x, form)
            inner = self._feed_forward(weights, at, inner, form)
            x = form.between(x + self.dropped(f"{at}residuals.1", inner, form))
        x = self._norm(weights, "norm", x[target != PADDING], form)
        output = weights["embedding.weight" if self.spec.tied_embeddings else "output.weight"]
        return form.product(x, output.T)

    def _embedded(self, weights: Weights, tokens: Tensor, place: Tensor, form: Format) -> Tensor:
        """tokens [b, t] at the positions ``place`` [b, t] -> [b, t, d]."""
        x = weights["embedding.weight"][tokens]
        if isinstance(self.spec.positions, LearnedPositions):
            return x + weights["places.weight"][place]
        if isinstance(self.spec.positions, SinusoidalPositions):
            d = self.spec.d_model
            # Embeddings are scaled as in arXiv 1706.03762, section 3.4.
            scaled = form.weight(x * math.sqrt(d))
            return scaled + form.weight(_sinusoids(place, d).to(x.dtype))
        return x

    def _norm(self, weights: Weights, name: str, x: Tensor, form: Format) -> Tensor:
        """RMS normalization (arXiv 1910.07467), or layer normalization (arXiv 1607.06450)."""
        norm = self.spec.norm
        if norm.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        scaled = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        scaled = scaled * weights[f"{name}.weight"]
        return form.between(self._biased(weights, name, scaled))

    def _attention(
        self, weights: Weights, at: str, x: Tensor, place: Tensor, hidden: Tensor, form: Format
    ) -> Tensor:
        heads, kv_heads = self.spec.heads, self.spec.kv_heads or self.spec.heads
        project = f"{at}self_attention.project."
        q, k, v = (
            self._linear(weights, project + part, x, form)
            .unflatten(-1, (count, -1))
            .transpose(1, 2)
            for part, count in (("query", heads), ("key", kv_heads), ("value", kv_heads))
        )
        if isinstance(self.spec.positions, RotaryPositions):
            q, k = (self._turned(part, place, self.spec.positions.base) for part in (q, k))
        # heads // kv_heads adjacent query heads share a key head.
        serving = torch.arange(heads, device=x.device) // (heads // kv_heads)
        k, v = k[:, serving], v[:, serving]
        scores = form.product(q / math.sqrt(q.size(-1)), k.transpose(-1, -2))
        seen = self.attended(f"{at}self_attention", scores, hidden[:, None], v, form)
        together = seen.transpose(1, 2).flatten(2)
        return self._linear(weights, f"{at}self_attention.output", together, form)

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

    def _feed_forward(self, weights: Weights, at: str, x: Tensor, form: Format) -> Tensor:
        inner = self._linear(weights, f"{at}feed_forward.inner", x, form)
        kind = self.spec.feed_forward
        if kind.kind == "swiglu":
            gate, value = inner.chunk(2, -1)
            inner = gate / (1 + (-gate).exp()) * value
        elif isinstance(kind, Gelu):
            inner = inner * _normal_share(inner, kind.approximate == "tanh")
        else:
            inner = self.rectified(inner, form)
        return self._linear(weights, f"{at}feed_forward.outer", form.between(inner), form)

    def _linear(self, weights: Weights, name: str, x: Tensor, form: Format) -> Tensor:
        return self._biased(weights, name, form.product(x, weights[f"{name}.weight"].T))

    @staticmethod
    def _biased(weights: Weights, name: str, x: Tensor) -> Tensor:
        return x + weights[f"{name}.bias"] if f"{name}.bias" in weights else x


def _normal_share(x: Tensor, approximate: bool) -> Tensor:
    """The cumulative normal distribution at x (arXiv 1606.08415), or its tanh approximation."""
    if approximate:
        return (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh()) / 2
    return (1 + (x / math.sqrt(2)).erf()) / 2


_TRANSLATION = Translation()


class OwnModel:
    """Stands in for :class:`PlainModel` if only the model's own code can compute it: the model in one
    process, without dropout. This checks how a variant computes the model, not the model itself."""

    def __init__(
        self,
        spec: AnyTrained,
        vocabulary: int,
        label_smoothing: float,
        task: AnyTask = _TRANSLATION,
    ) -> None:
        self.smoothing = label_smoothing
        self.inputs: list[Tensor] = []  # of ReLUs, unknown here
        self.losses = torch.zeros(0, 0)
        with torch.random.fork_rng(devices=[]):
            self.model = build_model(spec.model_copy(update={"dropout": 0.0}), vocabulary)
        self.logits = objective(task, self.model).logits
        self.trained = trained_names(self.model)

    def loss_and_gradients(
        self,
        weights: Weights,
        batches: Iterable[Tokens],
        number_format: Format,
        drops: Drops = NONE_DROPPED,
        backward: bool = True,
    ) -> tuple[float, dict[str, Tensor]]:
        """Loss per target token in nats over ``batches``, and its gradients by name, in 64 bits; no
        gradients without ``backward``.

        Ignores ``drops``: only the model itself knows where it drops.
        """
        batches = list(batches)
        device = batches[0][0].device
        model = self.model.to(device, number_format.base).train()
        with torch.no_grad():
            for name, tensor in canonical_state_dict(model).items():
                tensor.copy_(number_format.weight(weights[name].to(number_format.base)))
        model.zero_grad()
        count = sum(int((labels != PADDING).sum()) for _, _, labels in batches)
        losses = []
        for source, target, labels in batches:
            with self._autocast(device, number_format), torch.set_grad_enabled(backward):
                logits = self.logits(source, target)
            loss = smoothed_loss(logits.to(number_format.base), labels, self.smoothing)
            if backward:
                (loss.sum() / count).backward()
            losses.append(loss.detach().double())
        self.losses = torch.cat(losses)
        mean = float(self.losses.sum()) / count
        if not backward:
            return mean, {}
        # The gradients replace the weights, because only the model can give them their canonical names.
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
        gradients = {
            name: tensor.to(torch.float64, copy=True)
            for name, tensor in canonical_state_dict(model).items()
            if name in self.trained
        }
        return mean, gradients

    @staticmethod
    def _autocast(device: torch.device, form: Format) -> contextlib.AbstractContextManager[object]:
        if form.rounding is None:
            return contextlib.nullcontext()
        # A single rounded number tells the format.
        third = form.rounding(torch.tensor([1 / 3]))
        dtype = torch.bfloat16 if third == torch.tensor([1 / 3]).bfloat16() else torch.float16
        return torch.autocast(device.type, dtype=dtype)
