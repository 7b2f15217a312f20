"""A typical script that trains a small language model, on random text, as input for tune-training.

It imports nothing of the project.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, LAYERS, CONTEXT, ROWS, STEPS = 8192, 512, 8, 6, 256, 16, 4000


class Block(nn.Module):
    """Causal attention and feed-forward, each on a normalized input."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).transpose(1, 3)
        q, k, v = qkv.unbind(2)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(heads.transpose(1, 2).flatten(2))
        return x + self.outer(F.gelu(self.inner(self.norms[1](x))))


class Model(nn.Module):
    """Maps tokens to logits of the next tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(STEPS):
        rows = torch.randint(VOCABULARY, (ROWS, CONTEXT + 1), device=device)
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item(), flush=True)


if __name__ == "__main__":
    main()
