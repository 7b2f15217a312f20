"""Activation checkpointing: the same numbers from less memory."""

from collections import Counter
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from schemas.config.model import Transformer
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.registry import build_model
from transformer_core.techniques.recomputation import recomputing

VOCABULARY = 31


def model(checkpoint: str, dropout: float = 0.1, norm: str = "pre") -> torch.nn.Module:
    torch.manual_seed(0)
    spec = Transformer(
        d_model=16, d_ff=32, heads=2, dropout=dropout, norm=norm, checkpoint=checkpoint
    )
    return build_model(spec, VOCABULARY)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    source, target = (torch.randint(3, VOCABULARY, (4, 6)) for _ in range(2))
    source[2, 3:] = PAD
    return source, target


def step(checkpoint: str, norm: str = "pre") -> tuple[torch.Tensor, list[torch.Tensor]]:
    net = model(checkpoint, norm=norm)
    torch.manual_seed(2)  # dropout: the second computation must drop what the first dropped
    logits = net(*batch())
    logits.square().sum().backward()
    return logits.detach(), [p.grad for p in net.parameters()]


@pytest.mark.parametrize(
    ("kind", "norm"),
    [("layers", "pre"), ("layers", "post"), ("alternate", "pre"), ("products", "pre")],
)
def test_losses_and_gradients_are_the_same_to_the_last_bit(kind, norm):
    (logits, gradients), (plain, expected) = step(kind, norm), step("none", norm)
    assert torch.equal(logits, plain)
    for one, other in zip(gradients, expected, strict=True):
        assert torch.equal(one, other)


def saved_bytes(checkpoint: str) -> int:
    """What autograd keeps of a forward pass, each piece of memory once."""
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    net = model(checkpoint)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = net(*batch())
    weights = sum(p.nbytes for p in net.parameters())
    return sum(storages.values()) - weights if logits.requires_grad else 0


def test_the_forward_pass_keeps_less():
    assert saved_bytes("layers") < saved_bytes("none") / 3
    assert saved_bytes("layers") < saved_bytes("alternate") < saved_bytes("none")


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("kind", "number", "products", "activations"),
    # Of two products, the second is not computed again: nothing in backward needs its result.
    [
        ("none", 0, 2, 1),
        ("layers", 0, 3, 2),
        ("alternate", 0, 3, 2),
        ("alternate", 1, 2, 1),
        ("products", 0, 2, 2),
    ],
)
def test_what_is_computed_twice(kind, number, products, activations):
    layer = nn.Sequential(nn.Linear(8, 8, bias=False), nn.GELU(), nn.Linear(8, 8, bias=False))
    x = torch.randn(4, 8, requires_grad=True)
    with Counting() as plain:
        layer(x).sum().backward()
    with Counting() as counted:
        recomputing(kind, number, layer)(x).sum().backward()
    assert counted.calls["mm"] == plain.calls["mm"] - 2 + products
    assert counted.calls["gelu"] == activations


def test_nothing_is_computed_twice_without_gradients(monkeypatch):
    net = model("layers").eval()

    monkeypatch.setattr(
        "torch.utils.checkpoint.checkpoint",
        Mock(side_effect=AssertionError("checkpointed without gradients")),
    )
    with torch.no_grad():
        assert net(*batch()).shape == (4, 6, VOCABULARY)
