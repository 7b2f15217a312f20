"""Changes of the tiny study: variants, and studies of other shapes and tasks."""

from typing import Any

from schemas.base import merge

Change = dict[str, Any]

BF16: Change = {"training": {"precision": {"kind": "bf16"}}}
FP16: Change = {"training": {"precision": {"kind": "fp16"}}}
MASTERS: Change = {"training": {"precision": {"kind": "bf16_weights"}}}
FOLDED_MASTERS: Change = merge(MASTERS, {"training": {"clipping": "folded"}})
RESIDUAL: Change = merge(BF16, {"model": {"residual": "bf16"}})
ONEDNN: Change = {"training": {"precision": {"kind": "fp32_onednn"}}}
EIGHT_BITS: Change = {"training": {"optimizer": {"kind": "adamw_8bit"}}}
TWO_DEVICES: Change = {"machine": {"devices_per_node": 2}}
FOUR_DEVICES: Change = {"machine": {"devices_per_node": 4}}
DDP: Change = TWO_DEVICES | {"parallel": {"kind": "ddp"}}
DDP_OF_FOUR: Change = DDP | FOUR_DEVICES
FSDP: Change = TWO_DEVICES | {"parallel": {"kind": "fsdp"}}
FSDP_BF16: Change = merge(FSDP, {"parallel": {"bf16": True}})
FSDP_OF_FOUR: Change = FSDP | FOUR_DEVICES
TENSOR: Change = TWO_DEVICES | {"parallel": {"kind": "tensor"}}
SEQUENCE: Change = merge(TENSOR, {"parallel": {"sequence": True}})
TENSOR_OF_FOUR: Change = TENSOR | FOUR_DEVICES | {"model": {"qkv": {"kind": "separate"}}}
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

UNEVEN: Change = {"batching": {"pairs": 7}}
"""Batches that neither two ranks nor an epoch divide evenly."""

IN_BF16: dict[str, Any] = {"change": BF16, "kind": "statistical"}
IN_FP16: dict[str, Any] = {"change": FP16, "kind": "statistical"}
COMPRESSED: dict[str, Any] = {"change": COMPRESS, "kind": "statistical"}
BY_POWER: dict[str, Any] = {"change": POWER, "kind": "statistical"}
DROPPING: dict[str, Any] = {"base": WIDE, "dropout": 0.2}


def schedule(kind: str) -> Change:
    """A study whose rate warms up for 3 steps."""
    return {"training": {"schedule": {"kind": kind, "peak": 3e-3, "warmup": 3}}}
