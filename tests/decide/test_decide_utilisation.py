"""Utilisation: the arithmetic of exactly the timed steps, over the right ceiling."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from analysis_builders import repeat
from small_training import VOCABULARY, small_spec, small_store

from schemas.config.run_spec import RunSpec
from schemas.errors import ConfigError
from schemas.results import LinkUse, MatrixRate, Roofline, Topology, VendorPeak
from tests.records import record, topology
from transformer_core.data.batching.feeding import Feed
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.decide.utilisation import (
    Lengths,
    ceiling,
    rates,
    step_flops,
    training_flops,
    utilisation,
)

STEPS = 9


def counted(spec: RunSpec, readers: int = 1) -> tuple[pd.DataFrame, list[float], list[float]]:
    """steps.parquet, and the FLOPs of every step without and with padding, batch by batch;
    ``readers`` is the number of ranks that read batches."""
    feeds = [
        Feed(
            small_store(),
            spec.batching,
            seed=spec.training.seed,
            rank=rank,
            world_size=readers,
            micro_batches=spec.training.accumulation.micro_batches,
            device=torch.device("cpu"),
        )
        for rank in range(readers)
    ]
    steps, model, whole = [], [], []
    streams = [feed.batches() for feed in feeds]
    for step in range(1, STEPS + 1):
        batches = [next(stream) for stream in streams]
        first = batches[0]
        row = {"step": step, "epoch": first.epoch, "batch": first.index}
        steps.append(row | {"tokens": first.tokens, "padded_tokens": first.padded_tokens})
        pairs, rectangles = [], []
        for micro in (micro for batch in batches for micro in batch.micro_batches):
            sources = (micro.source != PAD).sum(1).tolist()
            targets = (micro.target_output != PAD).sum(1).tolist()
            if micro.pairs:
                pairs += zip(sources, targets, strict=True)
            rows, width = micro.source.shape
            rectangles += [(width, micro.target_output.size(1))] * rows
        model.append(flops(spec, pairs))
        whole.append(flops(spec, rectangles))
    return pd.DataFrame(steps), model, whole


def flops(spec: RunSpec, pairs: list[tuple[int, int]]) -> float:
    s, t = np.array(pairs, np.int64).T
    sums = Lengths(*(np.array([values.sum()]) for values in (s, t, s * s, t * t, s * t)))
    (total,) = training_flops(spec.model, VOCABULARY, sums)
    return float(total)


def test_the_flops_of_another_librarys_model_are_unknown():
    spec = small_spec(
        task={"kind": "language_model"},
        model={"kind": "huggingface_causal", "architecture": "gpt2"},
    )
    result: Any = SimpleNamespace(status="ok", reason=None, repeats=[repeat(1, [1.0])])
    found = utilisation(spec, result, [Path("steps.parquet")], small_store(), limits("cpu"))
    assert (found.flops_per_second, found.reason) == (None, "the layers of gpt2 are not known")


TWO = {"devices_per_node": 2}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "single": ({}, 1),
    "token_budget": ({"batching": {"kind": "token_budget", "tokens": 120}}, 1),
    "accumulation": ({"training": {"accumulation": {"micro_batches": 3}}}, 1),
    "two_ranks": ({"parallel": {"kind": "ddp"}, "machine": TWO}, 2),
    # One process reads for all.
    "central": ({"parallel": {"kind": "central"}, "machine": TWO}, 1),
}
"""Sections of a run spec, and how many processes read batches."""


@pytest.mark.parametrize("name", CASES)
def test_the_steps_match_those_of_the_feed(name):
    """Over more than an epoch: 40 pairs in batches of 8."""
    sections, readers = CASES[name]
    spec = small_spec(**sections)
    steps, model, whole = counted(spec, readers)
    assert steps["epoch"].max() > 0
    found = step_flops(spec, small_store(), steps, Path("steps.parquet"))
    assert found.model[1:].tolist() == model
    assert found.with_padding[1:].tolist() == whole
    assert all(padded >= useful for padded, useful in zip(whole, model, strict=True))


def test_batches_that_differ_from_the_run_are_refused():
    spec = small_spec()
    steps, _, _ = counted(spec)
    steps.loc[3, "tokens"] += 1
    with pytest.raises(ConfigError, match=r"tokens of step 4 = \d+\n.*other batches"):
        step_flops(spec, small_store(), steps, Path("steps.parquet"))


def test_a_rate_is_the_work_of_a_window_over_its_time():
    windows = [
        SimpleNamespace(first_step=2, last_step=3, seconds=2.0),
        SimpleNamespace(first_step=4, last_step=4, seconds=0.5),
    ]
    work = np.array([np.nan, 1.0, 2.0, 4.0, 8.0])
    repeat: Any = SimpleNamespace(windows=windows)
    assert rates(repeat, work) == [3.0, 16.0]


def test_a_variant_is_compared_with_the_measured_rate(tmp_path):
    spec, file = small_spec(), tmp_path / "steps.parquet"
    steps, model, whole = counted(spec)
    steps.to_parquet(file)
    run = repeat(1, [1.0])
    window = run.windows[0].model_copy(update={"first_step": 2, "last_step": 3, "seconds": 2.0})
    run = run.model_copy(update={"windows": [window], "topology": on_cpu(1, 4)})
    result: Any = SimpleNamespace(status="ok", reason=None, repeats=[run])
    found = utilisation(spec, result, [file], small_store(), limits("cpu", ("fp32", 4, 1e6)))
    assert found.format == "fp32"
    assert found.flops_per_second.median == pytest.approx(sum(model[1:3]) / 2)
    assert found.of_ceiling.median == pytest.approx(sum(model[1:3]) / 2e6)
    assert found.padded_of_ceiling.median == pytest.approx(sum(whole[1:3]) / 2e6)
    assert found.of_vendor_peak is None


def limits(kind: str, *known: tuple[str, int | None, float | None], **more: Any) -> Roofline:
    """Rates of matrix products by format and threads."""
    matrix = [
        MatrixRate(
            format=number_format,
            threads=threads,
            flops_per_second=rate,
            shape=None,
            reason=None if rate else "no units",
        )
        for number_format, threads, rate in known
    ]
    of_device = {"status": "ok", "device": "device", "kind": kind, "threads": 4, "torch": "2"}
    return record(Roofline, **of_device, matrix=matrix, command="again", **more)


def on_cpu(ranks: int, threads: int, nodes: int = 1, **fields: Any) -> Topology:
    local = ranks // nodes
    return topology(ranks, local_world_size=local, nodes=nodes, threads_per_rank=threads, **fields)


def test_ranks_on_a_cpu_share_one_ceiling():
    spec = small_spec()
    measured = limits("cpu", ("fp32", 1, 100.0), ("fp32", 4, 300.0))
    assert ceiling(spec, on_cpu(1, 4), measured) == (300.0, None, None)
    assert ceiling(spec, on_cpu(2, 2), measured) == (300.0, None, None)
    assert ceiling(spec, on_cpu(1, 1), measured) == (100.0, None, None)
    assert ceiling(spec, on_cpu(4, 2, nodes=2), measured) == (600.0, None, None)
    link = LinkUse(kind="emulated", bandwidth=1e8)
    assert ceiling(spec, on_cpu(2, 2, nodes=2, link=link), measured)[0] == 300.0
    found, reason, _ = ceiling(spec, on_cpu(1, 3), measured)
    assert found is None
    assert "3 threads" in str(reason)
    failed = measured.model_copy(update={"status": "failed", "reason": "no memory"})
    assert ceiling(spec, on_cpu(1, 4), failed) == (None, "no memory", None)


def test_ceilings_of_gpus_add_up():
    spec = small_spec(
        parallel={"kind": "ddp"},
        training={"precision": {"kind": "bf16"}},
        machine={"device": "cuda", "devices_per_node": 2},
    )
    peak = VendorPeak(
        device="device", flops_per_second={"bf16": 900.0}, bytes_per_second=1.0, source="sheet"
    )
    measured = limits("cuda", ("fp32", None, 10.0), ("bf16", None, 800.0), vendor=peak)
    gpus = topology(2, device="cuda", threads_per_rank=1)
    assert ceiling(spec, gpus, measured) == (1600.0, None, 1800.0)
    unknown = limits("cuda", ("bf16", None, None))
    assert ceiling(spec, gpus, unknown) == (None, "no units", None)
    found, reason, _ = ceiling(spec, on_cpu(1, 1), measured)
    assert (found, reason) == (None, "the limits are those of a cuda device")


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, "fp32"),
        ({"training": {"precision": {"kind": "tf32"}}}, "tf32"),
        ({"training": {"precision": {"kind": "bf16_matmul"}}}, "bf16"),
        ({"training": {"precision": {"kind": "fp16"}}}, "fp16"),
        ({"parallel": {"kind": "fsdp", "bf16": True}}, "bf16"),
    ],
)
def test_the_format_determines_the_ceiling(sections, expected):
    assert small_spec(**sections).numbers.products == expected
