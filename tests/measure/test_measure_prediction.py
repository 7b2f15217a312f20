"""The memory of a run: predicted without it, and measured."""

import subprocess
from pathlib import Path

import pytest
import torch
import yaml

from schemas.config.data import FixedSize
from schemas.config.run_spec import RunSpec
from schemas.config.training import Accumulation, Fp32
from schemas.errors import Unsupported
from schemas.results import PARTS, Parts, PredictedMemory, Prediction
from tests.distributed import run_ranks
from tests.measure.memory_cases import measure_all, memory_spec, parameters, predict
from tests.orders import run_job
from tests.records import prediction
from tests.training.small_training import VOCABULARY
from transformer_core.measure import predicted_memory as job
from transformer_core.measure.memory_prediction import _on_a_cpu, predict_ranks
from transformer_core.models.registry import build_model
from transformer_core.parallel.fsdp import repeated_layers
from transformer_core.study.resolve import check_study, resolve
from transformer_core.study.variants import read_variants
from transformer_core.training.precision import set_matmul

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
VARIANTS_FILE = ROOT / "config/variants.yaml"
ORIGINAL = ROOT / "config/studies/original.yaml"

ALONE = {
    "single": {},
    "reference_attention": {"model": {"attention": {"kind": "reference"}}},
    "torch_nn": {"model": {"kind": "torch_nn"}},
    "amp_bf16": {"training": {"precision": {"kind": "bf16"}}},
    "sgd": {"training": {"optimizer": {"kind": "sgd"}}},
    "accumulation": {"training": {"accumulation": {"micro_batches": 3}}},
    "checkpoint": {"model": {"checkpoint": "layers"}},
    "chunks": {"training": {"loss": {"kind": "chunked", "rows": 16}}},
    "unpadded_one_pass": {
        "model": {"tokens": {"kind": "unpadded"}},
        "training": {"loss": {"kind": "one_pass"}},
    },
}
TOGETHER = {
    "ddp": {"kind": "ddp", "bucket_mb": 0.05},
    "ddp_view": {"kind": "ddp", "bucket_view": True},
    "ddp_fp16": {"kind": "ddp", "hook": {"kind": "compress", "dtype": "fp16"}},
    "fsdp": {"kind": "fsdp"},
    "central": {"kind": "central"},
    "central_local": {"kind": "central", "local_loss": True},
}
Measured = tuple[int, Parts, Parts, int]


def alone() -> dict[str, RunSpec]:
    return {name: memory_spec(**sections) for name, sections in ALONE.items()}


def together() -> dict[str, RunSpec]:
    return {name: memory_spec(parallel=parallel) for name, parallel in TOGETHER.items()}


@pytest.fixture(scope="module")
def measured_alone():
    return measure_all(alone())


@pytest.fixture(scope="module")
def measured_together():
    return run_ranks(measure_all, 2, together())


def assert_adds_up(found: Measured, copied: int = 0) -> None:
    """The parts at the peak are what the allocator had handed out then, up to work space inside
    kernels and the batch, which lies in numpy's memory.

    ``copied`` are the bytes of a message that gloo has copied: its thread, which nobody follows,
    now and then lets go of them a moment later.
    """
    peak, at_peak, _, _ = found
    missing = peak - at_peak.total_bytes
    assert 0.02 * peak >= min(abs(missing), abs(missing - copied)), (missing, copied)


def layer_bytes(spec: RunSpec) -> int:
    """What the gradient of the largest layer takes: a message of FSDP."""
    layers = repeated_layers(build_model(spec.model, VOCABULARY))
    return max(sum(p.numel() * 4 for p in layer.parameters()) for layer in layers)


def assert_predicted(spec: RunSpec, found: Measured, rank: int = 0, copied: int = 0) -> None:
    """Every part is as predicted. ``copied`` are the bytes of a message of which gloo's thread may
    hold a copy a moment longer: beside the next message, or beyond the step, where what belongs to
    nobody counts as a bucket."""
    predicted = predict(spec)[rank]
    peak, _, largest, _ = found
    assert predicted.training_bytes == pytest.approx(peak, rel=0.05)
    for part in PARTS:
        measured, expected = getattr(largest, part), getattr(predicted.anatomy, part)
        held = part in ("buckets_bytes", "communication_bytes") and measured - expected == copied
        assert held or expected == pytest.approx(measured, rel=0.1, abs=peak / 20)


@pytest.mark.parametrize("name", ALONE)
def test_one_process(measured_alone, name):
    assert_adds_up(measured_alone[name])
    assert_predicted(alone()[name], measured_alone[name])


def test_products_in_bfloat16_take_the_same_memory():
    """Whether this CPU has them is found out with a product, and fake tensors have no numbers."""
    try:
        (found,) = predict(memory_spec(training={"precision": {"kind": "bf16_matmul"}}))
    except Unsupported as error:
        pytest.skip(str(error))
    finally:
        set_matmul(Fp32(), torch.device("cpu"))
    (plain,) = predict(memory_spec())
    assert found.training_bytes == plain.training_bytes


@pytest.mark.parametrize("name", TOGETHER)
def test_two_ranks(measured_together, name):
    for rank, found in enumerate(measured_together):
        spec = together()[name]
        assert_adds_up(found[name], layer_bytes(spec) if spec.parallel.kind == "fsdp" else 0)
        if name.startswith("central"):
            assert_predicted(spec, found[name], rank, copied=found[name][2].weights_bytes)
        elif rank == 0:
            assert_predicted(spec, found[name], rank)


def per_parameter(parts: Parts) -> dict[str, float]:
    """Bytes per parameter of the model of all cases."""
    return {part: getattr(parts, part) / parameters() for part in PARTS}


def test_the_formulas_of_the_study(measured_alone):
    plain = per_parameter(measured_alone["single"][2])
    state = ("weights_bytes", "master_weights_bytes", "gradients_bytes", "optimizer_bytes")
    assert [plain[part] for part in state] == pytest.approx([4, 0, 4, 8], rel=0.01)
    momentum = per_parameter(measured_alone["sgd"][2])
    assert [momentum[part] for part in state] == pytest.approx([4, 0, 4, 4], rel=0.01)
    # Biases and factors of normalizations are not copied.
    mixed = per_parameter(measured_alone["amp_bf16"][2])
    assert mixed["weights_bytes"] + mixed["master_weights_bytes"] == pytest.approx(6, rel=0.03)
    assert sum(mixed[part] for part in state) == pytest.approx(18, rel=0.03)


def test_buckets_are_a_second_copy_of_the_gradients_unless_they_are_views(measured_together):
    found = {name: per_parameter(one[2]) for name, one in measured_together[0].items()}
    assert found["ddp"]["buckets_bytes"] == pytest.approx(4, rel=0.02)
    assert found["ddp"]["gradients_bytes"] == pytest.approx(4, rel=0.02)
    assert found["ddp_view"]["buckets_bytes"] == pytest.approx(0, abs=0.02)
    assert found["ddp_view"]["gradients_bytes"] == pytest.approx(4, rel=0.02)


def test_shards_are_a_part_of_the_model(measured_together):
    both = [per_parameter(one["fsdp"][2]) for one in measured_together]
    for part, whole in (("weights_bytes", 4), ("gradients_bytes", 4), ("optimizer_bytes", 8)):
        assert sum(rank[part] for rank in both) == pytest.approx(whole, rel=0.03)


def test_the_logits_of_all_vanish_with_the_loss_where_they_are(measured_together):
    first, second = measured_together
    gathered = first["central"][1].communication_bytes
    assert gathered > first["central_local"][1].communication_bytes
    assert first["central"][0] > first["central_local"][0] > second["central_local"][0]
    # Only the first rank updates.
    assert first["central"][2].optimizer_bytes > 0
    assert second["central"][2].optimizer_bytes == 0


def test_cheaper_memory_is_less(measured_alone):
    plain = measured_alone["single"]
    checkpoint, chunks = measured_alone["checkpoint"], measured_alone["chunks"]
    assert checkpoint[2].activations_bytes < plain[2].activations_bytes / 3
    assert checkpoint[0] < 0.8 * plain[0]
    assert chunks[0] < plain[0]


def test_what_autograd_saves_are_the_activations(measured_alone):
    _, _, largest, saved = measured_alone["single"]
    assert saved == pytest.approx(largest.activations_bytes, rel=0.05)


def test_a_model_of_a_billion_parameters_takes_no_memory():
    spec = memory_spec(
        model={
            "d_model": 4096,
            "d_ff": 16384,
            "heads": 16,
            "encoder_layers": 2,
            "decoder_layers": 2,
        }
    )
    (rank,), parameters = predict_ranks(spec, VOCABULARY, torch.device("cpu"))
    assert parameters > 900e6
    assert rank.anatomy.optimizer_bytes == pytest.approx(8 * parameters, rel=0.01)
    assert rank.training_bytes > 12 * parameters


def test_memory_on_a_gpu_is_predicted_where_there_is_none():
    """By the memory that CUDA's kernels keep: no attention weights, masks of a byte."""
    if torch.cuda.is_available():
        pytest.skip("this host has a GPU")
    model = {"encoder_layers": 1, "decoder_layers": 1}
    plain = memory_spec(model=model, filter={"max_tokens": 200})
    half = memory_spec(
        model=model, filter={"max_tokens": 200}, training={"precision": {"kind": "bf16"}}
    )
    cuda, cpu = (
        predict_ranks(plain, VOCABULARY, torch.device(kind))[0][0] for kind in ("cuda", "cpu")
    )
    assert cuda.anatomy.activations_bytes < 0.6 * cpu.anatomy.activations_bytes
    assert cuda.training_bytes < 0.6 * cpu.training_bytes
    state = ("weights_bytes", "gradients_bytes", "optimizer_bytes")
    assert all(getattr(cuda.anatomy, s) == getattr(cpu.anatomy, s) for s in state)
    (less,), _ = predict_ranks(half, VOCABULARY, torch.device("cuda"))
    assert less.anatomy.activations_bytes < 0.85 * cuda.anatomy.activations_bytes


def test_a_format_that_only_gpus_have_is_predicted_anywhere():
    tf32 = memory_spec(training={"precision": {"kind": "tf32"}})
    assert _on_a_cpu(tf32).training.precision == Fp32()


def test_the_original_study_has_a_baseline_that_fits_its_machine():
    """24 GB, of which contexts and the desktop take some; as long as sentences may be."""
    variants, _ = read_variants(VARIANTS_FILE)
    study = check_study(yaml.safe_load(ORIGINAL.read_text()), "original.yaml")
    baseline = resolve(study, study.baseline, variants)
    assert isinstance(baseline.batching, FixedSize)
    # Two micro-batches are as large as eight: the second finds gradients there already.
    of_all = baseline.training.accumulation.micro_batches
    pairs = 2 * baseline.batching.scaled_pairs // of_all
    two = baseline.model_copy(
        update={
            "batching": baseline.batching.model_copy(update={"pairs": pairs}),
            "training": baseline.training.model_copy(
                update={"accumulation": Accumulation(micro_batches=2)}
            ),
        }
    )
    (rank,), _ = predict_ranks(two, study.tokenizer.vocabulary, torch.device("cuda"))
    assert 4e9 < rank.peak_bytes < 0.9 * 24e9


def unpredicted(spec: RunSpec, *_: object) -> Prediction:
    return prediction(0, variant=spec.variant, status="failed", reason="not tried", ranks=[])


def test_a_failed_probe_of_the_context_ends_no_prediction(monkeypatch, tmp_path):
    def fails(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", fails)
    monkeypatch.setattr(job, "predict", unpredicted)
    spec = tmp_path / "spec.json"
    spec.write_text(memory_spec().canonical_json())
    output = tmp_path / "predicted.json"
    assert run_job("predict_memory", specs=[str(spec)], output=output) == 0
    (found,) = PredictedMemory.model_validate_json(output.read_text()).predictions
    assert (found.reason, found.context_bytes) == ("not tried", None)


def test_runs_of_the_same_memory_are_predicted_once(monkeypatch, tmp_path):
    asked: list[str] = []

    def predict_one(spec: RunSpec, *_: object) -> Prediction:
        asked.append(spec.variant)
        return unpredicted(spec)

    monkeypatch.setattr(job, "predict", predict_one)
    specs = {
        "often": memory_spec(variant="often"),
        "seldom": memory_spec(variant="seldom", training={"log_every": 100, "steps": 50}),
        "more": memory_spec(variant="more", training={"log_every": 100, "seed": 2}),
        "other": memory_spec(variant="other", machine={"allocator": "default"}),
    }
    files = [tmp_path / f"{name}.json" for name in specs]
    for file, spec in zip(files, specs.values(), strict=True):
        file.write_text(spec.canonical_json())
    output = tmp_path / "predicted.json"
    specs_files = [*map(str, files)]
    assert run_job("predict_memory", specs=specs_files, output=output, context=False) == 0
    found = PredictedMemory.model_validate_json(output.read_text()).predictions
    assert [one.variant for one in found] == list(specs)
    assert asked == ["often", "seldom"], "steps bound the batches that are looked at"
