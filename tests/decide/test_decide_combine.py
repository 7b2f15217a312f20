from pathlib import Path
from typing import Any

import pytest
from analysis_builders import evaluation, manifest, memory, repeat, spec, window

from schemas.results import Validation, VariantResult
from tests.orders import run_job
from transformer_core.decide.combine import combine, epoch_tokens, peak_memory


def combined(*repeats: Any) -> VariantResult:
    return combine("single", repeats, evaluation(), manifest())


def test_throughput_is_over_the_windows_of_all_repeats():
    result = combined(repeat(1, [100.0, 110.0, 120.0]), repeat(2, [130.0, 140.0]))
    assert result.status == "ok"
    assert result.tokens_per_second.median == 120.0
    assert result.tokens_per_second.samples == 5
    assert result.pairs_per_second.median == 12.0


def test_epoch_counts_an_end_token_per_sentence():
    assert epoch_tokens(manifest(pairs=100, source=700, target=900)) == 1800
    assert combined(repeat(1, [90.0, 90.0, 90.0])).epoch_seconds == 20.0


def test_shares_weigh_windows_by_their_size():
    long = window(300.0, 1, wait=0.5)
    result = combined(repeat(1, [], windows=[window(100.0, 0, wait=0.1), long]))
    assert result.padding_share == pytest.approx(0.2)
    assert result.input_wait_share == pytest.approx(0.6 / 4)


def test_first_status_that_is_not_ok_wins_and_takes_the_numbers():
    result = combined(
        repeat(1, [100.0]),
        repeat(3, [], status="failed", reason="third"),
        repeat(2, [], status="oom", reason="second"),
    )
    assert (result.status, result.reason) == ("oom", "second")
    assert [item.repeat for item in result.repeats] == [1, 2, 3]
    assert result.tokens_per_second is None
    assert result.pairs_per_second is None
    assert result.epoch_seconds is None


def test_what_was_not_measured_is_null():
    result = combined(repeat(1, [], status="unsupported", reason="no GPU", memory=[]))
    assert result.padding_share is None
    assert result.input_wait_share is None
    assert result.validation_loss is None
    assert result.peak_memory_bytes is None


def test_ok_without_a_window_has_no_throughput():
    result = combined(repeat(1, []))
    assert result.status == "ok"
    assert result.tokens_per_second is None
    assert result.epoch_seconds is None


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


def test_no_repeat_is_refused():
    with pytest.raises(ValueError, match="no repeat"):
        combined()


def options(folder: Path, *repeats: Any, variant: str = "single") -> dict[str, Any]:
    """Write the inputs of the job and give its order."""
    (folder / "spec.json").write_text(spec().canonical_json())
    (folder / "evaluation.json").write_text(evaluation().model_dump_json())
    (folder / "manifest.json").write_text(manifest().model_dump_json())
    files = []
    for item in repeats:
        files.append(str(folder / f"{len(files)}.json"))
        Path(files[-1]).write_text(item.model_dump_json())
    return {
        "variant": variant,
        "spec": folder / "spec.json",
        "repeats": files,
        "evaluation": folder / "evaluation.json",
        "manifest": folder / "manifest.json",
        "output": folder / "out" / "metrics.json",
    }


def test_job_writes_the_record(tmp_path):
    repeats = (repeat(1, [100.0, 110.0, 120.0]), repeat(2, [100.0]))
    assert run_job("combine", **options(tmp_path, *repeats)) == 0
    text = (tmp_path / "out" / "metrics.json").read_text()
    assert VariantResult.model_validate_json(text) == combined(*repeats)
    assert [path.name for path in (tmp_path / "out").glob("[!.]*")] == ["metrics.json"]


@pytest.mark.parametrize(
    ("repeats", "variant", "words"),
    [
        ([repeat(1, [1.0]), repeat(1, [1.0])], "single", ["1.json", "repeat", "twice"]),
        ([repeat(1, [1.0], variant="ddp")], "single", ["0.json", "variant", "'ddp'"]),
        ([repeat(1, [1.0])], "ddp", ["spec.json", "variant", "'single'", "ddp"]),
    ],
)
def test_job_refuses_records_that_do_not_belong_together(tmp_path, capsys, repeats, variant, words):
    assert run_job("combine", **options(tmp_path, *repeats, variant=variant)) == 1
    message = capsys.readouterr().err
    assert all(word in message for word in words)
    assert not (tmp_path / "out").exists()


def test_job_refuses_a_run_of_another_spec(tmp_path, capsys):
    stale = repeat(1, [1.0])
    stale = stale.model_copy(
        update={"provenance": stale.provenance.model_copy(update={"spec_sha256": "1" * 64})}
    )
    assert run_job("combine", **options(tmp_path, stale)) == 1
    message = capsys.readouterr().err
    assert "another run spec" in message
    assert "--force" in message


def test_job_names_a_file_that_is_missing_or_broken(tmp_path, capsys):
    command = options(tmp_path, repeat(1, [1.0]))
    (tmp_path / "manifest.json").unlink()
    assert run_job("combine", **command) == 1
    assert "manifest.json" in capsys.readouterr().err
    (tmp_path / "manifest.json").write_text('{"corpus": "x"')
    assert run_job("combine", **command) == 1
    assert "manifest.json" in capsys.readouterr().err
