"""Classes of operators and kernels, and FLOPs and bytes of operators from the shapes of their inputs.

The classes are those of Ivanov et al., "Data Movement Is All You Need" (arXiv 2007.00072): tensor
contractions, statistical normalizations (softmax, layer norm and all reductions) and element-wise
operators. Operators that only move data (copies, casts, indexing) are ``other``.

If a trace does not tell which operator launched a kernel, the class follows from the name of the
kernel's function. Name spaces, template arguments and parameters are ignored: they contain names of
libraries (``fbgemm_gpu::``) and of the operation that a generic kernel applies. operators.toml lists
all names.
"""

import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import mul
from pathlib import Path

OPERATOR_CLASSES = ("contraction", "normalization", "element_wise", "communication", "other")
CONTRACTION, NORMALIZATION, ELEMENT_WISE, COMMUNICATION, OTHER = OPERATOR_CLASSES
"""In the order of tables and figures."""
COUNTED = (CONTRACTION, NORMALIZATION, ELEMENT_WISE)
"""The classes whose arithmetic and traffic follow from the shapes; those of others are unknown."""

Shape = Sequence[int]

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_BY_NAME = [
    (re.compile("".join(pattern.split())), found) for found, pattern in _TABLES["operators"].items()
]
_COMMUNICATION_SPACES = ("c10d::", "_c10d_functional::", "nccl:", "gloo:", "record_param_comms")


COMPILED = re.compile(r"(graph_\d+_)?(triton_|cpp_fused_)")
"""The beginning of the names of TorchInductor's kernels."""


def operator_class(name: str) -> str:
    """The class of an operator by its name (``aten::addmm``); ``other`` if unknown."""
    if COMPILED.match(name):
        return kernel_class(name)
    if name.startswith(_COMMUNICATION_SPACES):
        return COMMUNICATION
    base = name.rpartition("::")[2]
    for pattern, found in _BY_NAME:
        if pattern.fullmatch(base):
            return found
    return OTHER


@dataclass(frozen=True)
class Work:
    """The arithmetic and memory traffic of one call; null if its shapes do not determine them."""

    flops: int | None
    bytes: int | None


UNKNOWN = Work(None, None)


def element_bytes(kind: str) -> int | None:
    """Bytes per element, by the trace's name for the type; null unless it is a tensor."""
    return _TABLES["element_bytes"].get(kind.lower())


FORMATS = frozenset(_TABLES["formats"].values())  # the usual names of number formats


def format_of(kind: str) -> str | None:
    """The usual name of a number format, by the trace's name for it; null for integers and for
    anything but tensors."""
    return _TABLES["formats"].get(kind.lower())


def work_of(
    name: str, shapes: Sequence[Shape | None], kinds: Sequence[str], values: Sequence[object] = ()
) -> Work:
    """FLOPs and bytes of an operator, from the shapes and types of its inputs.

    ``shapes`` holds an empty shape for an input that is not a tensor. ``kinds`` holds the types by the
    trace's names; if it is empty, only the FLOPs are known. Operators without arithmetic have
    bytes alone. The result of a reduction does not count as traffic. Shapes that do not fit the
    operator, such as those of another library's operator of the same name, give ``UNKNOWN``.
    ``values`` holds the inputs of a convolution, or the FLOPs and gigabytes that TorchInductor
    counted for its kernel.
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
    if found not in COUNTED or not any(tensors):
        return UNKNOWN
    largest = max(math.prod(shape) for shape in tensors if shape)
    flops = largest * _TABLES["operations"].get(base, 1)
    if base == "where":  # the result has the type of the values, not of the condition before them
        tensors, kinds = [*tensors[1:], tensors[0]], [*kinds[1:], *kinds[:1]]
    # A reduction's result is small; a backward of layer norm writes what the forward read.
    reduces = not re.search(r"softmax|norm", base) and operator_class(base) == NORMALIZATION
    return _work(flops, tensors, kinds, 0 if reduces else largest)


def _work(flops: int, shapes: Sequence[Shape], kinds: Sequence[str], written: int | None) -> Work:
    """The work of an operator that reads its inputs once and writes ``written`` elements of the type
    of the first."""
    counts = [math.prod(shape) for shape in shapes if shape]
    widths = [_width(kinds, place) for place, shape in enumerate(shapes) if shape]
    known = [width for width in widths if width is not None]
    if written is None or not known or len(known) < len(widths):
        return Work(flops, None)
    return Work(flops, written * known[0] + sum(map(mul, counts, known)))


def _width(kinds: Sequence[str], place: int) -> int | None:
    return element_bytes(kinds[place]) if place < len(kinds) else None


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
    # The usual result of a product in 8 bits has 16 bits, or 32 for integers.
    wider = {"scaled_mm": 2, "int_mm": 4}.get(base, 1)
    return _product(a, b[-1], shapes, kinds, wider)


def _linear(shapes: Sequence[Shape], kinds: Sequence[str]) -> Work:
    """``input @ weight.T + bias``; a weight of one row may be a vector."""
    if len(shapes) < 2 or not shapes[0] or len(shapes[1]) not in (1, 2):
        return UNKNOWN
    if shapes[1][-1] != shapes[0][-1]:
        return UNKNOWN
    return _product(shapes[0], shapes[1][0] if len(shapes[1]) == 2 else 1, shapes, kinds)


def _product(
    left: Shape, width: int, shapes: Sequence[Shape], kinds: Sequence[str], wider: int = 1
) -> Work:
    """The work of a product of ``left`` that replaces its last side by ``width``."""
    written = math.prod(left[:-1]) * width * wider
    return _work(2 * math.prod(left) * width, shapes, kinds, written)


_HEADS_THIRD = ("flash_attention", "efficient_attention")
"""Operators whose inputs are [batch, length, heads, width], not [batch, heads, length, width]."""


def _attention(base: str, shapes: Sequence[Shape], kinds: Sequence[str]) -> Work:
    """Two products forward; five backward, one of which recomputes the scores."""
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


SLIDES: dict[str, list[int]] = _TABLES["slides"]
"""The places of stride, padding and dilation among the inputs."""


def _convolution(
    base: str, shapes: Sequence[Shape], kinds: Sequence[str], values: Sequence[object]
) -> Work:
    """One product with the weights at each place of the output, or of the input if transposed;
    backward the same for each requested gradient (input, weights)."""
    backward = base == "convolution_backward"
    image, weight = (*shapes[backward : backward + 2], (), ())[:2]
    if len(image) != len(weight) or len(image) < 3:
        return UNKNOWN
    transposed = "transpose" in base or _value(values, 7 if backward else 6) is True
    output: Shape | None = tuple(shapes[0]) if backward else None
    if base in SLIDES and not transposed:
        slides = [_sides(_value(values, place), len(image) - 2) for place in SLIDES[base]]
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
    elements = None if None in written else sum(math.prod(shape or ()) for shape in written)
    return _work(flops, shapes, kinds, elements)


def _value(values: Sequence[object], place: int) -> object:
    """An input that is not a tensor, as traces write it: ``[1, 1]``, ``False``; null if unknown."""
    try:
        return json.loads(str(values[place]).lower())
    except (IndexError, ValueError, RecursionError):
        return None


def _sides(value: object, count: int) -> list[int] | None:
    """A number for each side; null if ``value`` is anything else."""
    if not isinstance(value, list) or not all(type(side) is int and side >= 0 for side in value):
        return None
    return value * count if len(value) == 1 else value if len(value) == count else None


def _scaled(values: Sequence[object], unit: float) -> int | None:
    """The first value times its unit; null if it is missing or zero."""
    try:
        found = float(str(*values[:1])) * unit
    except ValueError:
        return None
    return round(found) if 0 < found < 2**62 else None


_FUSED = re.compile(
    r"(?:graph_\d+_)?(?:triton_[a-z]+|cpp)_fused(?:_(\w*?))??(?:_\d+)*(?:_0d[\dcde]*_?)?"
)
PHRASES = {tuple(name.split("_")) for name in _TABLES["inside_compiled"]["known"].split()}
"""Names of operators that contain underscores; ``2d`` also stands for ``1d`` and ``3d``."""
_LONGEST = max(map(len, PHRASES))
_MOVING = frozenset(_TABLES["inside_compiled"]["moving"].split())


@cache
def fused(name: str) -> tuple[str, ...]:
    """The operators fused in a kernel of TorchInductor, by the name of the kernel:
    ``triton_per_fused__softmax_add_3`` contains ``_softmax`` and ``add``. Empty for other kernels."""
    # TorchInductor's names fit into file names; other names can be arbitrarily long.
    match = _FUSED.fullmatch(name) if len(name) < 1 << 10 else None
    words = match[1].split("_") if match and match[1] else []
    found, place = [], 0
    while place < len(words):
        begin = place
        # A name that begins with an underscore follows a second one.
        while place < len(words) - 1 and not words[place]:
            place += 1
        plain = [re.sub(r"[13]d$", "2d", word) for word in words[place : place + _LONGEST]]
        sizes = range(len(plain), 0, -1)
        place += next((n for n in sizes if tuple(plain[:n]) in PHRASES), 1)
        for more in ("backward", "data"):
            if words[place : place + 1] == [more]:
                place += 1
        found.append("_".join(words[begin:place]))
    return tuple(found)


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
    """The last part of a mangled name (Itanium C++ ABI, nested and plain names), in which each part
    follows its length. Empty for other names."""
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
        if NORMALIZATION in kinds and re.match(r".*cpp_fused|triton_unk", base):
            return NORMALIZATION
    for begins, found, *holds in _TABLES["kernels"]["rules"]:
        if re.match(begins, base, re.I) and re.search("".join(holds), name, re.I):
            return str(found)
    return OTHER
