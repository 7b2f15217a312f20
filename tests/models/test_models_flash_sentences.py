"""Models whose attention takes sentences of any lengths, with a stand-in for the GPU kernel."""

from itertools import pairwise

import pytest
import torch

from tests.models.test_models_packing import (
    assert_equal,
    build,
    loss_and_gradients,
    packed_batch,
    padded_batch,
    pairs,
)
from transformer_core.models import attention, sublayers
from transformer_core.models.attention import flash_over_sentences, reference_attention
from transformer_core.models.decoding import beam_search
from transformer_core.models.device_kind import laid_out_for

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
    batch = packed_batch(*pairs())[0] if packed else padded_batch()
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
