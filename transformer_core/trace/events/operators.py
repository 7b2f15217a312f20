"""Classes of operators and kernels, and FLOPs and bytes of operators from the shapes of their inputs.

The classes are those of Ivanov et al., "Data Movement Is All You Need" (arXiv 2007.00072): tensor
contractions, statistical normalizations (softmax, layer norm and all that reduces) and element-wise
operators. What only moves data (copies, casts, indexing) is ``other``.

Where a trace does not say which operator launched a kernel, the kernel's own name tells its class:
the function's name without name spaces, template arguments and parameters, for those hold the names
of libraries (``fbgemm_gpu::``) and of what a generic kernel is applied to.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

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
    r"_(flash|efficient|cudnn)_attention_\w*|_addmm_activation|_linear_pointwise|_int_mm|\w*conv(olution)?\w*"
)
_NORMALIZATIONS = re.compile(
    r"_?(log_)?softmax\w*|\w*_(layer|rms|batch|group)_norm\w*|(layer|rms|batch|group)_norm\w*|"
    r"sum|mean|amax|amin|max|min|argmax|argmin|prod|std|var|var_mean|norm|logsumexp|"
    r"linalg_vector_norm|_foreach_norm|_foreach_max|nll_loss\w*|cross_entropy\w*|cumsum|any|all|"
    r"topk|sort|_Weights(Backward)?"  # attention weights in one loop
)
_ELEMENT_WISE = re.compile(
    r"(_foreach_)?(add|sub|mul|div|neg|abs|exp|log|log2|sqrt|rsqrt|pow|square|reciprocal|sigmoid|"
    r"tanh|clamp|clamp_min|clamp_max|minimum|maximum|lerp|addcmul|addcdiv|sign|sin|cos|erf|round|"
    r"floor|where|threshold|relu|gelu|silu|leaky_relu|softplus|glu|elu|hardtanh|eq|ne|lt|le|gt|ge|"
    r"logical_\w+|bitwise_\w+|masked_fill|bernoulli|random|uniform|normal|rand_like|native_dropout|dropout|"
    r"_?fused_dropout|remainder|rsub|isnan|isfinite|isinf|nan_to_num)(_backward|_dropout)?_?"
    r"|_fused_(adam|adamw|sgd|adagrad)_?|native_dropout_backward|_masked_scale"
    r"|_(Added|Kept|OfRelu)(Backward)?|Optimizer\.step#MasterAdamW\.step"
    r"|_amp_foreach_non_finite_check_and_unscale_|threshold_backward"
)

_COMMUNICATION_SPACES = ("c10d::", "_c10d_functional::", "nccl:", "gloo:", "record_param_comms")


COMPILED = re.compile(r"(graph_\d+_)?(triton_|cpp_fused_)")
"""How the names of TorchInductor's kernels begin."""


def operator_class(name: str) -> str:
    """The class of an operator by its name (``aten::addmm``); of unknown ones, ``other``."""
    if COMPILED.match(name):
        return kernel_class(name)
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


_FORMATS = {
    "float": "fp32",
    "double": "fp64",
    "c10::half": "fp16",
    "half": "fp16",
    "c10::bfloat16": "bf16",
    "bfloat16": "bf16",
    "c10::float8_e4m3fn": "fp8",
    "c10::float8_e5m2": "fp8",
}


FORMATS = frozenset(_FORMATS.values())
"""The usual names of formats of numbers."""


def format_of(kind: str) -> str | None:
    """The usual name of a format of numbers, by the name that a trace gives it; null for whole
    numbers and for what is no tensor."""
    return _FORMATS.get(kind.lower())


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


def work_of(
    name: str, shapes: Sequence[Shape | None], kinds: Sequence[str], values: Sequence[object] = ()
) -> Work:
    """FLOPs and bytes of an operator, from the shapes and types of its inputs.

    ``shapes`` holds an empty shape where an input is a number or no tensor; ``kinds`` the types by
    the names of the trace, empty where it has none: then only the FLOPs are known. Operators that
    do no arithmetic have bytes alone. The result of a reduction is not counted as traffic. Shapes
    that do not fit the operator, such as those of another library's of the same name, tell nothing.
    ``values`` holds those of the inputs of a convolution, or the FLOPs and gigabytes that
    TorchInductor counted for its kernel.
    """
    if COMPILED.match(name):
        return Work(_scaled(values[:1], 1), _scaled(values[1:], 1e9))
    found = operator_class(name)
    base = name.rpartition("::")[2].rstrip("_").lstrip("_")
    tensors = [tuple(shape) if shape else () for shape in shapes]
    if found == CONTRACTION:
        if "conv" in base:
            return _convolution(base, tensors, kinds, values)
        return _contraction(base, tensors, kinds)
    if found not in (NORMALIZATION, ELEMENT_WISE) or not any(tensors):
        return UNKNOWN
    largest = max(math.prod(shape) for shape in tensors if shape)
    flops = largest * _OPERATIONS.get(base, 1)
    read = _bytes(tensors, kinds)
    if read is None:
        return Work(flops, None)
    width = next(_width(kinds, place) for place, shape in enumerate(tensors) if shape)
    # A reduction's result is small; a backward of layer norm writes what the forward read.
    written = 0 if _reduces(base) else largest * (width or 0)
    return Work(flops, read + written)


def _width(kinds: Sequence[str], place: int) -> int | None:
    return element_bytes(kinds[place]) if place < len(kinds) else None


def _bytes(shapes: Sequence[Shape], kinds: Sequence[str]) -> int | None:
    total = 0
    for place, shape in enumerate(shapes):
        width = _width(kinds, place)
        if shape and width is None:
            return None
        total += math.prod(shape) * (width or 0) if shape else 0
    return total


def _reduces(base: str) -> bool:
    return not re.search(r"softmax|norm", base) and operator_class(base) == NORMALIZATION


def _contraction(base: str, shapes: Sequence[Shape], kinds: Sequence[str]) -> Work:
    if "scaled_dot_product" in base or "attention" in base:
        return _attention(base, shapes, kinds)
    if base in ("linear", "mkldnn_linear"):
        return _linear(shapes, kinds)
    if base not in ("mm", "addmm", "bmm", "baddbmm", "scaled_mm", "int_mm"):
        return UNKNOWN
    first = 1 if base in ("addmm", "baddbmm") else 0
    if len(shapes) < first + 2:
        return UNKNOWN
    a, b = shapes[first : first + 2]
    sides = 3 if base in ("bmm", "baddbmm") else 2
    if len(a) != sides or len(b) != sides or a[-1] != b[-2] or a[:-2] != b[:-2]:
        return UNKNOWN
    return _product(a[-2], a[-1], b[-1], math.prod(a[:-2]), shapes, kinds)


def _linear(shapes: Sequence[Shape], kinds: Sequence[str]) -> Work:
    """``input @ weight.T + bias``; a weight of one row may be a vector."""
    if len(shapes) < 2 or not shapes[0] or len(shapes[1]) not in (1, 2):
        return UNKNOWN
    *rows, k = shapes[0]
    n = shapes[1][0] if len(shapes[1]) == 2 else 1
    if shapes[1][-1] != k:
        return UNKNOWN
    return _product(math.prod(rows), k, n, 1, shapes, kinds)


def _product(
    m: int, k: int, n: int, batch: int, shapes: Sequence[Shape], kinds: Sequence[str]
) -> Work:
    flops = 2 * batch * m * k * n
    read = _bytes(shapes, kinds)
    width = next((_width(kinds, place) for place, shape in enumerate(shapes) if shape), None)
    if read is None or width is None:
        return Work(flops, None)
    return Work(flops, read + batch * m * n * width)


_HEADS_THIRD = ("flash_attention", "efficient_attention")
"""Operators whose inputs are [batch, length, heads, width], not [batch, heads, length, width]."""


def _attention(base: str, shapes: Sequence[Shape], kinds: Sequence[str]) -> Work:
    """Two products forward; five backward, one of which computes the scores anew."""
    backward = "backward" in base
    first = 1 if backward else 0
    query, key, value = (*shapes[first : first + 3], (), (), ())[:3]
    if any(len(shape) != 4 for shape in (query, key, value)):
        return UNKNOWN
    if base.startswith(_HEADS_THIRD):
        query, key, value = ((s[0], s[2], s[1], s[3]) for s in (query, key, value))
    (b, h, s, d), (_, _, t, k), (_, _, u, e) = query, key, value
    if d != k or t != u or key[0] != b or value[0] != b:
        return UNKNOWN
    products = 3 * d + 2 * e if backward else d + e
    flops = 2 * b * h * s * t * products
    width = _width(kinds, first)
    if width is None:
        return Work(flops, None)
    read = sum(math.prod(shape) for shape in shapes if len(shape) == 4)
    written = sum(math.prod(x) for x in (query, key, value)) if backward else b * h * s * e
    return Work(flops, (read + written) * width)


_SLIDES = {
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", "convolution", "cudnn_convolution_relu"), (3, 4, 5)
    ),
    "convolution_overrideable": (3, 4, 5),
    "cudnn_convolution": (3, 2, 4),
    "cudnn_convolution_add_relu": (5, 6, 7),
    **dict.fromkeys(("mkldnn_convolution", "miopen_convolution"), (4, 3, 5)),
    **dict.fromkeys(("conv_depthwise2d", "conv_depthwise3d"), (4, 5, 6)),
}
"""Places of stride, padding and dilation among the inputs."""


def _convolution(
    base: str, shapes: Sequence[Shape], kinds: Sequence[str], values: Sequence[object]
) -> Work:
    """A product of the weights at each place of the output, or of the input of a transposed one;
    backward as much for each of the gradients of input and weights that is asked for."""
    backward = base == "convolution_backward"
    image, weight = (*shapes[backward : backward + 2], (), ())[:2]
    if len(image) != len(weight) or len(image) < 3:
        return UNKNOWN
    transposed = "transpose" in base or _value(values, 7 if backward else 6) is True
    output: Shape | None = tuple(shapes[0]) if backward else None
    if base in _SLIDES and not transposed:
        slides = [_sides(_value(values, place), len(image) - 2) for place in _SLIDES[base]]
        if all(slides):
            sides = zip(image[2:], weight[2:], *(side or () for side in slides), strict=True)
            output = (
                *(image[0], weight[0]),
                *(
                    (x + 2 * pad - hole * (k - 1) - 1) // step + 1
                    for x, k, step, pad, hole in sides
                ),
            )
    places = image if transposed else output
    if places is None or len(places) != len(image) or min(places) < 1:
        return UNKNOWN
    products, written = 1, [output]
    if backward:
        mask = _value(values, 10)
        asked = mask[:2] if isinstance(mask, list) else [True, True]
        written = [shape for shape, one in zip((image, weight), asked, strict=False) if one]
        products = len(written)
    flops = 2 * products * image[0] * math.prod(places[2:]) * math.prod(weight)
    read, width = _bytes(shapes, kinds), _width(kinds, 0)
    if read is None or width is None or None in written:
        return Work(flops, None)
    return Work(flops, read + sum(math.prod(shape or ()) * width for shape in written))


def _value(values: Sequence[object], place: int) -> object:
    """An input that is no tensor, as traces write it: ``[1, 1]``, ``False``; null if unknown."""
    try:
        return json.loads(str(values[place]).lower())
    except (IndexError, ValueError, RecursionError):
        return None


def _sides(value: object, count: int) -> list[int] | None:
    """A number for each side; null for anything else."""
    if not isinstance(value, list) or not all(type(side) is int and side >= 0 for side in value):
        return None
    return value * count if len(value) == 1 else value if len(value) == count else None


def _scaled(values: Sequence[object], unit: float) -> int | None:
    """The first of the values, in its unit; null for none or nothing."""
    try:
        found = float(str(*values[:1])) * unit
    except ValueError:
        return None
    return round(found) if 0 < found < 2**62 else None


_GENERIC = r"(un)?(vectorized_|unrolled_|index_|legacy_)*elementwise_kernel\w*"


@dataclass(frozen=True)
class Rule:
    """Kernels whose base name begins with a match of ``base``, and if ``inside`` is given, whose
    full name holds a match of that, are of a class."""

    base: str
    found: str
    inside: str = ""

    def accepts(self, base: str, name: str) -> bool:
        return bool(re.match(self.base, base, re.IGNORECASE)) and bool(
            re.search(self.inside, name, re.IGNORECASE)
        )


_FUSED = re.compile(r"(?:graph_\d+_)?(?:triton_[a-z]+|cpp)_fused_(\w*?)(?:_\d+)*(?:_0d[\dcde]*_?)?")
_KNOWN = """
    adaptive_avg_pool2d adaptive_max_pool2d as_strided avg_pool2d batch_norm binary_cross_entropy
    binary_cross_entropy_with_logits bitwise_and bitwise_left_shift bitwise_not bitwise_or
    bitwise_right_shift bitwise_xor broadcast_to clamp_max clamp_min constant_pad_nd
    cross_entropy_loss cudnn_batch_norm diag_embed efficient_attention_forward embedding_bag
    embedding_dense embedding_renorm empty_like empty_strided flash_attention_forward floor_divide
    full_like fused_adam fused_adamw fused_dropout fused_rms_norm fused_sgd grid_sampler_2d
    group_norm huber_loss index_add index_copy index_fill index_put index_select instance_norm
    layer_norm leaky_relu linalg_vector_norm local_scalar_dense log_sigmoid log_sigmoid_forward
    log_softmax logical_and logical_not logical_or logical_xor masked_fill masked_scale
    masked_scatter masked_select max_pool2d max_pool2d_with_indices mse_loss nan_to_num
    native_batch_norm native_batch_norm_legit native_batch_norm_legit_functional
    native_batch_norm_legit_no_training native_dropout native_group_norm native_layer_norm new_empty
    new_empty_strided new_full new_ones new_zeros nll_loss nll_loss2d nll_loss2d_forward
    nll_loss_forward ones_like pixel_shuffle rand_like randn_like reflection_pad2d replication_pad2d
    rms_norm safe_softmax scaled_dot_product_attention scaled_dot_product_cudnn_attention
    scaled_dot_product_efficient_attention scaled_dot_product_flash_attention scaled_mm scatter_add
    scatter_reduce select_scatter slice_scatter smooth_l1_loss soft_margin_loss split_with_sizes
    std_mean to_copy unsafe_index unsafe_index_put unsafe_masked_index unsafe_view
    upsample_bicubic2d upsample_bilinear2d upsample_nearest2d upsample_nearest_exact2d var_mean
    weight_norm_interface zeros_like
"""
_PHRASES = {tuple(name.split("_")) for name in _KNOWN.split()}
"""Names of operators that hold underscores themselves; sides stand for 1, 2 and 3 of them."""
_LONGEST = max(map(len, _PHRASES))
_MOVING = frozenset(
    [
        "to_copy",
        "unsafe_view",
        "unsafe_index",
        "view",
        "clone",
        "slice",
        "select",
        "transpose",
        "t",
        "permute",
        "cat",
        "stack",
        "split",
        "split_with_sizes",
        "unbind",
        "expand",
        "squeeze",
        "copy",
        "unsqueeze",
        "index",
        "index_put",
        "gather",
        "scatter",
        "empty_like",
        "new_zeros",
        "zeros",
        "zeros_like",
        "ones",
        "full",
        "fill",
        "arange",
        "constant_pad_nd",
        "reshape",
    ]
)


@cache
def fused(name: str) -> tuple[str, ...]:
    """The operators inside a kernel that TorchInductor made, from its name:
    ``triton_per_fused__softmax_add_3`` holds ``_softmax`` and ``add``. Empty for any other."""
    # The names of files, which are the longest that TorchInductor makes; others may be endless.
    match = _FUSED.fullmatch(name) if len(name) < 1 << 10 else None
    words = match[1].split("_") if match and match[1] else []
    found, place = [], 0
    while place < len(words):
        begin = place
        # An operator whose name begins with an underscore stands behind two.
        while place < len(words) - 1 and not words[place]:
            place += 1
        plain = [re.sub(r"[13]d$", "2d", word) for word in words[place : place + _LONGEST]]
        sizes = range(len(plain), 0, -1)
        place += next((n for n in sizes if tuple(plain[:n]) in _PHRASES), 1)
        for more in ("backward", "data"):
            if words[place : place + 1] == [more]:
                place += 1
        found.append("_".join(words[begin:place]))
    return tuple(found)


RULES = (
    # Made by TorchInductor: the kind first, then the names of the operators inside.
    Rule(r"triton_tem_", CONTRACTION),
    Rule(r"triton_(red|per)_", NORMALIZATION),
    Rule(r"(graph_\d+_)?(triton_poi|cpp_fused)_", ELEMENT_WISE),
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
"""The first rule that accepts a kernel gives its class."""


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
    base = base_name(name)
    if inside := fused(base):
        kinds = {operator_class(operator) for operator in inside}
        if _MOVING.issuperset(operator.strip("_") for operator in inside):
            return OTHER
        if "cpp_fused" in base and NORMALIZATION in kinds:
            return NORMALIZATION
    return next((rule.found for rule in RULES if rule.accepts(base, name)), OTHER)
