"""One fault: its patch, and the variant whose certificate must show it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from schemas.base import merge
from tests.attacks.planted.planting import TAKE_A_FUNCTION, Patch, calling, swap

Change = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """A fault, and the variant that shows it."""

    name: str
    family: str
    patch: Patch
    change: Change = field(default_factory=dict)  # of the variant
    base: Change = field(default_factory=dict)  # of the study itself, and so of the reference
    kind: str = "tolerance"  # class of the variant
    ranks: int = 1
    dropout: float = 0.0  # of the study
    late: Change | None = None  # schedule and steps of the timed run, for the steps with dropout
    missed: str = ""  # why no certificate can show it, if none can


BF16: Change = {"training": {"precision": {"kind": "bf16"}}}
FP16: Change = {"training": {"precision": {"kind": "fp16"}}}
MASTERS: Change = {"training": {"precision": {"kind": "bf16_weights"}}}
FOLDED_MASTERS: Change = merge(MASTERS, {"training": {"clipping": "folded"}})
RESIDUAL: Change = merge(BF16, {"model": {"residual": "bf16"}})
ONEDNN: Change = {"training": {"precision": {"kind": "fp32_onednn"}}}
EIGHT_BITS: Change = {"training": {"optimizer": {"kind": "adamw_8bit"}}}
TWO_DEVICES: Change = {"machine": {"devices_per_node": 2}}
DDP: Change = TWO_DEVICES | {"parallel": {"kind": "ddp"}}
FSDP: Change = TWO_DEVICES | {"parallel": {"kind": "fsdp"}}
FSDP_BF16: Change = merge(FSDP, {"parallel": {"bf16": True}})
CENTRAL: Change = TWO_DEVICES | {"parallel": {"kind": "central"}}
RING: Change = merge(DDP, {"parallel": {"hook": {"kind": "ring"}}})
POWER: Change = merge(DDP, {"parallel": {"hook": {"kind": "powersgd", "rank": 1, "start_step": 2}}})
LATE: Change = merge(DDP, {"parallel": {"overlap": False}})
COMPRESS: Change = merge(DDP, {"parallel": {"hook": {"kind": "compress", "dtype": "fp16"}}})
TWO: Change = {"training": {"accumulation": {"micro_batches": 2}}}
PLAIN_ATTENTION: Change = {"model": {"attention": {"kind": "reference"}}}
SOFTMAX: Change = {"model": {"attention": {"kind": "fused_softmax"}, "dropout": 1e-9}}
"""The kernel runs only with dropout, so short runs drop almost nothing."""
SOFTMAX_BF16: Change = merge(SOFTMAX, BF16)
ONE_PASS: Change = {"training": {"loss": {"kind": "one_pass"}}}
PACKED: Change = {"batching": {"rows": {"kind": "packed"}}}
UNPADDED: Change = {"model": {"tokens": {"kind": "unpadded", "blocks": 2}}}
FILLED: Change = merge(UNPADDED, {"model": {"tokens": {"row_multiple": 16}}})
TOGETHER: Change = {"model": {"memory_products": "together"}}
CHECKPOINT: Change = {"model": {"checkpoint": "layers"}}
UNTIED: Change = {"model": {"tied_embeddings": False}}
WIDE: Change = {"model": {"d_model": 32, "d_ff": 64, "heads": 4}}
LARGER: Change = {"model": {"d_model": 64, "d_ff": 128, "heads": 4}}

TEXTS: Change = {
    "task": {"kind": "language_model", "context": 12, "prompt": 2, "continuation": 4},
    "model": {"kind": "decoder_only", "layers": 2, "d_model": 16, "d_ff": 32, "dropout": 0.0}
    | {"heads": 4, "kv_heads": 2},
}
"""A study of a language model in Llama's form."""
WIDE_TEXTS: Change = merge(TEXTS, {"model": {"d_model": 32, "d_ff": 64}})
JOINED: Change = merge(TEXTS, {"task": {"texts": "joined"}})
SINUSOIDAL: Change = {"model": {"positions": {"kind": "sinusoidal"}}}
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

IN_BF16: dict[str, Any] = {"change": BF16, "kind": "statistical"}
IN_FP16: dict[str, Any] = {"change": FP16, "kind": "statistical"}
COMPRESSED: dict[str, Any] = {"change": COMPRESS, "kind": "statistical"}
BY_POWER: dict[str, Any] = {"change": POWER, "kind": "statistical"}
DROPPING: dict[str, Any] = {"base": WIDE, "dropout": 0.2}


def schedule(kind: str) -> Change:
    """A study whose rate warms up for 3 steps."""
    return {"training": {"schedule": {"kind": kind, "peak": 3e-3, "warmup": 3}}}


FAULTS: list[Fault] = []
"""The faults of all imported modules."""


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
    """Adds a fault. Its patch is ``where`` or is made from ``function``, by default the decorated one.
    With an ``attribute`` (or entry) of ``where``, the function replaces it and gets the original
    before the arguments; with ``made``, the function gets the original alone and returns the
    replacement. Without an attribute, ``where`` is one of :data:`TAKE_A_FUNCTION`."""

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
    """:func:`fault` for one family, with the place and settings that its faults share."""
    return lambda name, *more, **own: fault(name, family, *places, *more, **usual | own)


dropping = faults_of("dropout", **DROPPING)
reduced = faults_of("precision", kind="statistical", change=BF16)
in_ddp = faults_of("DDP", ranks=2, change=DDP)
in_fsdp = faults_of("FSDP", ranks=2, change=FSDP)
in_central = faults_of("central", ranks=2, change=CENTRAL)
in_hooks = faults_of("hooks", ranks=2)
