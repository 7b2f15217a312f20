"""Several pairs in a row, and real tokens in a list, give the results of pairs in padded rows; also
with attention over sentences of any lengths, by a stand-in for the GPU kernel."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from schemas.config.model import ImportedModel, TorchTransformer, Transformer
from transformer_core.data.arrays import Ragged
from transformer_core.data.batching.collate import collate, collate_packed
from transformer_core.data.batching.window_rows import pack
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models import attention, sublayers
from transformer_core.models.attention import flash_over_sentences, reference_attention
from transformer_core.models.decoding import beam_search
from transformer_core.models.device_kind import laid_out_for
from transformer_core.models.loss import token_loss_sum
from transformer_core.models.registry import build_model

V = 40
KINDS = {
    kind: {"attention": {"kind": attention}, "qkv": {"kind": qkv}, "norm": norm}
    for kind, attention, qkv, norm in [
        ("sdpa", "sdpa", "fused", "pre"),
        ("reference", "reference", "separate", "post"),
        ("post", "sdpa", "separate", "post"),
    ]
} | {"recomputed": {"checkpoint": "layers"}}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
every_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)


def build(packed=False, device="cpu", **changes):
    torch.manual_seed(0)
    spec = {"d_model": 16, "d_ff": 32, "heads": 4, "dropout": 0.0} | changes
    model = build_model(Transformer.model_validate(spec), V, packed).to(device)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((torch.randn(parameter.shape, generator=generator) * 0.2).to(device))
    return model


def unpadded(blocks):
    return {"tokens": {"kind": "unpadded", "blocks": blocks}}


def pairs():
    random = np.random.default_rng(0)
    return [[random.integers(4, V, random.integers(1, 9)) for _ in range(9)] for _ in "st"]


def ragged(rows):
    return Ragged.join(rows, np.array([len(row) for row in rows], np.int32))


def padded_batch():
    return collate(*map(ragged, pairs()))


def packed_batch():
    """The same pairs, some of which share a row."""
    source, target = map(ragged, pairs())
    lengths = [side.lengths.astype(np.int64) + 1 for side in (source, target)]
    packing = pack(*lengths, np.array([0, len(source.lengths)]), 20)
    shape = (int(packing.rows[0]), int(packing.source_width[0]), int(packing.target_width[0]))
    columns = packing.source_column, packing.target_column
    assert shape[0] < len(source.lengths)
    return collate_packed(source, target, packing.row, columns, shape)


def loss_and_gradients(model, batch):
    loss = token_loss_sum(model(batch.source, batch.target_input), batch.target_output, 0.1)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def assert_equal(ours, expected):
    torch.testing.assert_close(ours[0], expected[0], rtol=1e-5, atol=1e-4)
    for name, gradient in expected[1].items():
        torch.testing.assert_close(
            ours[1][name], gradient, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


@every_device
@every_kind
def test_loss_and_gradients_of_packed_rows_are_those_of_padded_rows(kind, device):
    packed = packed_batch()
    expected = loss_and_gradients(build(False, device, **kind), padded_batch().to(device))
    ours = loss_and_gradients(build(True, device, **kind), packed.to(device))
    assert_equal(ours, expected)


def test_rows_of_one_pair_are_a_special_case():
    """As in validation, a packed model takes padded rows, and rows that stand for no pair."""
    for batch in (padded_batch(), collate(ragged([]), ragged([]))):
        expected = build()(batch.source, batch.target_input)
        found = build(True)(batch.source, batch.target_input)
        real = batch.target_output != PAD
        torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-5)
        assert found.isfinite().all()


@pytest.mark.parametrize(
    "spec",
    [
        TorchTransformer(kind="torch_nn", d_model=16, heads=2),
        ImportedModel(kind="import", factory="docs.examples.own_model:build"),
    ],
    ids=lambda spec: spec.kind,
)
def test_other_models_are_refused(spec):
    with pytest.raises(ValueError, match=f"kind {spec.kind} cannot separate the pairs of a row"):
        build_model(spec, V, packed=True)


@every_device
@every_kind
@pytest.mark.parametrize("blocks", [1, 3, 100])
def test_loss_and_gradients_of_unpadded_tokens_are_those_of_padded_rows(blocks, kind, device):
    batch = padded_batch().to(device)
    assert (batch.source == PAD).any()
    expected = loss_and_gradients(build(False, device, **kind), batch)
    ours = loss_and_gradients(build(False, device, **kind, **unpadded(blocks)), batch)
    assert_equal(ours, expected)


@pytest.mark.parametrize(("packed", "multiple"), [(False, 1), (False, 16), (True, 16)])
def test_only_real_tokens_and_fillers_are_computed(packed, multiple):
    padded = padded_batch()
    expected = loss_and_gradients(build(), padded)
    tokens = {"kind": "unpadded", "blocks": 2, "row_multiple": multiple}
    model, rows = build(packed, tokens=tokens), []
    for layer in (*model.encoder, *model.decoder):
        layer.register_forward_hook(lambda module, inputs, result: rows.append(result.size(1)))
    batch = packed_batch() if packed else padded
    assert_equal(loss_and_gradients(model, batch), expected)
    real = [int((side != PAD).sum()) for side in (padded.source, padded.target_input)]
    assert any(n % 16 for n in real), "nothing would have to be filled"
    assert rows == [-(-n // multiple) * multiple for n in real for _ in range(2)]


def test_evaluation_still_takes_padded_rows():
    batch = padded_batch()
    ours, expected = build(**unpadded(2)).eval(), build().eval()
    assert torch.equal(
        ours(batch.source, batch.target_input), expected(batch.source, batch.target_input)
    )


def test_tensors_without_values_count_as_full_rows():
    with torch.device("meta"):
        spec = {"d_model": 16, "d_ff": 32, "heads": 4} | unpadded(2)
        model = build_model(Transformer.model_validate(spec), V)
        batch = torch.ones(3, 5, dtype=torch.int64)
        logits = model(batch, batch)
        logits.sum().backward()
        assert logits.shape == (3, 5, V)


@pytest.mark.parametrize(
    ("qkv", "more"),
    [("fused", {}), ("separate", unpadded(2)), ("fused", {"checkpoint": "layers"})],
)
def test_one_product_for_the_memory_of_all_layers_computes_the_same(qkv, more):
    batch, options = padded_batch(), {"qkv": {"kind": qkv}, **more}
    expected = loss_and_gradients(build(**options), batch)
    model, products = build(memory_products="together", **options), []
    for layer in model.decoder:
        project = layer.cross_attention.project_memory
        project.register_forward_hook(lambda *_: products.append("own"))
    assert_equal(loss_and_gradients(model, batch), expected)
    assert not products, "no layer projects the memory for itself"


FLASH = {"attention": {"kind": "sdpa", "backend": "flash"}}


def stand_in(q, k, v, starts, longest, causal, dropout):
    """Computes what the kernel does, sentence by sentence."""
    found = []
    for side, bound, x in zip(starts, longest, (q, k), strict=True):
        assert side.dtype == torch.int32
        assert side[-1] == len(x), "a row beyond the last sentence"
        assert bound >= side.diff().max()
    for (a, b), (c, d) in zip(*(pairwise(s) for s in starts), strict=True):
        one = (x.transpose(0, 1)[None] for x in (q[a:b], k[c:d], v[c:d]))
        found.append(reference_attention(*one, None, causal, dropout)[0].transpose(0, 1))
    return torch.cat(found)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_of_a_gpu_computes_what_its_stand_in_does(causal):
    starts = torch.tensor([0, 5, 6, 9], dtype=torch.int32, device="cuda")
    torch.manual_seed(0)
    tensors = [torch.randn(9, 3, 16, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    sentences = (starts, starts), (5, 5), causal, 0.0
    ours = flash_over_sentences(*tensors, *sentences)
    expected = stand_in(*(x.float() for x in tensors), *sentences)
    torch.testing.assert_close(ours.float(), expected, rtol=0.03, atol=0.03)


@pytest.fixture
def calls(monkeypatch):
    made = []
    monkeypatch.setattr(
        sublayers, "flash_over_sentences", lambda *args: made.append(1) or stand_in(*args)
    )
    return made


@pytest.fixture
def torchs(monkeypatch):
    """For each call of torch's attention, whether it has a mask, and whether it may use another
    kernel than FlashAttention."""
    made = []
    real = attention.F.scaled_dot_product_attention

    def watched(*args, **kwargs):
        others = torch.backends.cuda.mem_efficient_sdp_enabled()
        made.append((kwargs["attn_mask"] is not None, others))
        return real(*args, **kwargs)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", watched)
    return made


@pytest.mark.parametrize("row_multiple", [1, 16])
@pytest.mark.parametrize("packed", [False, True])
def test_training_and_validation_compute_what_padded_rows_compute(calls, packed, row_multiple):
    batch = packed_batch() if packed else padded_batch()
    expected = loss_and_gradients(build(), padded_batch())
    model = build(packed, **FLASH, tokens={"kind": "unpadded", "row_multiple": row_multiple})
    with laid_out_for("cuda"):
        assert_equal(loss_and_gradients(model, batch), expected)
        trained = len(calls)
        model.eval()
        loss_and_gradients(model, batch)  # the same kernel in evaluation
    assert len(calls) == 2 * trained == 2 * 6


def test_decoding_masks_its_padding_and_takes_another_kernel(calls, torchs):
    source = padded_batch().source
    expected = beam_search(build().eval(), source, 2, 0.6, 8)
    torchs.clear()
    model = build(**FLASH, tokens={"kind": "unpadded"}).eval()
    with laid_out_for("cuda"):
        assert beam_search(model, source, 2, 0.6, 8) == expected
    assert (True, True) in torchs
    assert not calls


@pytest.mark.parametrize("backend", ["flash", "math"])
def test_over_padding_training_takes_the_named_kernel_and_evaluation_one_with_a_mask(
    torchs, backend
):
    batch = padded_batch()
    model = build(attention={"kind": "sdpa", "backend": backend})
    with laid_out_for("cuda"):
        model(batch.source, batch.target_input)
        assert not any(others for _, others in torchs)
        torchs.clear()
        model.eval()(batch.source, batch.target_input)
    assert {others for _, others in torchs} == {backend == "flash"}
