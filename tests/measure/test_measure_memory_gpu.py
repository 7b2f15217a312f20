"""Memory of the original study's model on a GPU: predicted, measured, and compared with NVML."""

import subprocess
from typing import Any

import pytest
import torch

from schemas.config.run_spec import RunSpec
from schemas.results import MemoryResult
from tests.observe.capture_builders import write_shards
from tests.orders import job_command
from transformer_core.data.sharding.shard_store import open_shards
from transformer_core.measure.memory_prediction import predict_ranks

pytestmark = pytest.mark.gpu

VOCABULARY = 30_000
MODEL = {"encoder_layers": 6, "decoder_layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8}
NAMES = ("fp32", "bf16", "checkpoint")


def original(name: str) -> RunSpec:
    """The model of the original study on batches that a small GPU holds."""
    precision = {"kind": "bf16" if name == "bf16" else "fp32"}
    checkpoint = {"checkpoint": "layers"} if name == "checkpoint" else {}
    sections: dict[str, Any] = {
        "variant": name,
        "batching": {"kind": "fixed_size", "pairs": 256},
        "model": {"kind": "transformer", **MODEL, **checkpoint},
        "training": {"steps": 4, "precision": precision},
        "machine": {"device": "cuda", "devices_per_node": 1},
    }
    return RunSpec.model_validate(sections)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("data"), 512, VOCABULARY)


@pytest.fixture(scope="module", params=NAMES)
def measured(request, data):
    """The result of the job, in a separate process."""
    spec = original(request.param)
    file, output = data / f"{spec.variant}.spec.json", data / f"{spec.variant}.json"
    file.write_text(spec.canonical_json())
    subprocess.run(job_command("memory", spec=file, data=data, output=output), check=True)
    found = MemoryResult.model_validate_json(output.read_text())
    assert (found.status, found.reason) == ("ok", None)
    return found


def test_the_peak_is_predicted_within_5_percent(measured, data):
    splits = ("train", "validation")
    train, validation = (open_shards(data / "shards" / s / "manifest.json") for s in splits)
    device = torch.device("cuda", 0)
    spec = original(measured.variant)
    (predicted,), parameters = predict_ranks(spec, VOCABULARY, device, (train, validation))
    assert parameters == measured.parameters
    assert predicted.training_bytes == pytest.approx(measured.ranks[0].peak_tensor_bytes, rel=0.05)


def test_the_parts_add_up_to_nvmls_number(measured):
    (rank,) = measured.ranks
    account = rank.device_account
    if account is None:
        pytest.skip("NVML does not tell the memory of this device")
    parts = (
        account.context_bytes
        + account.library_bytes
        + account.slack_bytes
        + account.tensor_bytes
        + account.residual_bytes
    )
    assert parts == account.nvml_bytes
    assert abs(account.residual_bytes) < 0.05 * account.nvml_bytes
    assert account.context_bytes > 0


def test_milestones_grow_from_an_empty_device_to_the_peak(measured):
    found = {milestone.name: milestone for milestone in measured.ranks[0].milestones}
    tensors = [found[name].tensor_bytes for name in ("start", "weights", "first_forward")]
    assert tensors == sorted(tensors, key=int)
    assert found["peak"].tensor_bytes == max(m.tensor_bytes for m in found.values())
