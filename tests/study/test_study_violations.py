"""Rules between sections of a run spec: each names the field, the problem and a remedy."""

from operator import attrgetter
from typing import Any

import pytest

from schemas.config.run_spec import RunSpec
from tests.training.small_training import small_spec
from transformer_core.study.checks import violations

MODEL = {"kind": "transformer"}
STREAMS = {"model": MODEL | {"qkv": {"kind": "streams"}}}
FLASH = MODEL | {"attention": {"kind": "sdpa", "backend": "flash"}}
UNPADDED = FLASH | {"tokens": {"kind": "unpadded"}}
BF16 = {"training": {"precision": {"kind": "bf16"}}}
GPU, CPU = ({"machine": {"device": device}} for device in ("cuda", "cpu"))
CHUNKED = {"training": {"loss": {"kind": "chunked"}}}
BUDGET = {"kind": "token_budget"}
SHORT = {"filter": {"max_tokens": 16}}
TASK = {"kind": "language_model", "context": 64}
TEXTS = {"task": TASK}
MARIAN = {"model": {"kind": "huggingface"}}
TOGETHER = {"model": MODEL | {"memory_products": "together"}}
TF32 = {"training": {"precision": {"kind": "tf32"}}}
LINKED = {"machine": {"nodes": 3, "link": {"bandwidth": "100Mbit/s"}}}
THREE_PAIRS = {"batching": {"kind": "fixed_size", "pairs": 3}}
STATIC = {"kind": "ddp", "static_graph": True}
ZERO = {"training": {"optimizer": {"kind": "adamw_zero"}}}
LEARNED = {"kind": "decoder_only", "positions": {"kind": "learned", "length": 63}}


def micro_batches(count: int) -> dict[str, Any]:
    return {"accumulation": {"micro_batches": count}}


def constant(steps: int) -> dict[str, Any]:
    return {"training": {"steps": steps, "schedule": {"kind": "constant", "peak": 1.0}}}


def noam(steps: int, warmup: int) -> dict[str, Any]:
    return {"training": {"steps": steps, "schedule": {"kind": "noam", "warmup": warmup}}}


def linear_loss(precision: str) -> dict[str, Any]:
    loss = {"loss": {"kind": "linear_cross_entropy"}, "precision": {"kind": precision}}
    return {"training": loss}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"model": MODEL | {"d_model": 96, "heads": 5}}, "model.heads", "use 4 or 6 heads"),
    ({"model": MODEL | {"d_model": 15, "heads": 3}}, "model.d_model", "use 16"),
    (MARIAN | {"filter": {"max_tokens": 974}}, "filter.max_tokens", "use at most 973"),
    (STREAMS | CPU, "model.qkv.kind", "set machine.device to auto or cuda"),
    (TOGETHER | {"parallel": {"kind": "fsdp"}}, "model.memory_products", "use per_layer"),
    # Attention kernels
    ({"model": FLASH} | BF16 | GPU, "model.attention.backend", "takes no mask"),
    ({"model": UNPADDED} | TF32 | GPU, "model.attention.backend", "computes in 16 bits"),
    ({"model": UNPADDED} | BF16 | CPU, "model.attention.backend", "is a CUDA kernel"),
    ({"model": MODEL | {"residual": "bf16"}}, "model.residual", "use precision: {kind: bf16}"),
    # Gradients that the first backward of a static graph must reduce
    ({"parallel": STATIC | {"overlap": False}}, "parallel.static_graph", "parallel.overlap: true"),
    (
        {"parallel": STATIC, "training": micro_batches(2)},
        "parallel.static_graph",
        "accumulation.synchronise: every, or static_graph: false",
    ),
    # State that ranks with the same weights and gradients divide
    (ZERO | {"parallel": {"kind": "central"}}, "training.optimizer.kind", "parallel: {kind: ddp}"),
    (ZERO | {"parallel": {"kind": "local_steps"}}, "training.optimizer.kind", "kind: adamw"),
    # Averages that ranks would compute from different weights
    (
        {
            "parallel": {"kind": "local_steps"},
            "training": {"optimizer": {"kind": "adamw_schedule_free"}},
        },
        "training.optimizer.kind",
        "parallel: {kind: ddp}, or optimizer: {kind: adamw}",
    ),
    # Losses that never hold all logits
    (CHUNKED | {"model": {"kind": "torch_nn"}}, "training.loss.kind", "or model: {kind: transf"),
    (CHUNKED | {"parallel": {"kind": "central"}}, "training.loss.kind", "local_loss: true"),
    (CHUNKED | {"parallel": {"kind": "data_parallel"}}, "training.loss.kind", "local_loss: true"),
    (linear_loss("bf16"), "training.loss.kind", "use loss: {kind: one_pass}, or precision"),
    (linear_loss("bf16_weights"), "training.loss.kind", "or precision: {kind: fp32}"),
    (linear_loss("fp16"), "training.loss.kind", "or precision: {kind: fp32}"),
    # Sizes of batches, and lengths
    (THREE_PAIRS | {"training": micro_batches(4)}, "batching.pairs", "use at least 4 pairs"),
    (SHORT | {"batching": BUDGET | {"tokens": 33}}, "batching.tokens", "use at least 34 tokens"),
    (constant(29), "training.steps", "use at least 30 steps"),
    (noam(steps=50, warmup=51), "training.schedule.warmup", "use at most 50"),
    ({"parallel": {"kind": "ddp"}} | LINKED, "machine.nodes", "use nodes: 2"),
    # Tasks
    (TEXTS | {"corpus": {"kind": "grammar"}}, "corpus.kind", ""),
    (TEXTS | {"model": MODEL}, "model.kind", ""),
    (TEXTS | {"filter": {"max_tokens": 32}}, "filter.max_tokens", ""),
    (TEXTS | {"batching": BUDGET | {"rows": {"kind": "packed"}}}, "batching.rows.kind", ""),
    (TEXTS | {"batching": BUDGET | {"tokens": 63}}, "batching.tokens", ""),
    ({"task": TASK | {"prompt": 60}}, "task.continuation", ""),
    (TEXTS | {"model": LEARNED}, "model.positions.length", ""),
    ({"corpus": {"kind": "grammar_documents"}}, "corpus.kind", ""),
    ({"model": {"kind": "decoder_only"}}, "model.kind", ""),
]
RIGHT: list[dict[str, Any]] = [
    {"model": MODEL | {"d_model": 96, "heads": 6}},
    STREAMS | {"machine": {"device": "auto"}},
    STREAMS | GPU,
    {"model": MODEL | {"residual": "bf16"}} | BF16,
    {"model": UNPADDED} | BF16 | GPU,
    {"model": MODEL | {"attention": {"kind": "sdpa", "backend": "efficient"}}} | GPU,
    {"model": MODEL | {"attention": {"kind": "sdpa"}}} | CPU,
    CHUNKED | {"parallel": {"kind": "central", "local_loss": True}},
    ZERO | {"parallel": {"kind": "ddp"}},
    linear_loss("fp32"),
    linear_loss("bf16_matmul"),
    {"batching": {"kind": "fixed_size", "pairs": 1}},
    SHORT | {"batching": BUDGET | {"tokens": 34}},
    MARIAN | {"filter": {"max_tokens": 973}},
    noam(steps=30, warmup=30),
    TEXTS,
    {
        "parallel": STATIC,
        "training": {"accumulation": {"micro_batches": 2, "synchronise": "every"}},
    },
]


@pytest.mark.parametrize(("sections", "field", "words"), WRONG)
def test_contradictions_are_named(sections, field, words):
    spec = RunSpec.model_validate({"variant": "v"} | sections)
    found = [*violations(spec)]
    assert {name for name, *_ in found} == {field}
    _, value, message, remedy = found[0]
    assert value == attrgetter(field)(spec)
    assert remedy
    assert words in f"{message} {remedy}"


@pytest.mark.parametrize("sections", RIGHT)
def test_consistent_sections_are_accepted(sections):
    assert [*violations(RunSpec.model_validate({"variant": "v"} | sections))] == []


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"compile": "graphs"}, "parallel": {"kind": "ddp"}},
        {"model": {"compile": "graphs"}, "training": micro_batches(2)},
        {"parallel": {"kind": "fsdp"}},
        {"model": {"tokens": {"kind": "unpadded"}}},
        {"model": {"checkpoint": "layers"}},
        {"model": {"norm_method": {"kind": "with_residual"}}},  # the compiler generates it itself
    ],
)
def test_models_that_cannot_be_compiled_are_refused(sections):
    model = {"compile": "layers"} | sections.get("model", {})
    found = violations(small_spec(**(sections | {"model": model})))
    assert [field for field, *_ in found] == ["model.compile"]
