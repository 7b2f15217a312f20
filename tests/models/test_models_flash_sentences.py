"""Models whose attention takes sentences of any lengths, with a stand-in for the kernel of GPUs."""

from itertools import pairwise

import pytest
import torch

from schemas.config.model import SdpaAttention
from schemas.errors import Unsupported
from tests.models.test_models_packing import build, padded_and_packed, pairs, ragged
from tests.models.test_models_unpadded import assert_equal, loss_and_gradients
from transformer_core.data.batching.collate import collate
from transformer_core.models import attention, sublayers
from transformer_core.models.attention import flash_over_sentences, reference_attention
from transformer_core.models.decoding import beam_search
from transformer_core.models.device_kind import laid_out_for

FLASH = {"attention": {"kind": "sdpa", "backend": "flash"}}


def stand_in(q, k, v, starts, longest, causal, dropout):
    """The kernel, sentence by sentence. What no sentence covers is left as it was: no number."""
    found = []
    for side, x in zip(starts, (q, k), strict=True):
        assert side.dtype == torch.int32
        assert side[-1] == len(x), "a row beyond the last sentence"
    for bound, side in zip(longest, starts, strict=True):
        assert bound >= side.diff().max()
    for (a, b), (c, d) in zip(*(pairwise(s) for s in starts), strict=True):
        one = (
            x[begin:end].transpose(0, 1)[None]
            for x, begin, end in zip((q, k, v), (a, c, c), (b, d, d), strict=True)
        )
        found.append(reference_attention(*one, None, causal, dropout)[0].transpose(0, 1))
    return torch.cat(found)


@pytest.fixture
def calls(monkeypatch):
    made = []
    monkeypatch.setattr(
        sublayers, "flash_over_sentences", lambda *args: made.append(1) or stand_in(*args)
    )
    return made


@pytest.mark.parametrize("row_multiple", [1, 16])
@pytest.mark.parametrize("packed", [False, True])
def test_training_and_validation_compute_what_padded_rows_compute(calls, packed, row_multiple):
    padded, in_rows, _ = padded_and_packed(*pairs())
    batch = in_rows if packed else padded
    plain = build(False)
    expected = loss_and_gradients(plain, padded)
    model = build(packed, **FLASH, tokens={"kind": "unpadded", "row_multiple": row_multiple})
    with laid_out_for("cuda"):
        assert_equal(loss_and_gradients(model, batch), expected)
        trained = len(calls)
        model.eval()
        loss_and_gradients(model, batch)  # the same kernel where nothing is trained
    assert len(calls) == 2 * trained == 2 * 6


def test_decoding_masks_its_padding_and_takes_another_kernel(calls, monkeypatch):
    used = []
    real = attention.F.scaled_dot_product_attention
    monkeypatch.setattr(
        attention.F, "scaled_dot_product_attention",
        lambda *args, **kwargs: used.append(kwargs["attn_mask"] is None) or real(*args, **kwargs),
    )  # fmt: skip
    source = collate(*map(ragged, pairs())).source
    expected = beam_search(build(False).eval(), source, 2, 0.6, 8)
    used.clear()
    model = build(False, **FLASH, tokens={"kind": "unpadded"}).eval()
    with laid_out_for("cuda"):
        assert beam_search(model, source, 2, 0.6, 8) == expected
    assert False in used
    assert not calls


def test_over_padding_training_takes_the_named_kernel_or_none(monkeypatch):
    allowed = []
    real = attention.F.scaled_dot_product_attention

    def watched(*args, **kwargs):
        allowed.append(torch.backends.cuda.mem_efficient_sdp_enabled())
        return real(*args, **kwargs)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", watched)
    batch, model = collate(*map(ragged, pairs())), build(False, **FLASH)
    with laid_out_for("cuda"):
        model(batch.source, batch.target_input)
        assert {*allowed} == {False}
        allowed.clear()
        model.eval()(batch.source, batch.target_input)
        assert {*allowed} == {True}


@pytest.mark.parametrize("elements", [20, 264])
def test_heads_that_the_kernel_does_not_take_are_refused(elements):
    q = torch.zeros(4, 2, elements, dtype=torch.bfloat16)
    starts = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(Unsupported, match="multiple of 8"):
        flash_over_sentences(q, q, q, (starts, starts), (4, 4), False, 0.0)


def test_named_kernels_are_kept_in_decoding():
    for backend in ("auto", "efficient", "cudnn", "math"):
        spec = SdpaAttention(backend=backend)
        assert attention.in_decoding(spec) is spec
