"""The user's cross-entropy in chunks: the same numbers, and never all logits at once."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_core.own_training import chunked_head
from transformer_core.own_training.chunked_head import with_chunked_head

V = 11


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, V)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 200, 8, generator=generator)
    y = torch.randint(V, (4, 200), generator=generator)
    y[1, 50:] = -100
    return x, y


Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "view": lambda z, y: F.cross_entropy(z.view(-1, z.size(-1)), y.view(-1)),
    "reshape to a shape": lambda z, y: F.cross_entropy(z.reshape(-1, V), y.reshape(-1)),
    "flatten": lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), label_smoothing=0.1),
    "sum": lambda z, y: F.cross_entropy(z.float().view(-1, V), y.view(-1), reduction="sum") / 7,
    "module": lambda z, y: nn.CrossEntropyLoss()(z.view(-1, z.shape[-1]), y.view(-1)),
}


def step(loss: Loss, chunked: bool) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(0)
    model = Model()
    if chunked:
        with_chunked_head(model, "head")
    x, y = data()
    found = loss(model(x), y)
    found.backward()
    return found.detach(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradients_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = step(LOSSES[name], chunked=False)
    shapes: list[int] = []
    real = F.linear

    def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if len(weight) == V:
            shapes.append(x.numel() // x.size(-1))
        return real(x, weight, bias)

    monkeypatch.setattr(F, "linear", linear)
    found = step(LOSSES[name], chunked=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert max(shapes) == chunked_head.ROWS
    assert sum(shapes) == 2 * 800  # forward, and once more in the backward pass


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y: F.cross_entropy(z.transpose(1, 2), y),
        lambda z, y: z.log_softmax(-1).mean(),
        lambda z, y: torch.log_softmax(z, -1).mean() + z[0, 0, 0],
        lambda z, y: F.cross_entropy(z.view(-1, V), y.view(-1), reduction="none").mean(),
    ],
)
def test_anything_else_takes_the_logits(loss: Loss) -> None:
    torch.testing.assert_close(step(loss, chunked=True), step(loss, chunked=False))


def test_evaluation_has_logits() -> None:
    model = Model()
    with_chunked_head(model, "head")
    assert isinstance(model.eval()(data()[0]), Tensor)


def test_another_part_is_refused() -> None:
    with pytest.raises(ValueError, match=r"task\.head = hed: .* no such part.*head"):
        with_chunked_head(Model(), "hed")
    with pytest.raises(ValueError, match=r"is a ReLU; remedy: name a torch\.nn\.Linear"):
        with_chunked_head(nn.Sequential(nn.ReLU()), "0")
