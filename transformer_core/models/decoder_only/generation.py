"""Text from a language model: the most probable next token, or one that is drawn."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from schemas.config.decoder_only import Sampling
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD
from transformer_core.models.interface import LanguageModel


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_length: int,
    sampling: Sampling | None = None,
) -> list[list[int]]:
    """What follows each of ``prompts``, without its EOS: lists of token ids.

    A text ends with EOS or after ``max_length`` tokens, EOS included; it leaves the batch. Without
    ``sampling`` each token is the most probable one. What is drawn depends on the seed, the prompt
    and its place in the list, not on the other prompts. PAD and BOS are never next. Not for shards:
    FSDP gathers weights in the forward pass only. ValueError if the model is in training mode, or
    if a prompt has no token.
    """
    if model.training:
        raise ValueError("the model is in training mode, where dropout is random: call eval()")
    if not all(prompts):
        raise ValueError("a prompt has no token: begin it with BOS")
    if not prompts or max_length < 1:
        return [[] for _ in prompts]
    device = next(model.parameters()).device
    tokens, real = _left_padded(prompts, device)
    # One number a prompt and step, drawn on the host: the same text on every device.
    generator = torch.Generator().manual_seed(sampling.seed if sampling else 0)
    rows, cache = torch.arange(len(prompts), device=device), model.new_cache()
    found: list[list[int]] = [[] for _ in prompts]
    for _ in range(max_length):
        draws = torch.rand(len(prompts), generator=generator, dtype=torch.float64).to(device)
        logits = model.step(tokens, real, cache).float()
        # One by one: a list of columns would be copied to the device at every step.
        for never in (PAD, BOS):
            logits[:, never].fill_(-torch.inf)
        token = _next(logits, draws[rows], sampling)
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


def _next(logits: Tensor, draws: Tensor, sampling: Sampling | None) -> Tensor:
    """logits [b, v] and numbers [b] in 0 ... 1 -> tokens [b]."""
    if sampling is None:
        return logits.argmax(-1)
    kept = min(sampling.top_k or logits.size(-1), logits.size(-1))
    top, index = logits.topk(kept)
    cumulated = (top.double() / sampling.temperature).softmax(-1).cumsum(-1)
    # The first whose share of the probability, added to all before, is beyond the draw.
    place = torch.searchsorted(cumulated, draws[:, None] * cumulated[:, -1:], right=True)
    return index.gather(-1, place.clamp(max=kept - 1)).squeeze(-1)


def _left_padded(
    prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Tokens [b, n] that all end in the last column, and where they are real: None for all."""
    longest = max(map(len, prompts))
    padded = [[PAD] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    tokens = torch.tensor(padded, device=device)
    if min(map(len, prompts)) == longest:
        return tokens, None
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    column = torch.arange(longest, device=device)
    return tokens, column >= (longest - lengths)[:, None]


def seen_in_decoding(real: Tensor, start: int) -> Tensor:
    """Mask [b, 1, n, m] of the tokens from ``start`` on, ``real`` [b, m]: what is before a token
    and real; padding sees itself, since a softmax over nothing is not a number."""
    m = real.size(1)
    place: Any = torch.arange(m, device=real.device)
    before = place[start:, None] >= place
    itself = place[start:, None] == place
    return ((before & real[:, None]) | itself)[:, None]
