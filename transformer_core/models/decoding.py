"""Batched decoding: greedy and beam search for translations, greedy or sampled for texts.

Models cache the keys and values of earlier tokens, so that a step computes only its own token.
Models without such a cache compute the whole prefix at every step.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, cat, nn

from schemas.config.model import Sampling
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD
from transformer_core.models.interface import Cache, Model

Translations = list[list[int]]  # token ids of each sentence, without BOS and EOS


def _check_evaluating(model: Any) -> None:
    if model.training:
        raise ValueError("the model is in training mode, where dropout is random: call eval()")


@torch.no_grad()
def greedy(model: Any, source: Tensor, max_length: int | Sequence[int]) -> Translations:
    """Takes the most probable next token of a Model at every step, for source [b, s].

    A sentence ends with EOS or after ``max_length`` tokens (for all, or one number for each), EOS
    included, and then leaves the batch. Raises ValueError if the model is in training mode.
    """
    _check_evaluating(model)
    limits, longest = _limits(source, max_length)
    results = source.new_full((len(source), longest), PAD)
    rows = torch.arange(len(source), device=source.device)
    memory, cache = model.encode(source), model.new_cache()
    token = source.new_full((len(source), 1), BOS)
    for step in range(longest):
        token = _log_probabilities(model, memory, source, token, cache).argmax(-1, keepdim=True)
        results[rows, step] = token.squeeze(-1)
        going = ((token.squeeze(-1) != EOS) & (limits[rows] > step + 1)).nonzero().squeeze(-1)
        if len(going) < len(rows):
            if not len(going):
                break
            rows, token, source, memory = rows[going], token[going], source[going], memory[going]
            cache.select(going)
    return _to_lists(results)


@torch.no_grad()
def beam_search(
    model: Any, source: Tensor, beam_size: int, alpha: float, max_length: int | Sequence[int]
) -> Translations:
    """Returns the best hypothesis of a Model that beam search finds for each sentence of source
    [b, s].

    A hypothesis y scores log P(y) / ((5 + |y|) / 6)^alpha with |y| tokens, EOS included
    (arXiv 1609.08144, equation 14, without the coverage penalty). It is finished when its EOS is
    among the ``beam_size`` best continuations of its sentence; the search continues with the best
    other continuations. A sentence ends when ``beam_size`` hypotheses are finished, or after
    ``max_length`` tokens (for all, or one number for each), EOS included; if no hypothesis is
    finished by then, the best unfinished one counts. With ``beam_size`` 1 this is greedy decoding.
    Raises ValueError if the model is in training mode.
    """
    _check_evaluating(model)
    limits, longest = _limits(source, max_length)
    found = _Found(source, longest, alpha)
    # These tensors have a row for each unfinished sentence; ``rows`` are its places in the batch.
    # ``finished`` counts its finished hypotheses; scores [b, n] and tokens [b, n, length] belong to
    # its n = ``beam_size`` others.
    rows = torch.arange(len(source), device=source.device)
    finished = torch.zeros_like(rows)
    # The hypotheses of a sentence start equal, so only the first may continue, or all would remain.
    scores = torch.full((len(rows), beam_size), -torch.inf, device=source.device)
    scores[:, 0] = 0.0
    tokens = source.new_full((len(rows), beam_size, 1), BOS)
    memory, cache = model.encode(source), model.new_cache()
    memory, source = (x.repeat_interleave(beam_size, dim=0) for x in (memory, source))
    for step in range(longest):
        last = tokens[:, :, -1].reshape(-1, 1)
        log_p = _log_probabilities(model, memory, source, last, cache)
        candidates = scores[:, :, None] + log_p.unflatten(0, (-1, beam_size))
        # Each hypothesis has one EOS, so at least beam_size of these continue.
        top, index = candidates.flatten(1).topk(2 * beam_size)
        origin, token = index // log_p.size(-1), index % log_p.size(-1)

        ends = token == EOS
        counted = ends & top.isfinite()
        counted[:, beam_size:] = False
        finished = finished + counted.sum(dim=1)
        found.offer(rows, top.masked_fill(~counted, -torch.inf), tokens, origin)

        scores, place = top.masked_fill(ends, -torch.inf).topk(beam_size)
        origin, token = origin.gather(1, place), token.gather(1, place)
        tokens = torch.cat([_rows_of(tokens, origin), token[:, :, None]], dim=2)
        flat = origin + torch.arange(0, origin.numel(), beam_size, device=origin.device)[:, None]
        continues = (finished < beam_size) & (limits[rows] > step + 1)
        going = continues.nonzero().squeeze(1)
        if len(going) == len(rows):
            cache.reorder(flat.flatten())
            continue
        # A finished hypothesis, however improbable, beats one that was cut off.
        found.offer_unfinished(rows[~continues], tokens[~continues, 0, 1:])
        rows, finished, scores, tokens = (x[going] for x in (rows, finished, scores, tokens))
        if not len(going):
            break
        flat = flat[going].flatten()
        memory, source = memory[flat], source[flat]
        cache.select(flat)
    return _to_lists(found.tokens)


def _limits(source: Tensor, max_length: int | Sequence[int]) -> tuple[Tensor, int]:
    """The maximum length of the translation of each sentence, and the largest of them."""
    limits = torch.as_tensor(max_length).expand(len(source))
    return limits.to(source.device), int(limits.max())


class _Found:
    def __init__(self, source: Tensor, max_length: int, alpha: float) -> None:
        self._alpha = alpha
        self.scores = torch.full((len(source),), -torch.inf, device=source.device)
        self.tokens = source.new_full((len(source), max_length), PAD)

    def offer(self, rows: Tensor, log_p: Tensor, tokens: Tensor, origin: Tensor) -> None:
        """Keeps the most probable of m finished hypotheses of a sentence if it scores higher.

        Hypothesis ``origin`` [b, m] of tokens [b, n, length], which begin with BOS, followed by an
        EOS, has the log-probability ``log_p`` [b, m].
        """
        # All hypotheses of a step are equally long, so only the best of them can win.
        best, place = log_p.max(dim=1)
        chosen = _rows_of(tokens, origin.gather(1, place[:, None])).squeeze(1)
        ended = F.pad(chosen[:, 1:], (0, 1), value=EOS)
        length = ended.size(1)
        scores = best / ((5 + length) / 6) ** self._alpha
        better = scores > self.scores[rows]
        self.scores[rows] = torch.where(better, scores, self.scores[rows])
        self.tokens[rows, :length] = torch.where(better[:, None], ended, self.tokens[rows, :length])

    def offer_unfinished(self, rows: Tensor, tokens: Tensor) -> None:
        """Keeps tokens [n, length] for sentences without a finished hypothesis."""
        length = tokens.size(1)
        nothing = self.scores[rows].isneginf()[:, None]
        self.tokens[rows, :length] = torch.where(nothing, tokens, self.tokens[rows, :length])


def _rows_of(tokens: Tensor, origin: Tensor) -> Tensor:
    """tokens [b, n, t], origin [b, m] -> [b, m, t]: the hypotheses ``origin`` of each sentence."""
    return tokens.gather(1, origin[:, :, None].expand(-1, -1, tokens.size(2)))


def _log_probabilities(
    model: Model, memory: Tensor, source: Tensor, token: Tensor, cache: Cache
) -> Tensor:
    """Log-probabilities [n, v] of the token after ``token`` [n, 1]; PAD and BOS never follow."""
    logits = model.decode(memory, source, token, cache)[:, -1]
    return _never_pad_or_bos(logits.float().log_softmax(dim=-1))


def _never_pad_or_bos(scores: Tensor) -> Tensor:
    """Sets PAD and BOS in scores [n, v] to minus infinity, in place."""
    # One by one, since a list of columns would be copied to the device at every step.
    for never in (PAD, BOS):
        scores[:, never].fill_(-torch.inf)
    return scores


def _to_lists(tokens: Tensor) -> Translations:
    """tokens [b, t] -> lists of the ids of each row before the first EOS or PAD."""
    return [list(takewhile(lambda token: token not in (EOS, PAD), row)) for row in tokens.tolist()]


KeyValue = tuple[Tensor, Tensor]  # keys and values, each [b, h, n, k]


class LayerCache:
    def __init__(self) -> None:
        self.prefix: KeyValue | None = None
        self.memory: KeyValue | None = None

    def extend(self, k: Tensor, v: Tensor) -> KeyValue:
        """Appends keys and values of new target tokens; returns all so far."""
        if self.prefix is not None:
            k = torch.cat([self.prefix[0], k], dim=2)
            v = torch.cat([self.prefix[1], v], dim=2)
        self.prefix = (k, v)
        return self.prefix


class DecoderCache:
    """Keys and values of all decoder layers: a :class:`~transformer_core.models.interface.Cache`."""

    def __init__(self, layers: int) -> None:
        self.layers = [LayerCache() for _ in range(layers)]

    @property
    def length(self) -> int:
        prefix = self.layers[0].prefix
        return 0 if prefix is None else prefix[0].size(2)

    def reorder(self, rows: Tensor) -> None:
        for layer in self.layers:
            layer.prefix = _take(layer.prefix, rows)

    def select(self, rows: Tensor) -> None:
        for layer in self.layers:
            layer.prefix = _take(layer.prefix, rows)
            layer.memory = _take(layer.memory, rows)


def _take(pair: KeyValue | None, rows: Tensor) -> KeyValue | None:
    return None if pair is None else (pair[0].index_select(0, rows), pair[1].index_select(0, rows))


class PrefixCache:
    """A :class:`~transformer_core.models.interface.Cache` of the target tokens so far.

    A step costs as much as the whole prefix, so decoding t tokens takes time proportional to t^2.
    """

    def __init__(self) -> None:
        self.tokens: Tensor | None = None

    def extend(self, tokens: Tensor) -> Tensor:
        """Appends tokens [b, n]; returns all so far, [b, t]."""
        self.tokens = tokens if self.tokens is None else cat([self.tokens, tokens], dim=1)
        return self.tokens

    def reorder(self, rows: Tensor) -> None:
        self.select(rows)

    def select(self, rows: Tensor) -> None:
        if self.tokens is not None:
            self.tokens = self.tokens.index_select(0, rows)


def _next(logits: Tensor, draws: Tensor, sampling: Sampling | None) -> Tensor:
    """logits [b, v] and numbers [b] in 0 ... 1 -> tokens [b]."""
    if sampling is None:
        return logits.argmax(-1)
    kept = min(sampling.top_k or logits.size(-1), logits.size(-1))
    top, index = logits.topk(kept)
    cumulated = (top.double() / sampling.temperature).softmax(-1).cumsum(-1)
    # The first token at which the cumulated probability exceeds the draw; rounding may leave it below.
    place = torch.searchsorted(cumulated, draws[:, None], right=True).clamp(max=kept - 1)
    return index.gather(-1, place).squeeze(-1)


def _left_padded(
    prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Tokens [b, n] padded on the left, and a mask of the real ones; None if all are real."""
    longest = max(map(len, prompts))
    padded = [[PAD] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    tokens = torch.tensor(padded, device=device)
    if min(map(len, prompts)) == longest:
        return tokens, None
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    column = torch.arange(longest, device=device)
    return tokens, column >= (longest - lengths)[:, None]


def seen_in_decoding(real: Tensor, start: int) -> Tensor:
    """Mask [b, 1, n, m] for the tokens from ``start`` on, given ``real`` [b, m]. A token sees itself
    and the real tokens before it; padding sees itself, since a softmax over nothing is NaN."""
    m = real.size(1)
    place: Any = torch.arange(m, device=real.device)
    before = place[start:, None] >= place
    itself = place[start:, None] == place
    return ((before & real[:, None]) | itself)[:, None]


class LanguageModel(nn.Module):
    """A decoder over token ids; PAD pads the ends of rows and does not count.

    A subclass defines ``forward(tokens, targets=None, segments=None, loss=...)``: the loss sum of
    targets [b, n] after tokens [b, n], a :data:`~transformer_core.models.interface.HeadLoss`;
    without targets, logits [b, n, v]. segments [b, n] number the documents.
    """

    def logits(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """Logits [b, n, v] of the next tokens."""
        # By a call, in which FSDP gathers shards.
        return self(tokens, None, segments)

    def new_cache(self) -> Any:
        """An empty cache for :meth:`step`, with a method ``select(rows)``."""
        raise NotImplementedError

    def step(self, tokens: Tensor, real: Tensor | None, cache: Any) -> Tensor:
        """Logits [b, v] after tokens [b, n], which follow the cached ones; ``real`` [b, m] is False
        at padding before them."""
        raise NotImplementedError

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Sequence[int]], max_length: int, sampling: Sampling | None = None
    ) -> list[list[int]]:
        """Generates the continuation of each of ``prompts``, without its EOS: lists of token ids.

        A text ends with EOS or after ``max_length`` tokens, EOS included, and then leaves the batch.
        Without ``sampling`` each token is the most probable one. A sampled text depends on the seed, the
        prompt, its place in the list and ``max_length``, not on the other prompts. PAD and BOS never follow. Does not
        work on shards, because FSDP gathers weights in the forward pass only. Raises ValueError if the
        model is in training mode, or if a prompt has no token.
        """
        _check_evaluating(self)
        if not all(prompts):
            raise ValueError("a prompt has no token: begin it with BOS")
        if not prompts or max_length < 1:
            return [[] for _ in prompts]
        device = next(self.parameters()).device
        tokens, real = _left_padded(prompts, device)
        # Numbers drawn on the host give the same text on every device.
        generator = torch.Generator().manual_seed(sampling.seed if sampling else 0)
        draws = torch.rand(len(prompts), max_length, generator=generator, dtype=torch.float64)
        draws = draws.to(device)
        rows, cache = torch.arange(len(prompts), device=device), self.new_cache()
        found: list[list[int]] = [[] for _ in prompts]
        for step in range(max_length):
            logits = _never_pad_or_bos(self.step(tokens, real, cache).float())
            token = _next(logits, draws[rows, step], sampling)
            for row, chosen in zip(rows.tolist(), token.tolist(), strict=True):
                if chosen != EOS:
                    found[row].append(chosen)
            going = (token != EOS).nonzero().squeeze(-1)
            if not len(going):
                break
            if len(going) < len(rows):
                rows, token = rows[going], token[going]
                real = None if real is None else real[going]
                cache.select(going)
            tokens = token[:, None]
            if real is not None:
                real = torch.cat([real, real.new_ones(len(real), 1)], dim=1)
        return found
