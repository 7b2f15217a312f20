"""Classes of kernels by their own names, for traces that do not say which operator launched them.

What counts is the function's own name, without name spaces, template arguments and parameters:
those hold the names of libraries (``fbgemm_gpu::``) and of what a generic kernel is applied to.
"""

import re
from dataclasses import dataclass

from transformer_core.trace.operators.operator_classes import (
    CONTRACTION,
    ELEMENT_WISE,
    NORMALIZATION,
    OTHER,
)

_GENERIC = r"(un)?(vectorized_|unrolled_|index_|legacy_)*elementwise_kernel\w*"


@dataclass(frozen=True)
class Rule:
    """Kernels whose base name begins with a match of ``base``, and if ``inside`` is given, whose
    full name holds a match of that, are of a class."""

    base: str
    found: str
    inside: str = ""

    def accepts(self, base: str, name: str) -> bool:
        """Whether it is about a kernel."""
        return bool(re.match(self.base, base, re.IGNORECASE)) and bool(
            re.search(self.inside, name, re.IGNORECASE)
        )


_MOVES = (
    r"triton_poi_fused_+((_?(to_copy|unsafe_view|unsafe_index|view|clone|slice|select|transpose|permute"
    r"|t|cat|stack|split|split_with_sizes|unbind|expand|squeeze|unsqueeze|copy|index|index_put|gather"
    r"|scatter|empty_like|new_zeros|zeros|zeros_like|ones|full|fill|arange|constant_pad_nd))_*)+\d*$"
)
"""A kernel that TorchInductor made of operators that only move data: it is named after them."""

RULES = (
    # Made by TorchInductor: the kind first, then the names of the operators inside.
    Rule(r"triton_tem_", CONTRACTION),
    Rule(r"triton_(red|per)_", NORMALIZATION),
    Rule(_MOVES, OTHER),
    Rule(r"triton_poi_", ELEMENT_WISE),
    # An implicit product reads its rows through an index; a rotary embedding is arithmetic.
    Rule(r"\w*(xmma_\w*gemm|cudnn_\d+x\d+)", CONTRACTION),
    Rule(r"\w*rotary", ELEMENT_WISE),
    # Rows of tables, indices, copies: nothing is computed.
    Rule(r"\w*(embedding|bounds_check|linearize_index|jagged)", OTHER),
    Rule(r"\w*(index|gather|scatter|copy|CatArray|permute|transpose|fill(?!ed)|roll_cuda)", OTHER),
    Rule(r"Device(RadixSort|Scan|Compact|Select|ReduceByKey|Partition)|\w*sort", OTHER),
    # Products of matrices and convolutions by their libraries.
    Rule(r"(Kernel2?|device_kernel|GemmUniversal)$", CONTRACTION, inside=r"cutlass"),
    Rule(r"kernel_\w*(gemm|contraction|conv|batched)", CONTRACTION),  # composable_kernel
    Rule(r"kentry", CONTRACTION, inside=r"gemm|fmha|conv"),  # ck_tile's one entry for all kernels
    Rule(r"kentry", NORMALIZATION, inside=r"norm|softmax|reduce"),
    Rule(r"bmm_", CONTRACTION),  # TensorRT-LLM's
    Rule(r"wvSplitK|LLGemm", CONTRACTION),  # narrow products of vLLM under ROCm
    Rule(r"Cijk_|nvjet|cublasLt_splitK|splitK", CONTRACTION),  # Tensile, cuBLASLt
    Rule(
        r"\w*(gemm|gemv|gemk|matmul|xmma|wgrad|dgrad|winograd|convolve|_conv\d|conv\d?d|conv_)",
        CONTRACTION,
    ),
    Rule(r"(cudnn::\w*|implicit_|miopen\w*|igemm\w*)conv", CONTRACTION),
    Rule(r"(dot|dot_product)_kernel", CONTRACTION),
    # Attention as one kernel.
    Rule(r"\w*(flash_|fmha|sdpa|attn_|attention|mha_(fwd|bwd))|sage_fwd", CONTRACTION),
    Rule(
        r"_?bwd_(kernel|preprocess)|_?fwd_kernel", CONTRACTION, inside=r"attn|attention|^_?[bf]wd"
    ),
    # Normalizations, and whatever reduces.
    Rule(r"\w*(softmax|layer_?norm|rms_?norm|batch_?norm|group_?norm|norm_|_norm)", NORMALIZATION),
    Rule(r"bn_(fw|bw)_", NORMALIZATION),  # cuDNN's of batches
    Rule(r"\w*(GammaBeta|RowwiseMoments|ComputeInternalGradients)", NORMALIZATION),
    Rule(r"\w*(nll_loss|cross_entropy|cunn_)", NORMALIZATION),
    Rule(r"(DeviceReduce|DeviceSegmentedReduce|reduce_|\w*_reduce)|\w*reduction", NORMALIZATION),
    # One generic kernel, applied to a copy or to arithmetic.
    Rule(_GENERIC, OTHER, inside=r"copy|(?<!masked_)fill|\bindex|gather|scatter|arange"),
    Rule(_GENERIC, ELEMENT_WISE),
    Rule(r"\w*(elementwise|pointwise|dropout|distribution_)", ELEMENT_WISE),
    Rule(
        r"\w*(multi_tensor_apply|foreach|fused_adam|adam|act_and_mul|gelu|relu|silu|swiglu|unary|binary)",
        ELEMENT_WISE,
    ),
    Rule(r"globalKernel", ELEMENT_WISE, inside=r"\bepilogue::"),  # bias and activation of cuBLASLt
    Rule(r"(add|sub|mul|div|exp|tanh|sigmoid|axpy|scal)(_|$)\w*", ELEMENT_WISE),
)
"""The first that accepts a kernel tells its class."""


def base_name(name: str) -> str:
    """``reduce_kernel`` of ``void at::native::reduce_kernel<512, 1>(at::native::ReduceOp<…>)``, and
    ``kentry`` of the mangled ``_ZN7ck_tile6kentryILi2E…``."""
    if mangled := _mangled(name):
        return mangled
    name = name.replace("(anonymous namespace)", "").replace("<unnamed>", "")
    depth, kept = 0, []
    for character in name:
        if character in "<{":
            depth += 1
        elif character in ">}":
            depth = max(0, depth - 1)
        elif depth == 0:
            if character == "(":
                break
            kept.append(character)
    words = "".join(kept).split()
    return words[-1].rpartition("::")[2] if words else ""


def _mangled(name: str) -> str:
    """The last part of a name as compilers write it (Itanium C++ ABI, nested and plain names): each
    part stands behind its length. Empty for any other name."""
    head = re.match(r"_ZNK?|_Z(?=\d)", name)
    place, last = head.end() if head else len(name), ""
    while length := re.match(r"\d+", name[place:]):
        begin = place + length.end()
        place = begin + int(length[0])
        last = name[begin:place]
    return last


def kernel_class(name: str) -> str:
    """The class of a kernel by its name; of unknown ones, ``other``."""
    base = base_name(name)
    return next((rule.found for rule in RULES if rule.accepts(base, name)), OTHER)
