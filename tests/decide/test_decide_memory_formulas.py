"""Bytes per parameter by the formulas of the study."""

from typing import Any

import pytest

from schemas.config.run_spec import RunSpec
from transformer_core.decide.bytes_per_parameter import formula


def spec(**sections: Any) -> RunSpec:
    return RunSpec.model_validate({"variant": "test"} | sections)


@pytest.mark.parametrize(
    ("training", "state"),
    [
        ({}, 16),
        ({"precision": {"kind": "fp16"}}, 18),
        ({"precision": {"kind": "tf32"}}, 16),
        ({"optimizer": {"kind": "sgd"}}, 12),
        ({"optimizer": {"kind": "sgd", "momentum": 0.0}}, 8),
        ({"optimizer": {"kind": "adamw_8bit"}}, 10),
    ],
)
def test_precision_and_optimizer(training, state):
    assert formula(spec(training=training)).model_state == state


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


def test_shards():
    four = {"parallel": {"kind": "fsdp"}, "machine": {"devices_per_node": 4}}
    assert formula(spec(**four)).model_state == 4
    # Copies are of whole layers.
    mixed = formula(spec(**four, training={"precision": {"kind": "bf16"}}))
    assert (mixed.weights, mixed.model_state) == (3, 6)
