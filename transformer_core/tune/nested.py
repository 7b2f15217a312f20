"""Tensors in nested structures: batches, arguments and results of modules.

Imports nothing else of the project: the user's modules may have any name.
"""

from collections import UserDict
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of ``value`` with ``change`` applied to each of its tensors. Logits that do not exist yet
    (:mod:`transformer_core.tune.techniques.chunked_loss`) remember it."""
    if isinstance(value, Tensor):
        return change(value)
    if hasattr(type(value), "changed_later"):
        return value.changed_later(change)
    if isinstance(value, tuple | list):
        items = [mapped(each, change) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if is_dataclass(value) and not isinstance(value, type):
        whole = copy(value)
        frozen = type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]
        # An output of transformers is also a dictionary: its own assignment keeps both in step.
        assign = object.__setattr__ if frozen else setattr
        for field in fields(value):
            assign(whole, field.name, mapped(getattr(value, field.name), change))
        return whole
    if isinstance(value, dict | UserDict):  # Batches of transformers are the latter.
        found = copy(value)
        for key, each in value.items():
            found[key] = mapped(each, change)
        return found
    return value


def tensors(value: Any, floating: bool = True) -> list[Tensor]:
    """All tensors of a structure; unless ``floating`` is False, only those of floating point."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() or not floating else []
    if isinstance(value, Mapping):
        value = [*value.values()]
    elif is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, tuple | list):
        return [t for each in value for t in tensors(each, floating)]
    return []
