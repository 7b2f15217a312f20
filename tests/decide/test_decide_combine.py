"""Combining the repeats of a variant into one record."""

from pathlib import Path
from typing import Any

import pytest
from analysis_builders import manifest, memory, repeat, spec, window

from schemas.results import Validation, VariantResult
from tests.orders import run_job
from transformer_core.decide.combine import combine, peak_memory


def combined(*repeats: Any) -> VariantResult:
    return combine("single", repeats, manifest())


def test_throughput_is_over_the_windows_of_all_repeats():
    """An epoch has 700 and 900 tokens, and the ends of 100 pairs."""
    result = combined(repeat(1, [100.0, 110.0, 120.0]), repeat(2, [130.0, 140.0]))
    assert result.status == "ok"
    assert (result.tokens_per_second.median, result.tokens_per_second.samples) == (120.0, 5)
    assert result.pairs_per_second.median == 12.0
    assert result.epoch_seconds == 1800 / 120


def test_shares_weigh_windows_by_their_size():
    long = window(300.0, 1, wait=0.5)
    result = combined(repeat(1, [], windows=[window(100.0, 0, wait=0.1), long]))
    assert result.padding_share == pytest.approx(0.2)
    assert result.input_wait_share == pytest.approx(0.6 / 4)


def test_the_first_status_that_is_not_ok_wins_and_removes_the_numbers():
    result = combined(
        repeat(1, [100.0]),
        repeat(3, [], status="failed", reason="third"),
        repeat(2, [], status="oom", reason="second"),
    )
    assert (result.status, result.reason) == ("oom", "second")
    assert [item.repeat for item in result.repeats] == [1, 2, 3]
    rates = (result.tokens_per_second, result.pairs_per_second, result.epoch_seconds)
    assert rates == (None, None, None)


def test_nothing_measured_is_null():
    result = combined(repeat(1, [], memory=[]))
    assert result.status == "ok"
    assert (result.tokens_per_second, result.epoch_seconds) == (None, None)
    assert (result.padding_share, result.input_wait_share) == (None, None)
    assert (result.validation_loss, result.peak_memory_bytes) == (None, None)


def test_validation_loss_is_the_last_of_the_first_repeat():
    losses = [Validation(step=10, loss=3.0), Validation(step=20, loss=2.0)]
    other = [Validation(step=20, loss=9.0)]
    result = combined(repeat(2, [1.0], validations=other), repeat(1, [1.0], validations=losses))
    assert result.validation_loss == 2.0


def test_peak_memory_is_reserved_on_cuda_and_resident_on_cpu():
    cuda = memory(0, "cuda:0", rss_bytes=9_000, allocated_bytes=4_000, reserved_bytes=5_000)
    larger = memory(1, "cuda:1", rss_bytes=9_000, allocated_bytes=4_000, reserved_bytes=6_000)
    assert peak_memory([repeat(1, [1.0], memory=[larger]), repeat(2, [1.0], memory=[cuda])]) == 6000
    assert peak_memory([repeat(1, [1.0], memory=[memory(rss_bytes=7_000)])]) == 7000
    assert peak_memory([repeat(1, [1.0], memory=[memory(0, "cuda:0")])]) is None


def options(folder: Path, *repeats: Any) -> dict[str, Any]:
    """Write the inputs of the job and return its order."""
    inputs = {"manifest": manifest()}
    inputs |= {str(number): item for number, item in enumerate(repeats)}
    files = {name: folder / f"{name}.json" for name in ("spec", *inputs)}
    files["spec"].write_text(spec().canonical_json())
    for name, record in inputs.items():
        files[name].write_text(record.model_dump_json())
    return {
        "variant": "single",
        "repeats": [str(files.pop(str(number))) for number in range(len(repeats))],
        **files,
        "output": folder / "out/metrics.json",
    }


def test_job_writes_the_record(tmp_path):
    repeats = (repeat(1, [100.0, 110.0, 120.0]), repeat(2, [100.0]))
    assert run_job("combine", **options(tmp_path, *repeats)) == 0
    text = (tmp_path / "out/metrics.json").read_text()
    assert VariantResult.model_validate_json(text) == combined(*repeats)
    assert [path.name for path in (tmp_path / "out").glob("[!.]*")] == ["metrics.json"]


def test_job_refuses_a_run_of_another_spec(tmp_path, capsys):
    run = repeat(1, [1.0])
    other = run.provenance.model_copy(update={"spec_sha256": "1" * 64})
    run = run.model_copy(update={"provenance": other})
    assert run_job("combine", **options(tmp_path, run)) == 1
    message = capsys.readouterr().err
    assert "0.json" in message
    assert "another run spec" in message
    assert "--force" in message
    assert not (tmp_path / "out").exists()
