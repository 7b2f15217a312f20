"""Shared by the small programs: tokens, a small language model, and which of the two to run."""

import sys
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

FAULTY = "faulty" in sys.argv
STEPS, WORDS, LENGTH = 14, 40, 16
torch.manual_seed(1)


def tokens(rows: int = 8, length: int = LENGTH, generator: torch.Generator | None = None) -> Tensor:
    """Random walks over words, which a model can learn a little."""
    steps = torch.randint(1, 6, (rows, length), generator=generator).cumsum(1)
    return 1 + (torch.randint(0, WORDS, (rows, 1), generator=generator) + steps) % (WORDS - 1)


def prompts(rows: int, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Tokens and their targets, of which a prompt of another length in each row is left out."""
    row = tokens(rows, length + 1)
    targets = row[:, 1:].clone()
    for number in range(rows):
        targets[number, : int(torch.randint(0, length - 2, ()))] = -100
    return row[:, :-1], targets


class Attention(nn.Module):
    """Attention with two heads over earlier places, and a mask besides."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.causal = causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if self.causal:
            scores = scores.masked_fill(self.later(x.shape[1]), float("-inf"))
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))

    def later(self, length: int) -> Tensor:
        return torch.ones(length, length, dtype=torch.bool).triu(1)


class Block(nn.Module):
    """Attention and two linear layers."""

    def __init__(self, drop: float = 0.0, causal: bool = True) -> None:
        super().__init__()
        self.attention = Attention(causal)
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)
        self.inner, self.outer = nn.Linear(32, 64), nn.Linear(64, 32)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.drop(self.attention(self.first(x), mask))
        return x + self.drop(self.outer(functional.gelu(self.inner(self.second(x)))))


class Model(nn.Module):
    """A language model with two blocks."""

    def __init__(self, drop: float = 0.0, causal: bool = True) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(WORDS, 32), nn.Embedding(64, 32)
        self.blocks = nn.ModuleList(Block(drop, causal) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, WORDS)

    def forward(
        self, x: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        positions = torch.arange(x.shape[1]) if positions is None else positions
        h = self.embedding(x) + self.places(positions)
        for block in self.blocks:
            h = self.run(block, h, mask)
        return self.head(self.norm(h))

    def run(self, block: nn.Module, h: Tensor, mask: Tensor | None) -> Tensor:
        return block(h, mask)


class Padded(Model):
    """The same, called as in transformers: the mask tells padding from tokens."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return super().forward(input_ids, mask=attention_mask[:, None, None].bool())


class Pooled(nn.Module):
    """Classifies texts by attention over their places, if its softmax is over ``axis`` 1."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.embedding, self.query = nn.Embedding(WORDS, 32), nn.Linear(32, 1)
        self.head, self.axis = nn.Linear(32, 5), axis

    def forward(self, row: Tensor) -> Tensor:
        h = self.embedding(row)
        weights = self.query(h).softmax(self.axis)
        return self.head((weights * h).sum(1))


class TwoHeads(nn.Module):
    """Two layers and two output layers."""

    def __init__(self, inputs: int, activation: type[nn.Module], *outputs: int) -> None:
        super().__init__()
        inner, outer = nn.Linear(inputs, 32), nn.Linear(32, 32)
        self.body = nn.Sequential(inner, activation(), outer, activation())
        self.first, self.second = (nn.Linear(32, size) for size in outputs)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.first(h), self.second(h)


def next_token(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy of all places that count."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)


def loss_on(model: nn.Module, row: Tensor, reduction: str = "mean") -> Tensor:
    """Loss of the next tokens of a text."""
    return next_token(model(row[:, :-1]), row[:, 1:], reduction)


def optimize(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{float(loss):.6f}")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> None:
    """Some steps on new tokens."""
    for _ in range(steps):
        optimize(loss_on(model, tokens(8, 17)), optimizer)


def accumulate(
    losses: Iterable[Tensor], optimizer: torch.optim.Optimizer, divisor: int = 1
) -> None:
    """One step whose gradient is the sum of those of several losses, each divided by a number."""
    optimizer.zero_grad()
    seen = 0.0
    for loss in losses:
        (loss / divisor).backward()
        seen += float(loss)
    optimizer.step()
    print(f"{seen:.6f}")
