"""FLOPs of a model: the count from lengths against torch's count of the operators."""

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from schemas.config.model import (
    AnyModel,
    DecoderOnly,
    HuggingFace,
    ImportedModel,
    TorchTransformer,
    Transformer,
)
from transformer_core.data.tokenizing.special_tokens import EOS
from transformer_core.decide.utilisation import Lengths, forward_flops, training_flops
from transformer_core.models.objective import Objective
from transformer_core.models.registry import build_model

SIZES = {
    "encoder_layers": 2,
    "decoder_layers": 3,
    "d_model": 24,
    "d_ff": 40,
    "heads": 2,
    "dropout": 0.0,
}
VOCABULARY = 50
ROWS, SOURCE, TARGET = 3, 7, 5


def one_batch(rows: int, s: int, t: int) -> Lengths:
    """Sums over ``rows`` pairs of equal lengths."""
    sums = (rows * value for value in (s, t, s * s, t * t, s * t))
    return Lengths(*(np.array([value], np.int64) for value in sums))


def counted(model: AnyModel) -> tuple[int, int]:
    """FLOPs of forward and of both passes as torch counts them."""
    objective = Objective(build_model(model, VOCABULARY), 0.1)
    source, given, wanted = (
        torch.full((ROWS, width), EOS + 1) for width in (SOURCE, TARGET, TARGET)
    )
    # The math kernel: torch counts nothing of the CPU's flash kernel.
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            objective(source, given, wanted)
        with FlopCounterMode(display=False) as both:
            objective(source, given, wanted).backward()
    return forward.get_total_flops(), both.get_total_flops()


@pytest.mark.parametrize(
    "model",
    [
        Transformer(**SIZES),
        Transformer(**SIZES, tied_embeddings=False, norm="post"),
        Transformer(**SIZES, qkv={"kind": "separate"}, attention={"kind": "reference"}),
        TorchTransformer(kind="torch_nn", **SIZES),
        HuggingFace(kind="huggingface", **SIZES),
    ],
    ids=["own", "untied", "separate", "torch_nn", "huggingface"],
)
def test_the_count_agrees_with_torch(model):
    if model.kind == "huggingface":
        pytest.importorskip("transformers")
    lengths = one_batch(ROWS, SOURCE, TARGET)
    forward, both = counted(model)
    assert forward_flops(model, VOCABULARY, lengths) == [forward]
    assert training_flops(model, VOCABULARY, lengths) == [both]


@pytest.mark.parametrize("fields", [{}, {"kv_heads": 1}, {"feed_forward": {"kind": "relu"}}])
def test_the_count_of_a_decoder_agrees_with_torch(fields):
    model = DecoderOnly(layers=2, d_model=24, d_ff=40, heads=2, **fields)
    built = build_model(model, VOCABULARY)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        built.logits(torch.full((ROWS, TARGET), EOS + 1))
    lengths = one_batch(ROWS, 0, TARGET)
    assert forward_flops(model, VOCABULARY, lengths) == [forward.get_total_flops()]


def test_the_flops_of_a_users_model_are_unknown():
    model = ImportedModel(kind="import", factory="my_module:build", **SIZES)
    with pytest.raises(ValueError, match="my_module:build are not known"):
        training_flops(model, VOCABULARY, one_batch(1, 1, 1))
