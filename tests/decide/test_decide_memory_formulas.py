"""Bytes per parameter by the formulas of the study."""

from typing import Any

import pytest

from schemas.config.run_spec import RunSpec
from transformer_core.decide.bytes_per_parameter import formula


def spec(**sections: Any) -> RunSpec:
    return RunSpec.model_validate({"variant": "test"} | sections)


FOUR_SHARDS = {"parallel": {"kind": "fsdp"}, "machine": {"devices_per_node": 4}}
BF16 = {"training": {"precision": {"kind": "bf16"}}}


@pytest.mark.parametrize(
    ("sections", "weights", "state"),
    [
        ({}, 4, 16),
        ({"training": {"precision": {"kind": "fp16"}}}, 6, 18),
        ({"training": {"precision": {"kind": "tf32"}}}, 4, 16),
        ({"training": {"optimizer": {"kind": "sgd"}}}, 4, 12),
        ({"training": {"optimizer": {"kind": "sgd", "momentum": 0.0}}}, 4, 8),
        ({"training": {"optimizer": {"kind": "adamw_8bit"}}}, 4, 10),
        (FOUR_SHARDS, 1, 4),
        # Copies are of whole layers.
        (FOUR_SHARDS | BF16, 3, 6),
    ],
)
def test_model_state(sections, weights, state):
    found = formula(spec(**sections))
    assert (found.weights, found.model_state) == (weights, state)


@pytest.mark.parametrize(
    ("parallel", "buckets"),
    [
        ({"kind": "single"}, 0),
        ({"kind": "ddp"}, 4),
        ({"kind": "ddp", "bucket_view": True}, 0),
        ({"kind": "ddp", "overlap": False}, 0),
        ({"kind": "ddp", "hook": {"kind": "powersgd"}}, None),
    ],
)
def test_buckets(parallel, buckets):
    found = formula(spec(parallel=parallel))
    assert found.buckets == buckets
    assert found.model_state == 16
