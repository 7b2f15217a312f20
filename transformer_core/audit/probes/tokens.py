"""Tokens among the arguments of a call, and the targets that are tokens of the input."""

import inspect
from typing import Any

import torch
from torch import Tensor

from transformer_core.audit.replay import Call
from transformer_core.tune.nested import mapped

NO_TOKENS = "no input has integer tokens with two axes, samples and places"
NO_LOSS = "no loss of the tokens is seen"
OTHER_TARGETS = "the targets are not tokens of the input, or too few of them count"
MATCH = 0.98
"""Targets are the tokens at an offset if at least this share of them are equal."""


def named(call: Call) -> dict[str, Any]:
    """Arguments of a call by name, also those that the model takes as ``*args`` and ``**kwargs``."""
    try:
        bound = inspect.signature(call.inner.forward).bind(*call.args, **call.kwargs)
    except (TypeError, ValueError):
        return dict(call.kwargs)
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found |= {f"{name}[{number}]": each for number, each in enumerate(value)}
        else:
            found |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return found


def bound(call: Call) -> dict[str, Any]:
    """Arguments of a call by name, with those in dictionaries."""
    found: dict[str, Any] = {}
    for name, value in named(call).items():
        found |= value if isinstance(value, dict) else {name: value}
    return found


def integers(call: Call) -> list[Tensor]:
    """The tokens among the inputs: integers with two axes, the second longer than 1."""
    return [value for name, value in bound(call).items() if is_tokens(name, value)]


def is_tokens(name: str, value: Any) -> bool:
    skipped = ("mask", "position", "segment", "type", "document", "seq_idx")
    return (
        isinstance(value, Tensor)
        and value.dtype in (torch.int64, torch.int32)
        and value.dim() == 2
        and value.shape[1] > 1
        and not any(word in name.lower() for word in skipped)
    )


def swapped(call: Call, old: Tensor, new: Tensor) -> Any:
    return mapped((call.args, call.kwargs), lambda t: new if t is old else t)


def shift_of(line: Tensor, wanted: Tensor) -> int | None:
    """The offset of the targets in the tokens: wanted[:, i] = line[:, i + offset]. None if there is
    none."""
    shares: dict[int, float] = {}
    for shift in range(4):
        length = min(line.shape[1] - shift, wanted.shape[1])
        if length < 2:
            continue
        target, tokens = wanted[:, :length], line[:, shift : shift + length]
        counted = target >= 0
        if int(counted.sum()) >= 8:
            shares[shift] = float((target == tokens)[counted].float().mean())
    if not shares:
        return None
    best = max(shares, key=lambda s: shares[s])
    others = [share for shift, share in shares.items() if shift != best]
    if shares[best] < MATCH or max(others, default=0.0) > 0.9:
        return None
    return best
