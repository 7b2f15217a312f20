"""Which of CUDA's kernels computes attention, as far as a CPU can tell, and masks for them."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend

from schemas.config.model import SdpaAttention
from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from transformer_core.models import attention
from transformer_core.models.attention import (
    additive,
    build_attention,
    flash_over_sentences,
    reference_attention,
    takes_sentences,
)
from transformer_core.models.device_kind import laid_out_for
from transformer_core.models.registry import build_model

BACKENDS = ["auto", "flash", "efficient", "cudnn", "math"]


def tensors(dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    return [torch.randn(2, 3, 5, 8, device=device).to(dtype).requires_grad_() for _ in range(3)]


def padding(*lengths):
    return (torch.arange(5) < torch.tensor(lengths)[:, None])[:, None, None, :]


@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_may_choose_among_the_kernels_of_the_backend_only(monkeypatch, backend):
    seen = []
    monkeypatch.setattr(
        attention.F,
        "scaled_dot_product_attention",
        lambda q, *_, **__: seen.append(
            {
                SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled(),
                SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled(),
                SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled(),
                SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled(),
            }
        ),
    )
    attention.leave_out_cudnn()  # as every model does that is built
    attend = build_attention(SdpaAttention(backend=backend))
    with laid_out_for("cuda"):
        for dropout in (0.0, 0.1):  # the same kernels in training, validation and decoding
            attend(*tensors(), None, False, dropout)
    allowed = {kernel for kernel, may in seen[0].items() if may}
    assert seen[0] == seen[1]
    assert (SDPBackend.CUDNN_ATTENTION in allowed) == (backend == "cudnn")
    assert len(allowed) == (3 if backend == "auto" else 1)


def test_a_kernel_that_is_not_there_is_unsupported_with_the_remedy():
    attend = build_attention(SdpaAttention(backend="cudnn"))
    with laid_out_for("cuda"), pytest.raises(Unsupported, match=r"no kernel of cudnn .* 16 bits"):
        attend(*tensors(), None, False, 0.0)
    with pytest.raises(Unsupported, match="kernel of CUDA devices; this run is on a cpu"):
        attend(*tensors(), None, False, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_additive_mask_hides_what_the_boolean_one_hides(dtype):
    mask = padding(5, 2)
    bias = additive(mask, dtype)
    assert bias.dtype == dtype
    assert all(stride % 16 == 0 for stride in bias.stride()[:-1])
    q, k, v = tensors(dtype)
    ours = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias)
    expected = reference_attention(q, k, v, mask, False, 0.0)
    torch.testing.assert_close(ours, expected, rtol=0.02, atol=0.02)


def test_rows_without_a_key_stay_finite():
    q, k, v = tensors()
    ours = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, additive(padding(5, 0), q.dtype)
    )
    ours.sum().backward()
    assert ours.isfinite().all()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_sentences_of_any_lengths_have_shapes_and_gradients():
    """What can be known of the kernel without a GPU: torch's own shape functions."""
    with FakeTensorMode(), torch.device("cpu"):
        q, k, v = (
            torch.empty(n, 3, 8, dtype=torch.bfloat16, requires_grad=True) for n in (7, 9, 9)
        )
        starts = torch.empty(3, dtype=torch.int32), torch.empty(3, dtype=torch.int32)
        heads = flash_over_sentences(q, k, v, starts, (5, 6), False, 0.1)
        heads.sum().backward()
        assert heads.shape == (7, 3, 8)
        assert [x.grad.shape for x in (q, k, v)] == [x.shape for x in (q, k, v)]
        with pytest.raises(Unsupported, match="16 bits"):
            flash_over_sentences(*(x.float() for x in (q, k, v)), starts, (5, 6), False, 0.1)
    flash = SdpaAttention(backend="flash")
    assert not takes_sentences(flash, torch.empty(1))
    with laid_out_for("cuda"):
        assert takes_sentences(flash, torch.empty(1))
        assert not takes_sentences(SdpaAttention(), torch.empty(1))


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_sentences_of_any_lengths_on_a_gpu(causal):
    lengths = [5, 1, 3]
    starts = torch.tensor([0, 5, 6, 9], dtype=torch.int32, device="cuda")
    torch.manual_seed(0)
    q, k, v = (torch.randn(9, 3, 16, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    ours = flash_over_sentences(q, k, v, (starts, starts), (5, 5), causal, 0.0)
    begin = 0
    for length in lengths:
        own = slice(begin, begin + length)
        one = [x[own].transpose(0, 1)[None].float() for x in (q, k, v)]
        expected = reference_attention(*one, None, causal, 0.0)[0].transpose(0, 1)
        torch.testing.assert_close(ours[own].float(), expected, rtol=0.03, atol=0.03)
        begin += length


@pytest.mark.gpu
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("masked", [False, True])
def test_the_kernels_of_a_gpu_agree_with_the_reference(backend, masked):
    q, k, v = tensors(torch.bfloat16, "cuda")
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
        if backend != "cudnn":  # which not every build has for every device
            raise
        pytest.skip(str(error))
    expected = reference_attention(*(x.float() for x in (q, k, v)), mask, False, 0.0)
    torch.testing.assert_close(ours.float(), expected, rtol=0.03, atol=0.03)
    ours.float().sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_no_model_leaves_the_choice_of_cudnn_to_torch():
    torch.backends.cuda.enable_cudnn_sdp(True)
    for kind in ("transformer", "torch_nn"):
        spec = RunSpec(variant="v", model={"kind": kind, "d_model": 16, "d_ff": 16, "heads": 2})
        build_model(spec.model, 20)
        assert not torch.backends.cuda.cudnn_sdp_enabled()
