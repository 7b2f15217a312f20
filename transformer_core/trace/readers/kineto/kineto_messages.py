"""How large the messages of collectives are, by what events of Kineto traces say of them."""

import json
from typing import Any

import msgspec

from transformer_core.trace.operators.collective_names import collective_named, message_bytes
from transformer_core.trace.operators.operator_classes import element_bytes
from transformer_core.trace.readers.kineto.kineto_events import Communication


def communication(args: Any) -> Communication | None:
    """What an event says of a collective; null where that is not as it should be."""
    if isinstance(args, Communication):
        return args
    try:
        return msgspec.json.decode(args or b"{}", type=Communication)
    except msgspec.ValidationError:
        return None


def said_bytes(args: Communication) -> int | None:
    """Size of the message of an event that tells its collective."""
    width = element_bytes(args.dtype or "")
    if width is None or args.sent is None:
        return None
    return message_bytes(
        collective_named(args.collective or ""),
        args.sent * width,
        (args.received or 0) * width,
        args.group_size,
    )


def input_bytes(text: Any) -> int | None:
    """Bytes of the inputs of a range around a collective."""
    try:
        args = json.loads(bytes(text) or b"{}")
        pairs = zip(args.get("Input Dims", ()), args.get("Input type", ()), strict=False)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    total = 0
    for shape, kind in pairs:
        width = element_bytes(str(kind))
        if width is None or not isinstance(shape, list) or not shape:
            continue
        if not all(type(side) is int and side >= 0 for side in shape):
            continue
        size = width
        for side in shape:
            size *= side
        total += size
    return total or None
