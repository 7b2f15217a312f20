"""Every variant of the GPU studies, laid out as for CUDA but run on a CPU.

Layers compile without graph breaks, no step makes the host wait, and steps have the expected
number of operators.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import takewhile
from operator import methodcaller
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from torch import Tensor
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from schemas.base import merge
from schemas.config.run_spec import RunSpec
from schemas.results import BatchShape
from tests.imitated_gpu.environment import imitated_gpu
from tests.training.small_training import (
    VOCABULARY,
    Watcher,
    small_setup,
    small_spec,
    store_of,
)
from transformer_core.data.batching.feeding import Feed
from transformer_core.measure import memory_prediction
from transformer_core.measure.heaviest_batch import blank_batch
from transformer_core.measure.memory_prediction import imitated_cuda
from transformer_core.models import qkv_projection, sublayers
from transformer_core.models import transformer as transformers
from transformer_core.models.compiled_layers import UNPLAYED, _calls, compile_layers
from transformer_core.models.device_kind import laid_out_for
from transformer_core.models.registry import build_model
from transformer_core.parallel.topology import Process, fsdp_fault
from transformer_core.study.checks import violations
from transformer_core.study.resolve import check_study, resolve, resolve_all
from transformer_core.study.variants import read_variants
from transformer_core.training.loop import optimizer_step, train

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "batching": {"tokens": 200},
    "filter": {"max_tokens": 9},
    "model": {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "d_ff": 64, "heads": 4},
    "training": {"validate_every": 0},
}
OTHERS = ("torch_nn", "huggingface")
"""Models of other libraries, whose layout is not ours to change."""


def studied() -> dict[str, RunSpec]:
    """The run spec of every variant of both studies, with a small model."""
    variants, _ = read_variants(ROOT / "config/variants.yaml")
    found: dict[str, RunSpec] = {}
    for name in ("gpu_check", "h200"):
        file = ROOT / f"config/studies/{name}.yaml"
        study = check_study(merge(yaml.safe_load(file.read_text()), SMALL), str(file))
        found = resolve_all(study, variants) | found
    return found | {"adam_published": resolve(study, "adam_published", variants)}


def laid_out_alike(spec: RunSpec) -> str:
    """The settings that a step's layout depends on, to find variants with the same layout."""
    t = spec.training
    arithmetic = (t.precision, t.optimizer, t.loss, t.clipping, t.accumulation)
    return repr((spec.model, *arithmetic, spec.parallel, spec.batching.rows.kind))


SPECS = studied()
_FIRST = {laid_out_alike(spec): name for name, spec in reversed(SPECS.items())}
OURS = [name for name in _FIRST.values() if name not in (*OTHERS, "adamw_8bit")]
COUNTERS = "adam_published", "adamw_unfused"
"""Optimizers that keep their step counts on the host even if the weights are on a GPU."""
UNSTUDIED: dict[str, dict[str, Any]] = {
    "published": {"model": {"attention": {"kind": "published"}}},
    "packed": {"batching": {"rows": {"kind": "packed"}}},
    "unclipped": {"training": {"clip_norm": 0.0}},
    "chunked": {"training": {"loss": {"kind": "chunked", "rows": 7}}},
    "central": {"parallel": {"kind": "central"}},
    "central_local_loss": {"parallel": {"kind": "central", "local_loss": True}},
}
"""Settings that occur in neither study."""
KERNEL = "attention_cudnn"
"""Asks for a kernel that does not exist on a CPU, not even for tensors without memory."""


def on_a_cpu(spec: RunSpec) -> RunSpec:
    """``spec`` without settings that a CPU refuses and that do not affect the layout."""
    machine = {"device": "cpu", "cuda_allocator": "expandable_segments"}
    spec = spec.model_copy(update={"machine": spec.machine.model_copy(update=machine)})
    return memory_prediction._on_a_cpu(spec)


def changed(spec: RunSpec, **fields: Any) -> RunSpec:
    """``spec`` with other fields of its model."""
    return spec.model_copy(update={"model": spec.model.model_copy(update=fields)})


def with_one_layer(spec: RunSpec) -> RunSpec:
    """``spec`` with one layer on each side: more would repeat the same operators."""
    return changed(spec, encoder_layers=1, decoder_layers=1)


@pytest.fixture(autouse=True)
def _as_if_on_cuda(monkeypatch):
    """Replaces streams by calls in turn, and FlashAttention by :func:`sentences`."""
    monkeypatch.setattr(qkv_projection, "require_cuda", lambda: None)
    monkeypatch.setattr(qkv_projection, "concurrently", in_turn)
    monkeypatch.setattr(qkv_projection, "between_synchronisations", in_turn)
    monkeypatch.setattr(sublayers, "flash_over_sentences", sentences)


def in_turn(work: Any, x: Tensor) -> list[Tensor]:
    return [each(x) for each in work]


def sentences(q: Tensor, k: Tensor, v: Tensor, starts: Any, *_: Any) -> Tensor:
    """A stand-in whose result depends on every tensor that FlashAttention over sentences takes."""
    return q + (k + v).mean(0) + (starts[0].sum() + starts[1].sum()) * 0


class OneKernel(TorchFunctionMode):
    """Stands in for a GPU's fused attention in 16 bits with dropout, which a CPU lacks."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        q, k, v = args
        return (q @ k.transpose(-2, -1)).softmax(-1) @ v


_WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")
"""Operators whose result the host reads, or whose output shape depends on values."""


class Waited(Exception):
    """The host would wait for its device."""


class NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket).split(".")[-1]
        if name in _WAITS or name.startswith("_unique"):
            raise Waited(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Raise if the host reads a tensor: with a GPU it would wait and launch nothing meanwhile."""
    with monkeypatch.context() as patched, NoWaiting():
        for reading in ("tolist", "numpy", "cpu"):
            patched.setattr(Tensor, reading, Mock(side_effect=Waited(reading)))
        yield


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("name", [*(name for name in OURS if name not in COUNTERS), *UNSTUDIED])
def test_the_second_step_does_not_wait(name, monkeypatch):
    spec = small_spec(**UNSTUDIED[name]) if name in UNSTUDIED else on_a_cpu(SPECS[name])
    if spec.parallel.kind == "fsdp" and (fault := fsdp_fault("cpu")):
        pytest.skip(fault)
    spec = changed(with_one_layer(spec), compile="none")  # the compiler itself may read tensors
    with laid_out_for("cuda"), OneKernel():
        setup = small_setup(spec)
        setup.module.train()
        with closing(setup.strategy.batches(setup.feed, 0, 0)) as batches:
            optimizer_step(setup, next(batches), 1e-3)
            second = next(batches)
            with no_waiting(monkeypatch):
                optimizer_step(setup, second, 1e-3)


@pytest.mark.parametrize(
    "read", [float, *(methodcaller(name) for name in ("tolist", "numpy", "cpu", "nonzero"))]
)
def test_every_way_to_wait_is_seen(monkeypatch, read):
    with no_waiting(monkeypatch), pytest.raises(Waited):
        read(torch.ones(()))


def compiled(spec: RunSpec) -> RunSpec:
    return changed(spec, compile="layers")


# Only the model decides about graphs: one variant for each model is enough.
_MODELS = {repr(compiled(SPECS[name]).model): name for name in reversed(OURS) if name != KERNEL}
GRAPHED = {
    name
    for name in _MODELS.values()
    if "model.compile" not in {field for field, *_ in violations(compiled(SPECS[name]))}
}
TOGETHER = [
    ("adam_published", ""),
    ("memory_together", ""),
    ("attention_reference", "qkv_separate"),
    ("attention_math", "qkv_batch_outer"),
    ("attention_math", "qkv_batch_inner"),
    ("attention_reference", "qkv_streams"),
    ("attention_math", "qkv_streams_as_published"),
]
"""Pairs that cover :data:`GRAPHED`: a variant, and another whose projections it takes over."""


def test_every_model_is_compiled():
    assert {name for pair in TOGETHER for name in pair if name} == GRAPHED


@pytest.mark.slow
@pytest.mark.parametrize(("name", "projections"), TOGETHER)
def test_no_layer_breaks_its_graph(name, projections, monkeypatch):
    """There is one graph for all layers of the decoder, which have all parts of the encoder's."""
    spec = on_a_cpu(SPECS[name])
    if projections:
        spec = changed(spec, qkv=SPECS[projections].model.qkv)
    monkeypatch.setattr(
        transformers,
        "compile_layers",
        lambda kind, *layers: compile_layers(kind, *layers, backend="eager"),
    )
    torch._dynamo.reset()
    counters.clear()
    with laid_out_for("cuda"):
        model = build_model(compiled(spec).model, VOCABULARY)
        source, target = torch.randint(4, VOCABULARY, (2, 3, 7))
        source[0, -2:] = 0
        model.train().decode(torch.randn(3, 7, spec.model.d_model), source, target)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_graphs_are_recorded_before_the_first_step(monkeypatch, tmp_path):
    """Every call of a layer in a step replays a graph, and the losses equal those without graphs.
    (On a CPU no graph is recorded; the layers themselves are called.)"""
    monkeypatch.setattr(transformers, "compile_layers", lambda *_: None)
    spec = with_one_layer(on_a_cpu(SPECS["layers_graphed"]))
    training = spec.training.model_copy(update={"steps": 3, "log_every": 1})
    spec = spec.model_copy(update={"training": training})
    losses = {}
    for kind in ("graphs", "none"):
        with laid_out_for("cuda"), OneKernel():
            setup = small_setup(changed(spec, compile=kind, dropout=0.2))
            steps = Watcher()
            train(setup, steps, tmp_path / kind, validate_last=False)
        losses[kind] = steps.losses
        if kind == "graphs":
            calls = [_calls[layer] for layer in setup.model.modules() if layer in _calls]
            assert len(calls) == 2
            assert {each.total() - UNPLAYED * len(each) for each in calls} == {3}
    assert losses["graphs"] == losses["none"]


@pytest.mark.parametrize(
    ("study", "variant"), [("gpu_check", "single"), ("h200", "layers_graphed")]
)
def test_a_library_that_plans_for_each_shape_sees_few(study, variant):
    """The two sides of each pair have similar lengths, as in a corpus."""
    variants, _ = read_variants(ROOT / "config/variants.yaml")
    file = ROOT / f"config/studies/{study}.yaml"
    batching = resolve(
        check_study(yaml.safe_load(file.read_text()), str(file)), variant, variants
    ).batching
    random = np.random.default_rng(0)
    source = random.integers(2, 60, 20_000)
    lengths = {"source": source, "target": source + random.integers(-1, 2, len(source))}
    kind = pa.large_list(pa.uint8())
    sides = {side: pa.array([[5] * n for n in all_], kind) for side, all_ in lengths.items()}
    store = store_of(len(source), sides)
    feed = Feed(store, batching, 0, rank=0, world_size=1, micro_batches=1, device=CPU)
    with closing(feed.batches()) as batches:
        epoch = [b.micro_batches[0] for b in takewhile(lambda batch: batch.epoch == 0, batches)]
    shapes = {(*batch.source.shape, batch.target_output.size(1)) for batch in epoch}
    assert len(epoch) > 40
    assert len(shapes) <= 16, "one for each pair of four widths"
    for rows, source_width, target_width in shapes:
        assert rows % batching.rows.row_multiple == 0
        assert source_width % batching.rows.width_multiple == 0
        assert target_width % batching.rows.width_multiple == 0


class Operators(TorchDispatchMode):
    """Counts operators that read or write memory."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket).removeprefix("aten.")
        if not func.is_view and name not in _FREE and func.namespace in ("aten", "c10d"):
            self.names[name] += 1
        return func(*args, **(kwargs or {}))


_FREE = ("_local_scalar_dense", "detach", "empty", "empty_like", "empty_strided", "new_empty")
_FREE += ("_unsafe_view", "lift_fresh")
"""Operators that touch no values, and reads of an optimizer's step counts on the host."""

OPERATORS = {
    "single": 225,
    "amp_bf16": 331,
    "attention_reference": 313,
    "qkv_separate": 251,
    "adamw_unfused": 231,
    "loss_one_pass": 235,
    "tokens_unpadded": 660,
    "attention_flash": 408,
    "memory_together": 224,
    "clipping_folded": 223,
    "bf16_weights": 231,
    "accum4_no_sync": 1038,
    "fsdp": 338,
}
"""Operators in a step by torch 2.13, for an encoder of one layer and a decoder of two. Other variants
combine these."""


def operators(name: str) -> Counter[str]:
    spec = changed(on_a_cpu(SPECS[name]), encoder_layers=1)
    process = Process(0, 1, 0, 1, CPU)
    with imitated_cuda(), memory_prediction._silent_group(spec, process):
        with torch.device("meta"):
            model = build_model(spec.model, VOCABULARY)
        strategy = memory_prediction.expected_strategy(spec, process)
        with FakeTensorMode(allow_non_fake_inputs=True), Operators() as seen:
            memory_prediction.place(model, CPU)
            trainer = memory_prediction._trainer(spec, process, strategy, model)
            trainer.module.train()
            shape = BatchShape(rows=4, source_tokens=7, target_tokens=6)
            batch = blank_batch([shape] * spec.training.accumulation.micro_batches, CPU)
            optimizer_step(trainer, batch, 1e-3)
            seen.names.clear()
            optimizer_step(trainer, batch, 1e-3)
    return seen.names


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="another torch has other operators"
)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_step_has_the_expected_number_of_operators(name):
    found = operators(name)
    assert found.total() == OPERATORS[name], found.most_common(12)


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.__version__.startswith("2.13") or torch.version.cuda is not None,
    reason="the imitated GPU was written for torch 2.13 without CUDA",
)
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ compiles the imitated GPU")
def test_every_variant_takes_a_step_on_an_imitated_gpu():
    """A tensor made on the host by mistake meets a tensor of the device, which raises."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.imitated_gpu.outcomes", *OURS],
        env=os.environ | imitated_gpu(),
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {*OURS, "mixed", "short run"}
    assert "same device" in found.pop("mixed")
    if importlib.util.find_spec("triton") is None:
        assert "needs Triton" in found.pop("norm_and_residual")
    assert {name: how for name, how in found.items() if how != "ok"} == {}
