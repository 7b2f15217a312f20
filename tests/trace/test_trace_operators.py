"""Classes of operators, and FLOPs and bytes from shapes, against torch's own counter."""

import json
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode
from traces import events_in

from transformer_core.trace.events import operators
from transformer_core.trace.events.operators import (
    UNKNOWN,
    Work,
    base_name,
    kernel_class,
    operator_class,
    work_of,
)
from transformer_core.trace.events.process import ProcessTrace

CLASSES = {
    "contraction": "addmm mm bmm baddbmm linear convolution _scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "normalization": "_softmax _log_softmax_backward_data native_layer_norm sum mean "
    "nll_loss_forward native_layer_norm_backward linalg_vector_norm _fused_rms_norm",
    "element_wise": "add add_ mul relu gelu gelu_backward native_dropout bernoulli_ masked_fill_ "
    "_foreach_addcdiv_ _fused_adamw_ threshold_backward",
    "other": "copy_ _to_copy cat embedding index_select view fill_ zero_ _convert_weight_to_int4pack",
}


def test_classes_of_operators():
    for found, names in CLASSES.items():
        for name in names.split():
            assert operator_class(f"aten::{name}") == found, name
    assert operator_class("c10d::allreduce_") == "communication"
    assert operator_class("_c10d_functional::wait_tensor") == "communication"


KERNELS = {
    "contraction": (
        "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1",
        "void ck_tile::kentry<1, ck_tile::FmhaFwdKernel<ck_tile::BlockFmhaPipeline>>(Kargs)",
        "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm<float>>(Argument)",
        "void wvSplitK_hf_sml_<__hip_bfloat16, 64, 4, 16, 8, 1, 4>(int)",
        "miopenSp3AsmConv_v30_3_1_gfx9",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128>(Params)",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>(Params)",
        "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT",
        "volta_sgemm_32x32_sliced1x4_tn",
        "void gemmSN_NN_kernel<float, 128, 2>(cublasGemmSmallNParams<float>)",
        "void gemvNSP_kernel<float, float, 1, 16, 128>(cublasGemvParams<float>)",
        "void dot_kernel<float, 128, 0>(cublasDotParams<float>)",
        "void splitKreduce_kernel<32, 16, int, float, float>(cublasSplitKParams<float>)",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(Params)",
        "_ZN2ck16kernel_gemm_xdl_cshuffle_v1",
        "attn_fwd",
        "triton_tem_fused_mm_3",
        "sage_fwd",
        "cudnn_infer_volta_scudnn_128x64_stridedB_interior_nn_v1",
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized>(Params)",
        "_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelE",
        "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float>(P)",
        "void cudnn::fusion::compute_dot_do_o_specialized<true, 128, 128, 128>(P)",
        "void cudnn::fusion::convert_dq_to_16bits<true, 128, 128, 128>(P)",
    ),
    "normalization": (
        "void (anonymous namespace)::softmax_warp_forward<float, 10, true>(float*)",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>(float*)",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, gemm> >(Op)",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel_32x32<float>()",
        "void cub::DeviceReduceKernel<Policy, float*>(float*)",
        "triton_red_fused__to_copy_add_addmm_mean_mul_transpose_view_8",
        "triton_per_fused__to_copy_add_index_mean_mul_0",
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 128, true, 1>(float)",
        "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(float)",
        "void transformer_engine::normalization::ln_fwd_tuned_kernel<Kernel_traits<float> >(P)",
        "void layer_norm::ln_bwd_finalize_kernel<Kernel_traits<float> >(BwdParams)",
    ),
    "element_wise": (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()",
        "void at::native::elementwise_kernel<128, 4, MulFunctor<reduce_kernel> >(int)",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<Adam>(T)",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float>(T)",
        "triton_poi_fused_add_gelu_1",
        "triton_poi_fused__unsafe_view_addmm_cat_clone_gelu_transpose_view_34",
        "void rotary_embedding_kernel<c10::BFloat16, true>(long const*)",
        "void transformer_engine::fused_rope_forward_kernel<float>(float const*)",
        "_triton_rope",
        "void epilogue::impl::globalKernel<float, float, float, true, true>(int, int)",
        "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16E",
        "_geglu_tanh_forward_kernel",
        "void transformer_engine::dgated_act_kernel<float, float>(P)",
    ),
    "other": (
        # Embeddings of a library whose name space contains the name of a product.
        "void fbgemm_gpu::split_embedding_codegen_forward_unweighted_kernel<float>(P)",
        "void fbgemm_gpu::permute_2D_data_kernel<long>(int)",
        "void bounds_check_indices_kernel<long>(P)",
        "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>(int)",
        "void at::native::vectorized_elementwise_kernel<4, FillFunctor<float> >(int)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 2>(T)",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<float>(T)",
        "void cub::DeviceReduceByKeyKernel<Policy>(T)",
        "void at_cuda_detail::cub::DeviceRadixSortSingleTileKernel<Policy>(T)",
        "__amd_rocclr_copyBuffer",
        "triton_poi_fused__unsafe_view_clone_slice_transpose_11",
        "a_name_that_says_nothing",
    ),
}


@pytest.mark.parametrize("found", KERNELS)
def test_classes_of_kernels(found):
    names = KERNELS[found]
    assert {name: kernel_class(name) for name in names} == dict.fromkeys(names, found)


def test_heads_come_third_in_the_kernels_of_flash_attention():
    shapes = [(2, 3, 7, 8)] * 3
    outer = work_of("aten::_scaled_dot_product_flash_attention", shapes, ["c10::BFloat16"] * 3)
    swapped = [(2, 7, 3, 8)] * 3
    for name in ("_flash_attention_forward", "_efficient_attention_forward"):
        assert work_of(f"aten::{name}", swapped, ["c10::BFloat16"] * 3) == outer


NAMES = {
    "void at::native::reduce_kernel<512, 1>(ReduceOp<a, b<c>>)": "reduce_kernel",
    "void (anonymous namespace)::f<int (*)(int)>(int)": "f",
    "volta_sgemm_32x32_tn": "volta_sgemm_32x32_tn",
    "a<b::{lambda(int)#1}>::c(x)": "c",
    "_ZN7ck_tile6kentryILi2ENS_10FmhaKernelE": "kentry",
    "_Z9wvSplitK_Pf": "wvSplitK_",
    "_Zero": "_Zero",
    "": "",
}


def test_base_names():
    assert {name: base_name(name) for name in NAMES} == NAMES


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
def test_flops_of_products_are_those_that_torch_counts(name):
    function, shapes = PRODUCTS[name]
    found = work_of(name, shapes, ["float"] * len(shapes))
    assert found.flops == counted(function, *(zeros(*shape) for shape in shapes))


CONVOLUTIONS: dict[str, tuple[Callable[..., Tensor], list[Sequence[int]]]] = {
    "2d": (torch.nn.functional.conv2d, [(2, 3, 17, 9), (8, 3, 3, 5), (8,)]),
    "strides": (partial(torch.nn.functional.conv2d, stride=2, padding=1), [(2, 3, 17, 9), (8, 3, 3, 3)]),
    "holes": (partial(torch.nn.functional.conv1d, dilation=2, padding=3), [(2, 3, 17), (8, 3, 3)]),
    "groups": (partial(torch.nn.functional.conv2d, groups=4), [(2, 4, 9, 9), (8, 1, 3, 3)]),
    "3d": (torch.nn.functional.conv3d, [(2, 3, 7, 8, 9), (4, 3, 3, 3, 3)]),
    "transposed": (
        partial(torch.nn.functional.conv_transpose2d, stride=2), [(2, 3, 8, 8), (3, 4, 3, 3)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_flops_of_convolutions_in_a_trace(name, tmp_path):
    function, shapes = CONVOLUTIONS[name]
    inputs = [torch.rand(*shape, requires_grad=True) for shape in shapes]
    with profile(record_shapes=True) as profiler:
        function(*inputs).sum().backward()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    flops = [row["flops"] or 0 for row in events_in(path) if "convolution" in str(row["operator"])]
    # Each of the two gradients takes as many; torch counts those of the weights of groups as one.
    assert sum(flops) == 3 * counted(function, *inputs)


@pytest.mark.parametrize("base", ["convolution", "cudnn_convolution", "conv_depthwise2d"])
def test_bytes_of_convolutions(base):
    stride, padding, dilation = operators.SLIDES[base]
    values = [""] * 9
    values[stride], values[padding], values[dilation] = "[2]", "[1, 1]", "[1, 1]"
    found = work_of(f"aten::{base}", [(2, 3, 8, 8), (4, 3, 3, 3)], ["c10::Half"] * 2, values)
    assert found == Work(2 * 2 * 16 * 108, 2 * (2 * 3 * 64 + 108 + 2 * 4 * 16))
    values[stride] = "nothing"
    assert work_of(f"aten::{base}", [(2, 3, 8, 8), (4, 3, 3, 3)], [], values) == UNKNOWN


BFLOAT16 = ["c10::BFloat16"] * 2
FLOAT8 = ["c10::Float8_e4m3fnuz", "c10::Float8_e4m3fn", "float", "float"]


@pytest.mark.parametrize(
    ("name", "shapes", "kinds", "work"),
    [
        ("mm", [(4, 5), (5, 6)], ["float", "float"], Work(240, 4 * (20 + 30 + 24))),
        ("mm", [(4, 5), (5, 6)], BFLOAT16, Work(240, 2 * (20 + 30 + 24))),
        ("add", [(4, 5), (5,), ()], ["float", "float", "Scalar"], Work(20, 4 * (20 + 5 + 20))),
        ("gelu", [(10,)], ["c10::Half"], Work(80, 2 * 20)),
        ("where", [(8,), (8,), ()], ["bool", "float", "float"], Work(8, 8 * (1 + 4 + 4))),
        ("_softmax", [(4, 8), (), ()], ["float", "Scalar", ""], Work(160, 4 * 64)),
        ("sum", [(4, 8)], ["float"], Work(32, 4 * 32)),
        ("mm", [(4, 5), (5, 6)], [], Work(240, None)),
        ("_scaled_mm", [(4, 5), (5, 6), (), ()], FLOAT8, Work(240, 20 + 30 + 2 * 24)),
        ("_int_mm", [(4, 5), (5, 6)], ["signed char"] * 2, Work(240, 20 + 30 + 4 * 24)),
    ],
)
def test_flops_and_bytes(name, shapes, kinds, work):
    assert work_of(f"aten::{name}", shapes, kinds) == work


def test_the_format_of_a_product_is_that_of_its_factors():
    trace, sides = ProcessTrace(1), "[[16,32],[32,16],[16,1],[1,16]]"
    trace.calls(
        [(name, sides, json.dumps(FLOAT8), "") for name in ("aten::_scaled_mm", "mine::mm")]
    )
    assert trace.shapes[1:] == [f"{form}[16,32] [32,16] [16,1] [1,16]" for form in ("fp8 ", "")]


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(4, 5), (6, 7)]),  # not a product
        ("mm", []),
        ("copy_", [(4, 5), (4, 5)]),  # no arithmetic
        ("add", [(), ()]),  # numbers
        ("_foreach_add_", [None, None]),  # lists of tensors
        ("convolution", [(1, 2, 8, 8), (4, 2, 3, 3)]),
        ("linear", [(4, 5), (6, 5, 2), (6,)]),
        ("linear", [(), (), ()]),
        ("linear", [(4, 5), (6, 7)]),
        ("addmm", [(6,), (4, 5)]),
        ("bmm", [(2, 4, 5), (3, 5, 6)]),
        ("mm", [(4,), (4,)]),
        ("_scaled_dot_product_flash_attention", [(2, 3, 4)] * 3),
        ("_scaled_dot_product_flash_attention", [(2, 3, 4, 8), (2, 3, 4, 9), (2, 3, 5, 8)]),
    ],
)
def test_shapes_that_do_not_fit_give_no_work(name, shapes):
    assert work_of(f"aten::{name}", shapes, ["float"] * len(shapes)) == UNKNOWN
