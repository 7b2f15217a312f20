"""One fault: its patch, and the variant whose certificate must show it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from schemas.base import merge
from tests.attacks.planted.planting import TAKE_A_FUNCTION, Patch, calling, swap

Change = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """One fault, and where it shows."""

    name: str
    family: str
    patch: Patch
    change: Change = field(default_factory=dict)
    """What the variant changes."""
    base: Change = field(default_factory=dict)
    """What the study itself has otherwise; the reference has it too."""
    kind: str = "tolerance"
    """Class of the variant."""
    ranks: int = 1
    dropout: float = 0.0
    """Dropout of the study."""
    late: Change | None = None
    """Schedule and steps of the timed run, for the steps with dropout."""
    missed: str = ""
    """Why no certificate can show it, where none can."""


BF16: Change = {"training": {"precision": {"kind": "bf16"}}}
FP16: Change = {"training": {"precision": {"kind": "fp16"}}}
DDP: Change = {"parallel": {"kind": "ddp"}, "machine": {"devices_per_node": 2}}
FSDP: Change = {"parallel": {"kind": "fsdp"}, "machine": {"devices_per_node": 2}}
CENTRAL: Change = {"parallel": {"kind": "central"}, "machine": {"devices_per_node": 2}}
RING: Change = DDP | {"parallel": {"kind": "ddp", "hook": {"kind": "ring"}}}
POWER: Change = DDP | {
    "parallel": {"kind": "ddp", "hook": {"kind": "powersgd", "rank": 1, "start_step": 2}}
}
LATE: Change = DDP | {"parallel": {"kind": "ddp", "overlap": False}}
COMPRESS: Change = DDP | {
    "parallel": {"kind": "ddp", "hook": {"kind": "compress", "dtype": "fp16"}}
}
TWO: Change = {"training": {"accumulation": {"micro_batches": 2}}}
PLAIN_ATTENTION: Change = {"model": {"attention": {"kind": "reference"}}}
PACKED: Change = {"batching": {"rows": {"kind": "packed"}}}
UNPADDED: Change = {"model": {"tokens": {"kind": "unpadded", "blocks": 2}}}
UNTIED: Change = {"model": {"tied_embeddings": False}}
TEXTS: Change = {
    "task": {"kind": "language_model", "context": 12, "prompt": 2, "continuation": 4},
    "model": {
        "kind": "decoder_only",
        "layers": 2,
        "d_model": 16,
        "d_ff": 32,
        "heads": 4,
        "kv_heads": 2,
        "dropout": 0.0,
    },
}
"""A study of a language model, as Llama is made."""
GPT2: Change = merge(
    TEXTS,
    {
        "model": {
            "kv_heads": 4,
            "bias": True,
            "positions": {"kind": "learned", "length": 12},
            "norm": {"kind": "layer"},
            "feed_forward": {"kind": "gelu"},
        }
    },
)
WIDE: Change = {"model": {"d_model": 32, "d_ff": 64, "heads": 4}}

LARGER: Change = {"model": {"d_model": 64, "d_ff": 128, "heads": 4}}

CHECKPOINT: Change = {"model": {"checkpoint": "layers"}}
IN_BF16: dict[str, Any] = {"change": BF16, "kind": "statistical"}
IN_FP16: dict[str, Any] = {"change": FP16, "kind": "statistical"}
COMPRESSED: dict[str, Any] = {"change": COMPRESS, "kind": "statistical"}
BY_POWER: dict[str, Any] = {"change": POWER, "kind": "statistical"}
DROPPING: dict[str, Any] = {"base": WIDE, "dropout": 0.2}


def schedule(**values: Any) -> Change:
    return {"training": {"schedule": {"peak": 3e-3, **values}}}


FAULTS: list[Fault] = []
"""All that are planted by the modules that are imported."""


def fault(
    name: str,
    family: str,
    where: Any,
    attribute: str = "",
    function: Any = None,
    change: Change | None = None,
    base: Change | None = None,
    made: bool = False,
    **more: Any,
) -> Callable[[Any], Any]:
    """Adds a fault whose patch is ``where``, or is made of ``function`` or else the one below: with an
    attribute (or entry) of ``where``, the function takes its place, and gets the original before the
    arguments; with ``made``, it gets the original alone and returns what takes its place. Without an
    attribute, ``where`` is one of :data:`TAKE_A_FUNCTION`."""

    def add(patch: Patch) -> None:
        FAULTS.append(Fault(name, family, patch, change or {}, base or {}, **more))

    def plant(function: Any) -> Any:
        made_of = function if made else calling(function)
        add(swap(where, attribute, made_of) if attribute else where(function))
        return function

    if function is not None:
        plant(function)
    elif not attribute and where not in TAKE_A_FUNCTION:
        add(where)
    return plant


def faults_of(family: str, *places: Any, **usual: Any) -> Callable[..., Any]:
    """:func:`fault` of one family, with the place and the settings that its faults share."""
    return lambda name, *more, **own: fault(name, family, *places, *more, **usual | own)


dropping = faults_of("dropout", **DROPPING)
reduced = faults_of("precision", kind="statistical", change=BF16)
in_ddp = faults_of("DDP", ranks=2, change=DDP)
in_fsdp = faults_of("FSDP", ranks=2, change=FSDP)
in_central = faults_of("central", ranks=2, change=CENTRAL)
in_hooks = faults_of("hooks", ranks=2)
