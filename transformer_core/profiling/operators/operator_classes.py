"""Classes of operators, and their FLOPs and bytes from the shapes of their inputs.

The classes are those of Ivanov et al., "Data Movement Is All You Need" (arXiv 2007.00072):
tensor contractions, statistical normalizations (softmax, layer norm and all that reduces) and
element-wise operators. What only moves data (copies, casts, indexing) is ``other``.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

CONTRACTION = "contraction"
NORMALIZATION = "normalization"
ELEMENT_WISE = "element_wise"
COMMUNICATION = "communication"
OTHER = "other"

OPERATOR_CLASSES = (CONTRACTION, NORMALIZATION, ELEMENT_WISE, COMMUNICATION, OTHER)
"""In the order of tables and figures."""

Shape = Sequence[int]

_CONTRACTIONS = re.compile(
    r"(add)?mm|(ba)?(add)?bmm|baddbmm|(add)?mv|dot|vdot|matmul|linear|linear_backward|"
    r"mkldnn_linear\w*|einsum|_?scaled_(grouped_)?mm|_grouped_mm|_?scaled_dot_product_\w*|"
    r"_(flash|efficient|cudnn)_attention_\w*|_addmm_activation|_int_mm|\w*conv(olution)?\w*"
)
_NORMALIZATIONS = re.compile(
    r"_?(log_)?softmax\w*|\w*_(layer|rms|batch|group)_norm\w*|(layer|rms|batch|group)_norm\w*|"
    r"sum|mean|amax|amin|max|min|argmax|argmin|prod|std|var|var_mean|norm|logsumexp|"
    r"linalg_vector_norm|_foreach_norm|_foreach_max|nll_loss\w*|cross_entropy\w*|cumsum|any|all|"
    r"topk|sort"
)
_ELEMENT_WISE = re.compile(
    r"(_foreach_)?(add|sub|mul|div|neg|abs|exp|log|log2|sqrt|rsqrt|pow|square|reciprocal|sigmoid|"
    r"tanh|clamp|clamp_min|clamp_max|minimum|maximum|lerp|addcmul|addcdiv|sign|sin|cos|erf|round|"
    r"floor|where|threshold|relu|gelu|silu|leaky_relu|softplus|glu|elu|hardtanh|eq|ne|lt|le|gt|ge|"
    r"logical_\w+|bitwise_\w+|masked_fill|bernoulli|random|uniform|normal|rand_like|native_dropout|dropout|"
    r"_?fused_dropout|remainder|rsub|isnan|isfinite|isinf|nan_to_num)(_backward|_dropout)?_?"
    r"|_fused_(adam|adamw|sgd|adagrad)_?|native_dropout_backward|_masked_scale"
    r"|_amp_foreach_non_finite_check_and_unscale_|threshold_backward"
)

_COMMUNICATION_SPACES = ("c10d::", "_c10d_functional::", "nccl:", "gloo:", "record_param_comms")


def operator_class(name: str) -> str:
    """The class of an operator by its name (``aten::addmm``); of unknown ones, ``other``."""
    if name.startswith(_COMMUNICATION_SPACES):
        return COMMUNICATION
    base = name.rpartition("::")[2]
    for pattern, found in (
        (_CONTRACTIONS, CONTRACTION),
        (_NORMALIZATIONS, NORMALIZATION),
        (_ELEMENT_WISE, ELEMENT_WISE),
    ):
        if pattern.fullmatch(base):
            return found
    return OTHER


_KERNELS = (
    (
        re.compile(
            r"gemm|gemv|matmul|cutlass(?!.*(softmax|norm))|xmma|cublas|flash_(fwd|bwd)|fmha|"
            r"attention|conv(olution)?[_23d]|wgrad|dgrad|splitk|nvjet"
        ),
        CONTRACTION,
    ),
    (
        re.compile(
            r"softmax|layer_?norm|rms_?norm|batch_?norm|group_?norm|reduce|norm_kernel|nll_loss|"
            r"gammabeta|rowwisemoments"
        ),
        NORMALIZATION,
    ),
    (
        re.compile(r"copy|memcpy|gather|scatter|index|embedding|\bcat|transpose|fill|permute"),
        OTHER,
    ),
    (
        re.compile(
            r"elementwise|dropout|multi_tensor_apply|foreach|pointwise|adam|gelu|relu|binary|unary"
        ),
        ELEMENT_WISE,
    ),
)


def kernel_class(name: str) -> str:
    """The class of a kernel by its own name, for traces that do not say what launched it."""
    lower = name.lower()
    return next((found for pattern, found in _KERNELS if pattern.search(lower)), OTHER)


@dataclass(frozen=True)
class Work:
    """The arithmetic and the traffic of one call; null where its shapes do not tell."""

    flops: int | None
    bytes: int | None


UNKNOWN = Work(None, None)

_ELEMENT_BYTES = {
    "float": 4,
    "double": 8,
    "c10::half": 2,
    "half": 2,
    "c10::bfloat16": 2,
    "bfloat16": 2,
    "long int": 8,
    "long": 8,
    "int": 4,
    "short int": 2,
    "signed char": 1,
    "char": 1,
    "unsigned char": 1,
    "byte": 1,
    "bool": 1,
    "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
}


def element_bytes(kind: str) -> int | None:
    """Bytes of an element by the name that a trace gives its type; null for what is no tensor."""
    return _ELEMENT_BYTES.get(kind.lower())


_OPERATIONS = {
    "softmax": 5,
    "log_softmax": 5,
    "softmax_backward_data": 4,
    "log_softmax_backward_data": 4,
    "native_layer_norm": 8,
    "native_layer_norm_backward": 14,
    "fused_rms_norm": 5,
    "fused_rms_norm_backward": 10,
    "gelu": 8,
    "gelu_backward": 16,
    "sigmoid": 3,
    "silu": 4,
    "native_dropout": 2,
    "fused_adamw": 14,
    "fused_adam": 13,
    "addcmul": 3,
    "addcdiv": 3,
    "lerp": 3,
}
"""Operations per element: additions, products, quotients, comparisons and special functions (exp,
tanh, square root) count as one each. What is not listed takes one per element."""


def work_of(name: str, shapes: Sequence[Shape | None], kinds: Sequence[str]) -> Work:
    """FLOPs and bytes of an operator, from the shapes and types of its inputs.

    ``shapes`` holds an empty shape where an input is a number or no tensor; ``kinds`` the types by
    the names of the trace, empty where it has none: then only the FLOPs are known. Operators that
    do no arithmetic have bytes alone. The result of a reduction is not counted as traffic.
    """
    found = operator_class(name)
    base = name.rpartition("::")[2].rstrip("_").lstrip("_")
    tensors = [tuple(shape) if shape else () for shape in shapes]
    if found == CONTRACTION:
        return _contraction(base, tensors, kinds)
    if found not in (NORMALIZATION, ELEMENT_WISE) or not any(tensors):
        return UNKNOWN
    sizes = [math.prod(shape) for shape in tensors if shape]
    largest = max(sizes)
    flops = largest * _OPERATIONS.get(base, 1)
    widths = [
        element_bytes(kind) if shape else 0 for shape, kind in zip(tensors, kinds, strict=False)
    ]
    if len(widths) < len(tensors) or None in widths:
        return Work(flops, None)
    read = sum(
        math.prod(shape) * (width or 0) for shape, width in zip(tensors, widths, strict=True)
    )
    width = next(width for width in widths if width)
    # A reduction's result is small; a backward of layer norm writes what the forward read.
    written = 0 if _reduces(base) else largest * width
    return Work(flops, read + written)


def _reduces(base: str) -> bool:
    return not re.search(r"softmax|norm", base) and operator_class(base) == NORMALIZATION


def _contraction(base: str, shapes: Sequence[Shape], kinds: Sequence[str]) -> Work:
    matrices = [shape for shape in shapes if len(shape) >= 2]
    if "scaled_dot_product" in base or "attention" in base:
        return _attention(base, shapes, kinds)
    first = 1 if base.startswith(("addmm", "baddbmm", "addmv")) else 0
    operands = shapes[first : first + 2]
    if base in ("linear", "mkldnn_linear") and len(matrices) >= 2:
        (*rows, k), (n, _) = shapes[0], shapes[1]
        m = math.prod(rows)
        return _product(m, k, n, 1, shapes, kinds)
    if len(operands) < 2 or base not in ("mm", "addmm", "bmm", "baddbmm", "scaled_mm", "int_mm"):
        return UNKNOWN
    a, b = operands
    if len(a) != len(b) or len(a) not in (2, 3) or a[-1] != b[-2]:
        return UNKNOWN
    return _product(a[-2], a[-1], b[-1], math.prod(a[:-2]), shapes, kinds)


def _product(
    m: int, k: int, n: int, batch: int, shapes: Sequence[Shape], kinds: Sequence[str]
) -> Work:
    flops = 2 * batch * m * k * n
    widths = [element_bytes(kind) for kind in kinds[: len(shapes)]]
    known = [
        (math.prod(shape), width)
        for shape, width in zip(shapes, widths, strict=False)
        if shape and width
    ]
    if len(known) < sum(1 for shape in shapes if shape):
        return Work(flops, None)
    return Work(flops, sum(size * width for size, width in known) + batch * m * n * known[0][1])


def _attention(base: str, shapes: Sequence[Shape], kinds: Sequence[str]) -> Work:
    """Two products forward; five backward, one of which computes the scores anew."""
    backward = "backward" in base
    first = 1 if backward else 0
    four = shapes[first : first + 3]
    if len(four) < 3 or any(len(shape) != 4 for shape in four):
        return UNKNOWN
    (b, h, s, d), (_, _, t, _), (_, _, _, e) = four
    products = 3 * d + 2 * e if backward else d + e
    flops = 2 * b * h * s * t * products
    width = element_bytes(kinds[first]) if len(kinds) > first else None
    if width is None:
        return Work(flops, None)
    read = sum(math.prod(shape) for shape in shapes if len(shape) == 4)
    written = sum(math.prod(shape) for shape in four) if backward else b * h * s * e
    return Work(flops, (read + written) * width)
