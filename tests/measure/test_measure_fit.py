"""The warning before a run that cannot fit, and the batch that needs most memory."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from schemas.results import BatchShape, Prediction
from tests.records import prediction
from tests.training.small_training import small_spec, small_store
from transformer_core.measure import heaviest_batch as module
from transformer_core.measure import memory_fit
from transformer_core.measure.heaviest_batch import blank_batch, heaviest_batch
from transformer_core.measure.memory_fit import available_bytes, doubt, gpu_bytes, warn_before
from transformer_core.parallel import nvml
from transformer_core.run import gpu_leases

MIB = 2**20


def predicted(peak: int, context: int | None = 100 * MIB, **fields: Any) -> Prediction:
    return prediction(peak, variant="small", context_bytes=context, **fields)


def test_the_warning_names_the_run_with_numbers_and_a_remedy():
    text = doubt(predicted(500 * MIB), 599 * MIB)
    assert "small will probably run out of memory" in text
    assert "600.00 MiB predicted" in text
    assert "599.00 MiB available" in text
    assert "model.checkpoint: layers" in text


def test_the_heaviest_micro_batch_need_not_have_the_most_tokens_of_its_batch(monkeypatch):
    """Targets have logits of the whole vocabulary."""
    shapes = [[(10, 30, 30), (10, 30, 30)], [(10, 45, 16), (10, 20, 40)]]
    batches = [
        replace(
            blank_batch(
                [
                    BatchShape(rows=rows, source_tokens=source, target_tokens=target)
                    for rows, source, target in micro_batches
                ],
                torch.device("cpu"),
            ),
            index=index,
        )
        for index, micro_batches in enumerate(shapes)
    ]
    feed = SimpleNamespace(batches=lambda: (batch for batch in batches))
    monkeypatch.setattr(module, "Feed", lambda *_, **__: feed)
    spec = small_spec(training={"accumulation": {"micro_batches": 2}})
    assert heaviest_batch(spec, small_store(), 8_000, 1) == (1, batches[1])


def test_no_warning_if_a_run_fits_or_its_need_is_unknown():
    assert doubt(predicted(500 * MIB), 600 * MIB) is None
    assert doubt(predicted(500 * MIB), None) is None
    assert doubt(predicted(500 * MIB, ranks=[], status="failed"), 1) is None
    # Without the context the tensors alone may be too many.
    assert doubt(predicted(500 * MIB, context=None), 500 * MIB) is None
    assert doubt(predicted(500 * MIB, context=None), 499 * MIB) is not None


def test_processes_share_free_host_memory_and_the_fullest_gpu_counts(monkeypatch):
    monkeypatch.setattr(memory_fit, "free_bytes", lambda: 1000)
    ddp = small_spec(parallel={"kind": "ddp"}, machine={"devices_per_node": 2})
    assert available_bytes(small_spec(), "cpu") == 1000
    assert available_bytes(ddp, "cpu") == 500
    machine = {"nodes": 2, "devices_per_node": 2, "link": {"bandwidth": "1 Gbit/s"}}
    assert available_bytes(small_spec(parallel={"kind": "ddp"}, machine=machine), "cpu") == 250
    counts = {
        "free": {"a1": 70, "b2": 50, "c3": 10},
        "total": {"a1": 90, "b2": 80, "c3": 11},
    }
    monkeypatch.setattr(nvml, "memory_by_uuid", counts.get)
    monkeypatch.setattr(gpu_leases, "visible_gpus", lambda: ["GPU-a1", "GPU-b2", "GPU-c3"])
    assert available_bytes(ddp, "cuda") == 50
    assert available_bytes(small_spec(), "cuda") == 70, "it uses only the first"
    assert (gpu_bytes(small_spec()), gpu_bytes(ddp)) == (90, 80)
    counts["free"] = {}
    assert available_bytes(small_spec(), "cuda") is None


def test_an_unreadable_prediction_does_not_stop_a_run(tmp_path):
    warn_before(small_spec(), tmp_path / "nothing.json")
    for content in (b"{", b"\xff"):
        (tmp_path / "half.json").write_bytes(content)
        warn_before(small_spec(), tmp_path / "half.json")
