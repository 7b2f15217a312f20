"""Computing on real tokens only against computing on padding, too."""

import pytest
import torch

from schemas.config.model import Transformer
from tests.models.test_models_packing import DEVICES, KINDS, build, padded_and_packed, pairs, ragged
from transformer_core.data.batching.collate import collate
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD
from transformer_core.models.loss import token_loss_sum
from transformer_core.models.registry import build_model

SOURCE = torch.tensor([[7, 8, EOS, 9, EOS], [5, EOS, PAD, PAD, PAD]])
TARGET = torch.tensor([[BOS, 6, BOS, PAD], [BOS, 6, 7, 8]])


def unpadded(blocks):
    return {"tokens": {"kind": "unpadded", "blocks": blocks}}


def loss_and_gradients(model, batch):
    logits = model(batch.source, batch.target_input)
    loss = token_loss_sum(logits, batch.target_output, 0.1)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def assert_equal(ours, expected):
    torch.testing.assert_close(ours[0], expected[0], rtol=1e-5, atol=1e-4)
    for name, gradient in expected[1].items():
        torch.testing.assert_close(
            ours[1][name], gradient, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS, ids=["sdpa", "reference", "post"])
@pytest.mark.parametrize("blocks", [1, 3, 100])
def test_loss_and_gradients_are_those_of_padded_rows(blocks, kind, device):
    batch = collate(*map(ragged, pairs())).to(device)
    assert (batch.source == PAD).any()
    expected = loss_and_gradients(build(False, device, **kind), batch)
    ours = loss_and_gradients(build(False, device, **kind, **unpadded(blocks)), batch)
    assert_equal(ours, expected)


def test_checkpointed_layers_compute_the_same():
    batch = collate(*map(ragged, pairs()))
    expected = loss_and_gradients(build(False), batch)
    ours = loss_and_gradients(build(False, checkpoint="layers", **unpadded(2)), batch)
    assert_equal(ours, expected)


@pytest.mark.parametrize(("packed", "multiple"), [(False, 1), (False, 16), (True, 16)])
def test_only_real_tokens_are_computed_and_what_fills_a_list_up(packed, multiple):
    padded, in_rows, _ = padded_and_packed(*pairs())
    expected = loss_and_gradients(build(False), padded)
    tokens = {"kind": "unpadded", "blocks": 2, "row_multiple": multiple}
    model, rows = build(packed, tokens=tokens), []
    for layer in (*model.encoder, *model.decoder):
        layer.register_forward_hook(lambda module, inputs, result: rows.append(result.size(1)))
    assert_equal(loss_and_gradients(model, in_rows if packed else padded), expected)
    real = [int((side != PAD).sum()) for side in (padded.source, padded.target_input)]
    assert any(n % 16 for n in real), "nothing would have to be filled"
    assert rows == [-(-n // multiple) * multiple for n in real for _ in range(2)]


def test_evaluation_takes_padded_rows_as_ever():
    batch = collate(*map(ragged, pairs()))
    ours, expected = build(False, **unpadded(2)).eval(), build(False).eval()
    assert torch.equal(
        ours(batch.source, batch.target_input), expected(batch.source, batch.target_input)
    )


def test_tensors_without_values_pass_as_if_nothing_were_padding():
    with torch.device("meta"):
        spec = {"d_model": 16, "d_ff": 32, "heads": 4} | unpadded(2)
        model = build_model(Transformer.model_validate(spec), 40)
        batch = torch.ones(3, 5, dtype=torch.int64)
        logits = model(batch, batch)
        logits.sum().backward()
        assert logits.shape == (3, 5, 40)


@pytest.mark.parametrize("qkv", ["fused", "separate"])
@pytest.mark.parametrize("more", [{}, unpadded(2), {"checkpoint": "layers"}], ids=str)
def test_one_product_for_the_memory_of_all_layers_computes_the_same(qkv, more):
    batch, options = collate(*map(ragged, pairs())), {"qkv": {"kind": qkv}, **more}
    expected = loss_and_gradients(build(False, **options), batch)
    model, products = build(False, memory_products="together", **options), []
    for layer in model.decoder:
        project = layer.cross_attention.project_memory
        project.register_forward_hook(lambda *_: products.append("own"))
    assert_equal(loss_and_gradients(model, batch), expected)
    assert not products, "no layer projects the memory for itself"
