"""Activation checkpointing: the same numbers from less memory."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from schemas.config.model import DecoderOnly, Transformer
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.registry import build_model
from transformer_core.techniques.recomputation import kept, recomputing

VOCABULARY = 31
SIZES = {"d_model": 16, "d_ff": 32, "heads": 2, "dropout": 0.2}


def model(checkpoint: str, schema: type[Any] = Transformer, **fields: Any) -> nn.Module:
    torch.manual_seed(0)
    return build_model(schema(**SIZES, checkpoint=checkpoint, **fields), VOCABULARY)


def batch() -> list[Tensor]:
    torch.manual_seed(1)
    source, target = (torch.randint(3, VOCABULARY, (4, 6)) for _ in range(2))
    source[2, 3:] = PAD
    return [source, target]


def step(net: nn.Module) -> list[Tensor]:
    torch.manual_seed(2)  # dropout: the second computation must drop what the first dropped
    result = net(*batch())
    result.square().sum().backward()
    return [result.detach(), *(p.grad for p in net.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kind", ["layers", "alternate", "products"])
@pytest.mark.parametrize(
    ("schema", "fields"),
    [(Transformer, {"norm": "pre"}), (Transformer, {"norm": "post"}), (DecoderOnly, {"layers": 2})],
    ids=["pre", "post", "decoder_only"],
)
def test_losses_and_gradients_are_the_same_to_the_last_bit(kind, schema, fields):
    found, expected = (step(model(each, schema, **fields)) for each in (kind, "none"))
    assert all(map(torch.equal, found, expected))
    assert len(found) == len(expected) > 1


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["layers", "products"])
def test_gradients_are_the_same_on_a_gpu(kind):
    """There the kernel of attention drops weights itself."""

    def gradients(checkpoint: str) -> list[Tensor]:
        net, given = model(checkpoint).cuda(), [each.cuda() for each in batch()]
        torch.manual_seed(2)
        net(*given).square().sum().backward()
        return [p.grad for p in net.parameters() if p.grad is not None]

    for ours, plain in zip(gradients(kind), gradients("none"), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


ATEN = torch.ops.aten
BY_KERNEL = [
    (ATEN._scaled_dot_product_flash_attention.default, ()),
    (ATEN._scaled_dot_product_efficient_attention.default, (None, True)),
    (ATEN._scaled_dot_product_cudnn_attention.default, (None, True)),
]


@pytest.mark.parametrize(("kernel", "mask"), BY_KERNEL, ids=str)
def test_attention_that_drops_is_computed_again(kernel, mask):
    """Skipped, it would draw no numbers, and later dropouts of the layer would draw others."""
    x = torch.empty(1, 1, 8, 8, device="meta")
    again = CheckpointPolicy.PREFER_RECOMPUTE
    assert kept(None, kernel, x, x, x, *mask, 0.1, True) is again
    assert kept(None, kernel, x, x, x, *mask, dropout_p=0.1) is again
    for rest in ((), (0.0, True)):  # torch leaves out last arguments that are the default
        assert kept(None, kernel, x, x, x, *mask, *rest) is CheckpointPolicy.MUST_SAVE
    assert kept(None, ATEN.mm.default, x, x) is CheckpointPolicy.MUST_SAVE
    assert kept(None, ATEN.gelu.default, x) is again


def kept_bytes(forward: Callable[[], Tensor]) -> int:
    """Bytes that autograd saves in a forward pass, counting each piece of memory once."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()  # keeps them alive until they are counted
    assert result.requires_grad
    return sum(storages.values())


def test_the_forward_pass_keeps_less():
    none, alternate, layers = (
        kept_bytes(lambda net=net: net(*batch())) - sum(p.nbytes for p in net.parameters())
        for net in map(model, ("none", "alternate", "layers"))
    )
    assert layers < none / 3
    assert layers < alternate < none


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("kind", "number", "products", "activations"),
    # The second product is never computed again, since backward does not need its result.
    [
        ("none", 0, 2, 1),
        ("layers", 0, 3, 2),
        ("alternate", 0, 3, 2),
        ("alternate", 1, 2, 1),
        ("products", 0, 2, 2),
    ],
)
def test_which_operations_are_computed_twice(kind, number, products, activations):
    layer = nn.Sequential(nn.Linear(8, 8, bias=False), nn.GELU(), nn.Linear(8, 8, bias=False))
    x = torch.randn(4, 8, requires_grad=True)
    with Counting() as forward:
        recomputing(kind, number, layer)(x).sum().backward()
    # Four belong to the backward pass: gradients of two weights and of two inputs.
    assert forward.calls["mm"] == 4 + products
    assert forward.calls["gelu"] == activations


def test_nothing_is_checkpointed_without_gradients():
    with torch.no_grad():
        assert recomputing("layers", 0, step) is step
