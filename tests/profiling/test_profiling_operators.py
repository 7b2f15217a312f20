"""Classes of operators, and FLOPs and bytes from shapes, against torch's own counter."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from transformer_core.profiling.operators import (
    UNKNOWN,
    Work,
    kernel_class,
    operator_class,
    work_of,
)

CLASSES = {
    "contraction": "addmm mm bmm baddbmm linear convolution _scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "normalization": "_softmax _log_softmax_backward_data native_layer_norm sum mean "
    "nll_loss_forward native_layer_norm_backward linalg_vector_norm _fused_rms_norm",
    "element_wise": "add add_ mul relu gelu gelu_backward native_dropout bernoulli_ masked_fill_ "
    "_foreach_addcdiv_ _fused_adamw_ threshold_backward",
    "other": "copy_ _to_copy cat embedding index_select view fill_ zero_",
}


@pytest.mark.parametrize("found", CLASSES)
def test_classes_of_operators(found: str) -> None:
    for name in CLASSES[found].split():
        assert operator_class(f"aten::{name}") == found, name


def test_collectives_are_a_class() -> None:
    assert operator_class("c10d::allreduce_") == "communication"
    assert operator_class("_c10d_functional::wait_tensor") == "communication"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "contraction"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128>", "contraction"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", "contraction"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "contraction"),
        ("void (anonymous namespace)::softmax_warp_forward<float>", "normalization"),
        ("void at::native::vectorized_layer_norm_kernel<float>", "normalization"),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<float>>", "normalization"),
        (
            "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>",
            "element_wise",
        ),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel", "element_wise"),
        ("void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>", "other"),
        ("a_name_that_says_nothing", "other"),
    ],
)
def test_classes_of_kernels(name: str, found: str) -> None:
    assert kernel_class(name) == found


def counted(function: Callable[..., object], *inputs: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        function(*inputs)
    return counter.get_total_flops()


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, device="meta")


PRODUCTS = {
    "aten::mm": (torch.mm, [(4, 5), (5, 6)]),
    "aten::addmm": (torch.addmm, [(6,), (4, 5), (5, 6)]),
    "aten::bmm": (torch.bmm, [(3, 4, 5), (3, 5, 6)]),
    "aten::baddbmm": (torch.baddbmm, [(3, 4, 6), (3, 4, 5), (3, 5, 6)]),
    "aten::linear": (torch.nn.functional.linear, [(2, 4, 5), (6, 5), (6,)]),
    "aten::_scaled_dot_product_efficient_attention": (
        torch.nn.functional.scaled_dot_product_attention,
        [(2, 3, 7, 8), (2, 3, 9, 8), (2, 3, 9, 8)],
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_flops_of_products_are_those_that_torch_counts(name: str) -> None:
    function, shapes = PRODUCTS[name]
    found = work_of(name, shapes, ["float"] * len(shapes))
    assert found.flops == counted(function, *(zeros(*shape) for shape in shapes))


def test_backward_of_attention_computes_the_scores_anew() -> None:
    shapes = [(2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 9, 8), (2, 3, 9, 8)]
    name = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    forward = work_of(name.removesuffix("_backward"), shapes[1:], ["float"] * 3)
    backward = work_of(name, shapes, ["float"] * 4)
    assert forward.flops
    assert backward.flops == 2.5 * forward.flops


BYTES: list[tuple[str, Sequence[Sequence[int]], Sequence[str], Work]] = [
    ("aten::mm", [(4, 5), (5, 6)], ["float", "float"], Work(240, 4 * (20 + 30 + 24))),
    ("aten::mm", [(4, 5), (5, 6)], ["c10::BFloat16"] * 2, Work(240, 2 * (20 + 30 + 24))),
    ("aten::add", [(4, 5), (5,), ()], ["float", "float", "Scalar"], Work(20, 4 * (20 + 5 + 20))),
    ("aten::gelu", [(10,)], ["c10::Half"], Work(80, 2 * 20)),
    ("aten::_softmax", [(4, 8), (), ()], ["float", "Scalar", ""], Work(160, 4 * 64)),
    ("aten::sum", [(4, 8)], ["float"], Work(32, 4 * 32)),
    ("aten::mm", [(4, 5), (5, 6)], [], Work(240, None)),
]


@pytest.mark.parametrize(("name", "shapes", "kinds", "work"), BYTES)
def test_bytes(
    name: str, shapes: Sequence[Sequence[int]], kinds: Sequence[str], work: Work
) -> None:
    assert work_of(name, shapes, kinds) == work


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("aten::mm", [(4, 5), (6, 7)]),  # not a product
        ("aten::mm", []),
        ("aten::copy_", [(4, 5), (4, 5)]),  # no arithmetic
        ("aten::add", [(), ()]),  # numbers
        ("aten::_foreach_add_", [None, None]),  # lists of tensors
        ("aten::convolution", [(1, 2, 8, 8), (4, 2, 3, 3)]),
    ],
)
def test_what_is_not_known_is_null(name: str, shapes: Sequence[Sequence[int] | None]) -> None:
    assert work_of(name, shapes, ["float"] * len(shapes)) == UNKNOWN
