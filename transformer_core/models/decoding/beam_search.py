"""Greedy decoding and beam search, batched, one token a step with cached keys and values."""

from collections.abc import Callable
from functools import wraps
from itertools import takewhile
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD
from transformer_core.models.interface import Cache, Model

Translations = list[list[int]]
"""Token ids of each sentence, without BOS and EOS."""


def _decoder(search: Callable[..., Translations]) -> Callable[..., Translations]:
    """Check what every search needs; it builds no graph."""

    @wraps(search)
    @torch.no_grad()
    def checked(model: Model, source: Tensor, *args: Any, **options: Any) -> Translations:
        if model.training:
            raise ValueError("the model is in training mode, where dropout is random: call eval()")
        return search(model, source, *args, **options)

    return checked


@_decoder
def greedy(model: Model, source: Tensor, max_length: int) -> Translations:
    """The most probable next token at every step, for source [b, s].

    A sentence ends with EOS or after ``max_length`` tokens, EOS included. Sentences that have ended
    leave the batch. ValueError if the model is in training mode.
    """
    results = source.new_full((len(source), max_length), PAD)
    rows = torch.arange(len(source), device=source.device)
    memory, cache = model.encode(source), model.new_cache()
    token = source.new_full((len(source), 1), BOS)
    for step in range(max_length):
        token = _log_probabilities(model, memory, source, token, cache).argmax(-1, keepdim=True)
        results[rows, step] = token.squeeze(-1)
        going = (token.squeeze(-1) != EOS).nonzero().squeeze(-1)
        if len(going) < len(rows):
            if not len(going):
                break
            rows, token, source, memory = rows[going], token[going], source[going], memory[going]
            cache.select(going)
    return _to_lists(results)


@_decoder
def beam_search(
    model: Model, source: Tensor, beam_size: int, alpha: float, max_length: int
) -> Translations:
    """The best of the hypotheses that beam search finds, for source [b, s].

    A hypothesis y scores log P(y) / ((5 + |y|) / 6)^alpha with |y| tokens, EOS included
    (arXiv 1609.08144, equation 14, without the coverage penalty). It is finished when its EOS is
    among the ``beam_size`` best continuations of its sentence; the best other continuations go on.
    A sentence ends when ``beam_size`` hypotheses are finished, or after ``max_length`` tokens, EOS
    included; only if nothing is finished then, the best unfinished one is taken. With ``beam_size``
    1 this is greedy decoding. ValueError if the model is in training mode.
    """
    found = _Found(source, max_length, alpha)
    # What follows has one row per sentence still going; ``rows`` are their places in the batch.
    rows, finished, scores, tokens = _first_beam(source, beam_size)
    memory, cache = model.encode(source), model.new_cache()
    memory, source = (x.repeat_interleave(beam_size, dim=0) for x in (memory, source))
    for _ in range(max_length):
        last = tokens[:, :, -1].reshape(-1, 1)
        log_p = _log_probabilities(model, memory, source, last, cache)
        candidates = scores[:, :, None] + log_p.unflatten(0, (-1, beam_size))
        # Each hypothesis has one EOS, so at least beam_size of these go on.
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
        going = (finished < beam_size).nonzero().squeeze(1)
        if len(going) == len(rows):
            cache.reorder(flat.flatten())
            continue
        rows, finished, scores, tokens = (x[going] for x in (rows, finished, scores, tokens))
        if not len(going):
            break
        flat = flat[going].flatten()
        memory, source = memory[flat], source[flat]
        cache.select(flat)

    # A finished hypothesis, however improbable, goes before one that was cut off.
    found.offer_unfinished(rows, tokens[:, 0, 1:])
    return _to_lists(found.tokens)


def _first_beam(source: Tensor, beam_size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Before the first step, for source [b, s]: rows [b], finished [b], scores and tokens.

    ``finished`` counts the finished hypotheses of each sentence; scores [b, n] and tokens [b, n, 1]
    are those of its ``beam_size`` hypotheses.
    """
    rows = torch.arange(len(source), device=source.device)
    finished = torch.zeros_like(rows)
    # The hypotheses of a sentence start equal: only the first may go on, or all would stay so.
    scores = torch.full((len(rows), beam_size), -torch.inf, device=source.device)
    scores[:, 0] = 0.0
    return rows, finished, scores, source.new_full((len(rows), beam_size, 1), BOS)


class _Found:
    """The best hypothesis of each sentence so far."""

    def __init__(self, source: Tensor, max_length: int, alpha: float) -> None:
        self._alpha = alpha
        self.scores = torch.full((len(source),), -torch.inf, device=source.device)
        self.tokens = source.new_full((len(source), max_length), PAD)

    def offer(self, rows: Tensor, log_p: Tensor, tokens: Tensor, origin: Tensor) -> None:
        """Take the most probable of m hypotheses of a sentence where it scores higher.

        Hypothesis ``origin`` [b, m] of tokens [b, n, length], which begin with BOS, with an EOS
        after it, has the log-probability ``log_p`` [b, m].
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
        """Take tokens [n, length] where nothing is finished."""
        length = tokens.size(1)
        nothing = self.scores[rows].isneginf()[:, None]
        self.tokens[rows, :length] = torch.where(nothing, tokens, self.tokens[rows, :length])


def _rows_of(tokens: Tensor, origin: Tensor) -> Tensor:
    """tokens [b, n, t], origin [b, m] -> [b, m, t]: hypothesis ``origin`` of each sentence."""
    return tokens.gather(1, origin[:, :, None].expand(-1, -1, tokens.size(2)))


def _log_probabilities(
    model: Model, memory: Tensor, source: Tensor, token: Tensor, cache: Cache
) -> Tensor:
    """Log-probabilities [n, v] of the token after ``token`` [n, 1]; PAD and BOS are never next."""
    logits = model.decode(memory, source, token, cache)[:, -1]
    log_p = logits.float().log_softmax(dim=-1)
    # One by one: a list of columns would be copied to the device at every step.
    for never in (PAD, BOS):
        log_p[:, never].fill_(-torch.inf)
    return log_p


def _to_lists(tokens: Tensor) -> Translations:
    """tokens [b, t] -> the ids of each row before the first EOS or PAD."""
    return [list(takewhile(lambda token: token not in (EOS, PAD), row)) for row in tokens.tolist()]
