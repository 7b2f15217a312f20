"""A small GPT that learns to write bytes, in plain PyTorch: python byte_gpt.py [FILE] [STEPS]"""

import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

CONTEXT, BATCH, WIDTH, HEADS, LAYERS, RATE = 128, 16, 192, 6, 4, 3e-4


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary=256, context=CONTEXT, width=WIDTH, heads=HEADS, layers=LAYERS):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x):
        place = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places(place))))

    @torch.no_grad()
    def write(self, text, count):
        x = torch.tensor([list(text.encode())])
        for _ in range(count):
            logits = self(x[:, -CONTEXT:])[:, -1]
            x = torch.cat([x, torch.multinomial(logits.softmax(-1), 1)], dim=1)
        return bytes(x[0].tolist()).decode(errors="replace")


def read(file):
    return torch.frombuffer(bytearray(Path(file).read_bytes()), dtype=torch.uint8).long()


def batches(data, seed, batch=BATCH, context=CONTEXT):
    """Endless pairs of inputs and targets, each [batch, context]."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(data) - context - 1, (batch,), generator=generator)
        rows = torch.stack([data[i : i + context + 1] for i in starts])
        yield rows[:, :-1], rows[:, 1:]


def loss_of(model, batch):
    x, y = batch
    logits = model(x)
    return F.cross_entropy(logits.view(-1, logits.size(-1)), y.reshape(-1))


def optimizer_of(parameters):
    return torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.1)


def main(file, steps):
    torch.manual_seed(1)
    model = GPT()
    optimizer = optimizer_of(model.parameters())
    data = batches(read(file), seed=1)
    began = time.perf_counter()
    for step in range(1, steps + 1):
        loss = loss_of(model, next(data))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0 or step == steps:
            speed = step * BATCH * CONTEXT / (time.perf_counter() - began)
            print(f"step {step}: loss {loss.item():.3f}, {speed:,.0f} bytes/s", flush=True)
    print(model.eval().write("import ", 100))


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    main(arguments.get(1, __file__), int(arguments.get(2, 100)))
