"""Attention: all kinds and CUDA's kernels agree, and the right kernel computes it, as far as a CPU can
tell."""

import itertools
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from schemas.config.model import SdpaAttention, TorchTransformer, Transformer
from schemas.errors import Unsupported
from transformer_core.models import attention
from transformer_core.models.attention import (
    ATTENTIONS,
    additive,
    build_attention,
    flash_over_sentences,
    reference_attention,
    takes_sentences,
)
from transformer_core.models.device_kind import laid_out_for
from transformer_core.models.registry import build_model

B, H, N, M, K = 2, 3, 4, 5, 8
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SWITCHES = {
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
}
kinds = pytest.mark.parametrize("kind", sorted(ATTENTIONS))
backends = pytest.mark.parametrize("backend", ["auto", *SWITCHES])


def tensors(n=N, m=M, dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    shapes = [(B, H, length, K) for length in (n, m, m)]
    return [torch.randn(shape).to(device, dtype).requires_grad_() for shape in shapes]


def padding(*lengths):
    return (torch.arange(M) < torch.tensor(lengths)[:, None])[:, None, None, :]


def by_hand(q, k, v, visible):
    """Attention query by query, over the keys that ``visible(b, i)`` lists."""
    result = torch.zeros(q.shape)
    for b, h, i in itertools.product(range(B), range(H), range(q.size(2))):
        keys = visible(b, i)
        scores = [(q[b, h, i] @ k[b, h, j]).item() / math.sqrt(K) for j in keys]
        total = sum(math.exp(s) for s in scores)
        for s, j in zip(scores, keys, strict=True):
            result[b, h, i] += math.exp(s) / total * v[b, h, j].detach()
    return result


@kinds
@pytest.mark.parametrize("case", ["all", "padding", "causal"])
def test_equals_attention_by_hand(kind, case):
    q, k, v = tensors(m=N if case == "causal" else M)
    lengths = (5, 2)
    mask = padding(*lengths) if case == "padding" else None
    visible = {
        "all": lambda b, i: range(M),
        "padding": lambda b, i: range(lengths[b]),
        "causal": lambda b, i: range(i + 1),
    }[case]
    result = ATTENTIONS[kind](q, k, v, mask, case == "causal", 0.0)
    torch.testing.assert_close(result, by_hand(q, k, v, visible), rtol=1e-5, atol=1e-5)


@kinds
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_hidden_rows_are_finite_in_every_type(kind, device, dtype, dropout):
    inputs = tensors(dtype=dtype, device=device)
    result = ATTENTIONS[kind](*inputs, padding(5, 0).to(device), False, dropout)
    result.float().sum().backward()
    assert result.dtype == dtype
    assert result.isfinite().all()
    assert all(x.grad.isfinite().all() for x in inputs)


@kinds
def test_a_hidden_key_weighs_nothing_in_fp16(kind):
    q, k, v = tensors(dtype=torch.float16)
    with torch.no_grad():
        # The largest scores of fp16: the fill must stay below every score.
        k[:, :, 2:] *= 4_000
        v[:, :, 2:] = 60_000
    result = ATTENTIONS[kind](q, k, v, padding(2, 2), False, 0.0)
    expected = ATTENTIONS[kind](q, k[:, :, :2], v[:, :, :2], None, False, 0.0)
    torch.testing.assert_close(result, expected, rtol=5e-3, atol=5e-3)


@kinds
def test_dropout_drops_attention_weights(kind):
    # With the identity as values the result is the matrix of weights itself.
    torch.manual_seed(0)
    q = torch.zeros(1, 1, 500, 64)
    k = torch.zeros(1, 1, 64, 64)
    v = torch.eye(64)[None, None]
    weights = ATTENTIONS[kind](q, k, v, None, False, 0.25)
    assert (weights == 0).float().mean().item() == pytest.approx(0.25, abs=0.015)
    kept = weights[weights != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 64 / 0.75))


@backends
def test_torch_only_chooses_among_the_kernels_of_the_backend(monkeypatch, backend):
    seen = []
    monkeypatch.setattr(
        attention.F,
        "scaled_dot_product_attention",
        lambda *_, dropout_p, **__: seen.append(
            (dropout_p, {name for name, on in SWITCHES.items() if on()})
        ),
    )
    attention.leave_out_cudnn()  # as building a model does
    attend = build_attention(SdpaAttention(backend=backend))
    with laid_out_for("cuda"):
        for dropout in (0.0, 0.1):  # the same kernels in training, validation and decoding
            attend(*tensors(), None, False, dropout)
    kernels = {"flash", "efficient", "math"} if backend == "auto" else {backend}
    assert seen == [(0.0, kernels), (0.1, kernels)]


def test_no_model_lets_torch_choose_cudnn():
    for spec in (Transformer(d_model=16, heads=2), TorchTransformer(kind="torch_nn", heads=2)):
        torch.backends.cuda.enable_cudnn_sdp(True)
        with torch.device("meta"):
            build_model(spec, 20)
        assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_missing_kernel_is_unsupported_with_the_remedy():
    attend = build_attention(SdpaAttention(backend="cudnn"))
    with laid_out_for("cuda"), pytest.raises(Unsupported, match=r"no kernel of cudnn .* 16 bits"):
        attend(*tensors(), None, False, 0.0)
    with pytest.raises(Unsupported, match="kernel for CUDA devices; this run is on a cpu"):
        attend(*tensors(), None, False, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_additive_mask_hides_what_the_boolean_one_hides(dtype):
    q, k, v = tensors(dtype=dtype)
    for lengths in ((5, 2), (5, 0)):
        mask = padding(*lengths)
        bias = additive(mask, dtype)
        assert bias.dtype == dtype
        assert all(stride % 16 == 0 for stride in bias.stride()[:-1])
        ours = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias)
        ours.float().sum().backward()
        seen = mask.any(-1).flatten()  # rows without a key are finite but meaningless
        expected = reference_attention(q, k, v, mask, False, 0.0)
        torch.testing.assert_close(ours[seen], expected[seen], rtol=0.02, atol=0.02)
        assert all(x.isfinite().all() for x in (ours, q.grad, k.grad, v.grad))


def test_sentences_of_any_lengths_have_shapes_and_gradients():
    """By torch's own shape functions, which are all that a host without a GPU knows of the kernel."""
    with FakeTensorMode(), torch.device("cpu"):
        q, k, v = (
            torch.empty(n, 3, 8, dtype=torch.bfloat16, requires_grad=True) for n in (7, 9, 9)
        )
        starts = torch.empty(3, dtype=torch.int32), torch.empty(3, dtype=torch.int32)
        heads = flash_over_sentences(q, k, v, starts, (5, 6), False, 0.1)
        heads.sum().backward()
        assert heads.shape == (7, 3, 8)
        assert [x.grad.shape for x in (q, k, v)] == [x.shape for x in (q, k, v)]
    flash = SdpaAttention(backend="flash")
    assert not takes_sentences(flash, torch.empty(1))
    with laid_out_for("cuda"):
        assert takes_sentences(flash, torch.empty(1))
        assert not takes_sentences(SdpaAttention(), torch.empty(1))


@pytest.mark.parametrize(
    ("elements", "dtype"), [(8, torch.float32), (20, torch.bfloat16), (264, torch.bfloat16)]
)
def test_heads_unsuited_to_the_kernel_of_sentences_are_refused(elements, dtype):
    q = torch.zeros(4, 2, elements, dtype=dtype)
    starts = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(Unsupported, match=r"16 bits .* multiple of 8 elements a head, at most 256"):
        flash_over_sentences(q, q, q, (starts, starts), (4, 4), False, 0.0)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("FlashAttention only supports Ampere GPUs or newer.", Unsupported),
        ("USE_FLASH_ATTENTION was not enabled for build.", Unsupported),
        ("CUDA error: an illegal memory access was encountered", RuntimeError),
    ],
)
def test_a_gpu_without_the_kernel_of_sentences_is_unsupported(said, kind, monkeypatch):
    """As FlashAttention in padded rows is; any other error ends the run."""

    def refuse(*_: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", refuse)
    q = torch.zeros(4, 2, 8, dtype=torch.float16)
    starts = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(kind, match="compute capability 8.0" if kind is Unsupported else "illegal"):
        flash_over_sentences(q, q, q, (starts, starts), (4, 4), False, 0.0)


@pytest.mark.gpu
@backends
@pytest.mark.parametrize("masked", [False, True])
def test_the_kernels_of_a_gpu_agree_with_the_reference(backend, masked):
    q, k, v = tensors(n=M, dtype=torch.bfloat16, device="cuda")
    mask = padding(5, 2).cuda() if masked else None
    bias = None if mask is None else additive(mask, q.dtype)
    attend = build_attention(SdpaAttention(backend=backend))
    if backend == "flash" and masked:
        with pytest.raises(Unsupported, match="no mask"):
            attend(q, k, v, bias, False, 0.0)
        return
    try:
        ours = attend(q, k, v, bias, False, 0.0)
    except Unsupported as error:
        if backend != "cudnn":  # some builds lack it for some devices
            raise
        pytest.skip(str(error))
    expected = reference_attention(*(x.float() for x in (q, k, v)), mask, False, 0.0)
    torch.testing.assert_close(ours.float(), expected, rtol=0.03, atol=0.03)
    ours.float().sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
