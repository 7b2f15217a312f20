"""What the small programs share: tokens, a small language model, and which of the two to run."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional

FAULTY = "faulty" in sys.argv
STEPS, WORDS, LENGTH, BATCH = 14, 40, 16, 8


def tokens(
    rows: int = BATCH, length: int = LENGTH, generator: torch.Generator | None = None
) -> Tensor:
    """Random walks over words, which a model can learn a little."""
    steps = torch.randint(1, 6, (rows, length), generator=generator)
    return 1 + (torch.randint(0, WORDS, (rows, 1), generator=generator) + steps.cumsum(1)) % (
        WORDS - 1
    )


def prompts(rows: int, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Tokens and their targets, of which a prompt of another length in each row is left out."""
    row = tokens(rows, length + 1)
    targets = row[:, 1:].clone()
    for number in range(rows):
        targets[number, : int(torch.randint(0, length - 2, ()))] = -100
    return row[:, :-1], targets


class Attention(nn.Module):
    """Attention with two heads over earlier places, and a mask besides."""

    def __init__(self, width: int = 32, causal: bool = True) -> None:
        super().__init__()
        self.qkv, self.out, self.causal = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            causal,
        )

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

    def __init__(self, width: int = 32, drop: float = 0.0, causal: bool = True) -> None:
        super().__init__()
        self.attention = Attention(width, causal)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.drop(self.attention(self.first(x), mask))
        return x + self.drop(self.outer(functional.gelu(self.inner(self.second(x)))))


class Model(nn.Module):
    """A language model with two blocks."""

    def __init__(self, drop: float = 0.0, causal: bool = True, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(WORDS, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, drop, causal) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def next_token(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy of all places that count."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)


def optimize(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{float(loss):.6f}")
