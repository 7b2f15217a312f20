"""The memory of a run: predicted, and measured."""

import gc
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from schemas.config.data import FixedSize
from schemas.config.run_spec import RunSpec
from schemas.config.training import Accumulation, Evaluation, Fp32
from schemas.errors import Unsupported
from schemas.results import PARTS, Parts, PredictedMemory, PredictedRank, Prediction
from tests.distributed import run_ranks
from tests.measure.short_runs import this_rank
from tests.orders import run_job
from tests.records import prediction
from tests.training.small_training import VOCABULARY, small_spec, small_store, small_texts
from transformer_core.measure import predicted_memory as job
from transformer_core.measure.memory_anatomy import AnatomyOrder, steps_of
from transformer_core.measure.memory_anatomy_worker import followed
from transformer_core.measure.memory_prediction import _on_a_cpu, predict_ranks
from transformer_core.models.registry import build_model
from transformer_core.parallel.fsdp import repeated_layers
from transformer_core.run.worker import Program
from transformer_core.study.resolve import check_study, resolve
from transformer_core.study.variants import read_variants
from transformer_core.training.precision import set_matmul

pytestmark = pytest.mark.slow

STORES = small_store(200), small_store(60, seed=1)
Measured = tuple[int, Parts, Parts]
"""The allocator's peak, the parts at the peak, and the largest parts."""


def memory_spec(**sections: Any) -> RunSpec:
    """A model of some 50,000 parameters on batches of 32 pairs."""
    sections["model"] = {"d_model": 32, "d_ff": 64} | sections.get("model", {})
    return small_spec(batching={"pairs": 32}, **sections)


def measure(spec: RunSpec) -> Measured:
    """The measurement of this rank, alone or in its process group."""
    nowhere, steps = Path("nowhere"), steps_of(spec)
    evaluation = Evaluation(max_pairs=0)
    known: dict[str, Any] = {"data": nowhere, "output": nowhere, "command": ""}
    order = AnatomyOrder(spec=spec, steps=steps, evaluation=evaluation, **known)
    program = Program(order, 0.0)
    program.process, program.stores = this_rank(), STORES
    # What the measurement before left would be freed within this one, and its bytes would be missing:
    # FSDP leaves cycles of objects, and a thread of gloo may still hold a message.
    gc.collect()
    time.sleep(0.2)
    found = followed(program, steps, evaluation)
    return found.peak_bytes, found.step.at_peak, found.step.largest


def measure_all(specs: dict[str, RunSpec]) -> dict[str, Measured]:
    return {name: measure(spec) for name, spec in specs.items()}


@cache
def predicted_and_parameters(text: str) -> tuple[list[PredictedRank], int]:
    spec = RunSpec.model_validate_json(text)
    return predict_ranks(spec, VOCABULARY, torch.device("cpu"), STORES)


def predict(spec: RunSpec) -> list[PredictedRank]:
    """The prediction for the same batches."""
    return predicted_and_parameters(spec.canonical_json())[0]


ROOT = Path(__file__).parents[2]
VARIANTS_FILE = ROOT / "config/variants.yaml"
ORIGINAL = ROOT / "config/studies/original.yaml"

ALONE = {
    "single": memory_spec(),
    "torch_nn": memory_spec(model={"kind": "torch_nn"}),
    "amp_bf16": memory_spec(training={"precision": {"kind": "bf16"}}),
    "sgd": memory_spec(training={"optimizer": {"kind": "sgd"}}),
    "reference_attention_accumulated": memory_spec(
        model={"attention": {"kind": "reference"}}, training={"accumulation": {"micro_batches": 3}}
    ),
    "checkpoint": memory_spec(model={"checkpoint": "layers"}),
    "bf16_weights": memory_spec(
        model={"d_model": 128, "d_ff": 256}, training={"precision": {"kind": "bf16_weights"}}
    ).model_copy(update={"batching": FixedSize(kind="fixed_size", pairs=2)}),
    "chunks": memory_spec(training={"loss": {"kind": "chunked", "rows": 16}}),
    "fused_dropout": memory_spec(
        model={"dropout_method": {"kind": "fused"}, "attention": {"kind": "fused_softmax"}}
        | {"dropout": 0.1}
    ),
    "unpadded_one_pass": memory_spec(
        model={"tokens": {"kind": "unpadded"}}, training={"loss": {"kind": "one_pass"}}
    ),
}
TOGETHER = {
    "ddp": memory_spec(parallel={"kind": "ddp", "bucket_mb": 0.05}),
    "ddp_view": memory_spec(parallel={"kind": "ddp", "bucket_view": True}),
    "ddp_fp16": memory_spec(
        parallel={"kind": "ddp", "hook": {"kind": "compress", "dtype": "fp16"}}
    ),
    "fsdp": memory_spec(parallel={"kind": "fsdp"}),
    "central": memory_spec(parallel={"kind": "central"}),
    "central_local": memory_spec(parallel={"kind": "central", "local_loss": True}),
}


@pytest.fixture(scope="module")
def measured_alone():
    return measure_all(ALONE)


@pytest.fixture(scope="module")
def measured_together():
    return run_ranks(measure_all, 2, TOGETHER)


def assert_adds_up(found: Measured, copied: int = 0) -> None:
    """The parts at the peak equal the allocator's count, except for work space inside kernels and
    the batch, which is in numpy's memory.

    ``copied`` is the size of a message that gloo has copied: its untracked thread sometimes frees
    the copy a moment later.
    """
    peak, at_peak, _ = found
    missing = peak - at_peak.total_bytes
    assert 0.02 * peak >= min(abs(missing), abs(missing - copied)), (missing, copied)


def layer_bytes(spec: RunSpec) -> int:
    """Bytes of the gradient of the largest layer, a message of FSDP."""
    layers = repeated_layers(build_model(spec.model, VOCABULARY))
    return max(sum(p.numel() * 4 for p in layer.parameters()) for layer in layers)


def assert_predicted(spec: RunSpec, found: Measured, rank: int = 0, copied: int = 0) -> None:
    """Every part is as predicted. ``copied`` is the size of a message of which gloo's thread may keep
    a copy a moment longer: during the next message, or after the step, where it counts as a
    bucket."""
    predicted = predict(spec)[rank]
    peak, _, largest = found
    assert predicted.training_bytes == pytest.approx(peak, rel=0.05)
    for part in PARTS:
        measured, expected = getattr(largest, part), getattr(predicted.anatomy, part)
        held = part in ("buckets_bytes", "communication_bytes") and measured - expected == copied
        assert held or expected == pytest.approx(measured, rel=0.1, abs=peak / 20)


@pytest.mark.parametrize("name", ALONE)
def test_one_process(measured_alone, name):
    assert_adds_up(measured_alone[name])
    assert_predicted(ALONE[name], measured_alone[name])


def test_products_in_bfloat16_take_the_same_memory():
    """Although detecting them takes a real product: fake tensors have no numbers."""
    try:
        (found,) = predict(memory_spec(training={"precision": {"kind": "bf16_matmul"}}))
    except Unsupported as error:
        pytest.skip(str(error))
    finally:
        set_matmul(Fp32(), torch.device("cpu"))
    (plain,) = predict(memory_spec())
    assert found.training_bytes == plain.training_bytes


def test_experts_of_another_library_take_the_predicted_memory(monkeypatch):
    """Their products of groups of rows, which torch refuses in 32 bits without memory."""
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys.modules[__name__], "STORES", (small_texts(40), small_texts(9, seed=1)))
    spec = memory_spec(
        task={"kind": "language_model", "context": 12, "prompt": 4, "continuation": 4},
        model={"kind": "huggingface_causal", "architecture": "mixtral", "layers": 2, "heads": 2},
    )
    assert_predicted(spec, measure(spec))


@pytest.mark.parametrize("name", TOGETHER)
def test_two_ranks(measured_together, name):
    spec = TOGETHER[name]
    for rank, found in enumerate(measured_together):
        assert_adds_up(found[name], layer_bytes(spec) if spec.parallel.kind == "fsdp" else 0)
        if name.startswith("central"):
            assert_predicted(spec, found[name], rank, copied=found[name][2].weights_bytes)
        elif rank == 0:
            assert_predicted(spec, found[name], rank)


def per_parameter(parts: Parts) -> dict[str, float]:
    """Bytes per parameter of the model of all cases."""
    _, parameters = predicted_and_parameters(memory_spec().canonical_json())
    return {part: getattr(parts, part) / parameters for part in PARTS}


def test_the_formulas_of_the_study(measured_alone, measured_together):
    plain = per_parameter(measured_alone["single"][2])
    state = ("weights_bytes", "master_weights_bytes", "gradients_bytes", "optimizer_bytes")
    assert [plain[part] for part in state] == pytest.approx([4, 0, 4, 8], rel=0.01)
    momentum = per_parameter(measured_alone["sgd"][2])
    assert [momentum[part] for part in state] == pytest.approx([4, 0, 4, 4], rel=0.01)
    # Biases and factors of normalizations are not copied.
    mixed = per_parameter(measured_alone["amp_bf16"][2])
    assert mixed["weights_bytes"] + mixed["master_weights_bytes"] == pytest.approx(6, rel=0.03)
    assert sum(mixed[part] for part in state) == pytest.approx(18, rel=0.03)
    # Buckets of gradients are a second copy, unless gradients are views of them.
    first, second = measured_together
    ddp, view = (per_parameter(first[name][2]) for name in ("ddp", "ddp_view"))
    assert ddp["buckets_bytes"] == pytest.approx(4, rel=0.02)
    assert view["buckets_bytes"] == pytest.approx(0, abs=0.02)
    assert ddp["gradients_bytes"] == view["gradients_bytes"] == pytest.approx(4, rel=0.02)
    shards = [per_parameter(rank["fsdp"][2]) for rank in (first, second)]
    for part, whole in (("weights_bytes", 4), ("gradients_bytes", 4), ("optimizer_bytes", 8)):
        assert sum(shard[part] for shard in shards) == pytest.approx(whole, rel=0.03)


def test_a_local_loss_does_not_gather_all_logits(measured_together):
    first, second = measured_together
    gathered = first["central"][1].communication_bytes
    assert gathered > first["central_local"][1].communication_bytes
    assert first["central"][0] > first["central_local"][0] > second["central_local"][0]
    # Only the first rank updates.
    assert first["central"][2].optimizer_bytes > 0
    assert second["central"][2].optimizer_bytes == 0


def test_memory_saving_techniques_save_memory(measured_alone):
    plain = measured_alone["single"]
    checkpoint, chunks = measured_alone["checkpoint"], measured_alone["chunks"]
    assert checkpoint[2].activations_bytes < plain[2].activations_bytes / 3
    assert checkpoint[0] < 0.8 * plain[0]
    assert chunks[0] < plain[0]


def test_a_model_of_a_billion_parameters_takes_no_memory():
    sizes = {"d_model": 4096, "d_ff": 16384, "heads": 16}
    spec = memory_spec(model=sizes | {"encoder_layers": 2, "decoder_layers": 2})
    (rank,), parameters = predict_ranks(spec, VOCABULARY, torch.device("cpu"))
    assert parameters > 900e6
    assert rank.anatomy.optimizer_bytes == pytest.approx(8 * parameters, rel=0.01)
    assert rank.training_bytes > 12 * parameters


def test_memory_on_a_gpu_is_predicted_without_one():
    """CUDA's kernels keep no attention weights, and masks of one byte per element."""
    if torch.cuda.is_available():
        pytest.skip("this host has a GPU")

    def predicted(device: str, **sections: Any) -> PredictedRank:
        model = {"encoder_layers": 1, "decoder_layers": 1}
        spec = memory_spec(model=model, filter={"max_tokens": 200}, **sections)
        return predict_ranks(spec, VOCABULARY, torch.device(device))[0][0]

    cuda, cpu = predicted("cuda"), predicted("cpu")
    assert cuda.anatomy.activations_bytes < 0.6 * cpu.anatomy.activations_bytes
    assert cuda.training_bytes < 0.6 * cpu.training_bytes
    state = ("weights_bytes", "gradients_bytes", "optimizer_bytes")
    assert all(getattr(cuda.anatomy, s) == getattr(cpu.anatomy, s) for s in state)
    less = predicted("cuda", training={"precision": {"kind": "bf16"}})
    assert less.anatomy.activations_bytes < 0.85 * cuda.anatomy.activations_bytes


def test_memory_on_a_gpu_with_checkpointing_is_predicted_without_one():
    if torch.cuda.is_available():
        pytest.skip("this host has a GPU")

    def activations(checkpoint: str) -> int:
        spec = memory_spec(model={"checkpoint": checkpoint}, filter={"max_tokens": 200})
        (rank,), _ = predict_ranks(spec, VOCABULARY, torch.device("cuda"))
        return rank.anatomy.activations_bytes

    none = activations("none")
    assert all(activations(kind) < none for kind in ("layers", "alternate", "products"))


def test_a_format_of_gpus_is_predicted_anywhere():
    tf32 = memory_spec(training={"precision": {"kind": "tf32"}})
    assert _on_a_cpu(tf32).training.precision == Fp32()


def test_the_original_study_has_a_baseline_that_fits_its_machine():
    """In 24 GB, some of which contexts and the desktop take, even with the longest sentences."""
    variants, _ = read_variants(VARIANTS_FILE)
    study = check_study(yaml.safe_load(ORIGINAL.read_text()), "original.yaml")
    baseline = resolve(study, study.baseline, variants)
    assert isinstance(baseline.batching, FixedSize)
    # Two micro-batches need as much memory as eight: the second adds to existing gradients.
    of_all = baseline.training.accumulation.micro_batches
    pairs = 2 * baseline.batching.scaled_pairs // of_all
    batching = baseline.batching.model_copy(update={"pairs": pairs})
    accumulation = {"accumulation": Accumulation(micro_batches=2)}
    training = baseline.training.model_copy(update=accumulation)
    two = baseline.model_copy(update={"batching": batching, "training": training})
    (rank,), _ = predict_ranks(two, study.tokenizer.vocabulary, torch.device("cuda"))
    assert 4e9 < rank.peak_bytes < 0.9 * 24e9


def test_the_job_predicts_equal_runs_once_even_if_the_context_is_unknown(monkeypatch, tmp_path):
    asked: list[str] = []

    def predict_one(spec: RunSpec, *_: object) -> Prediction:
        asked.append(spec.variant)
        return prediction(0, variant=spec.variant, status="failed", reason="not tried", ranks=[])

    def fails(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(job, "predict", predict_one)
    monkeypatch.setattr(subprocess, "run", fails)
    specs = [
        memory_spec(variant="often"),
        memory_spec(variant="seldom", training={"log_every": 100, "steps": 50}),
        memory_spec(variant="more", training={"log_every": 100, "seed": 2}),
        memory_spec(variant="other", machine={"allocator": "default"}),
    ]
    files = [tmp_path / f"{spec.variant}.json" for spec in specs]
    for file, spec in zip(files, specs, strict=True):
        file.write_text(spec.canonical_json())
    output = tmp_path / "predicted.json"
    assert run_job("predict_memory", specs=files, output=output) == 0
    found = PredictedMemory.model_validate_json(output.read_text()).predictions
    assert [one.variant for one in found] == ["often", "seldom", "more", "other"]
    assert {(one.reason, one.context_bytes) for one in found} == {("not tried", None)}
    assert asked == ["often", "seldom"], "steps bound the batches that are looked at"
