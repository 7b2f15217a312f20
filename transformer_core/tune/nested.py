"""Tensors in nested structures: batches, arguments and results of modules.

Imports nothing else of the project: the user's modules may have any name.
"""

from collections import UserDict
from collections.abc import Callable
from typing import Any

from torch import Tensor


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of ``value`` with ``change`` applied to each of its tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        items = [mapped(each, change) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict | UserDict):  # Batches of transformers are the latter.
        return {key: mapped(each, change) for key, each in value.items()}
    return value


def tensors(value: Any, floating: bool = True) -> list[Tensor]:
    """All tensors of a structure; unless ``floating`` is False, only those of floating point."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() or not floating else []
    if isinstance(value, tuple | list):
        return [t for each in value for t in tensors(each, floating)]
    if hasattr(value, "values"):
        return [t for each in value.values() for t in tensors(each, floating)]
    return []
