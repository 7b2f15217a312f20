"""Between the arrays of Arrow and of numpy, without what imports pandas: ``pyarrow.array``,
``to_numpy`` and scalars. That takes as long as reading a small trace, and as much memory."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Width = TypeVar("Width", np.int32, np.int64)


def integers(
    values: NDArray, kind: pa.DataType, absent: NDArray[np.bool_] | None = None
) -> pa.Array:
    """Whole numbers, null where ``absent`` is true."""
    data = pa.py_buffer(np.ascontiguousarray(values, kind.to_pandas_dtype()))
    present = None
    if absent is not None and absent.any():
        present = pa.py_buffer(np.packbits(~absent, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [present, data])


def strings(texts: Sequence[str]) -> pa.Array:
    """Texts; none is null."""
    parts = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.string(), len(parts), buffers)


def numbers(array: pa.Array, null: int) -> NDArray[np.int64]:
    """Whole numbers of an array, ``null`` for null."""
    return _values(array, null, np.int64)


def codes(array: pa.Array, null: int) -> NDArray[np.int32]:
    """The same of numbers below 2**31, in half the memory."""
    return _values(array, null, np.int32)


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """A column without values; all of them share a piece of memory."""
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(nulls(count, kind.index_type), strings([]))
    zeros = _zeros(-(-count // 2**16) * 2**16)
    return pa.Array.from_buffers(kind, count, [zeros, zeros])


@lru_cache(maxsize=1)
def _zeros(count: int) -> pa.Buffer:
    return pa.py_buffer(bytes(8 * count))


def _values(array: pa.Array, null: int, wanted: type[Width]) -> NDArray[Width]:
    validity, data = array.buffers()
    kind = array.type.to_pandas_dtype()
    if not len(array):
        return np.empty(0, wanted)
    place = array.offset * np.dtype(kind).itemsize
    found = np.frombuffer(data, kind, len(array), place).astype(wanted)
    if array.null_count and validity is not None:
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
        found[bits[array.offset : array.offset + len(array)] == 0] = null
    return found
