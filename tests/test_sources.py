"""What Snakemake watches of the source files."""

import pytest

from transformer_core.sources import sources


def test_a_job_depends_on_all_it_imports_directly_or_not() -> None:
    found = sources("transformer_core.measure.worker")
    for name in (
        "measure/worker.py",
        "train/loop.py",
        "train/precision.py",
        "parallel/ddp.py",
        "model/attention.py",
        "data/feeding.py",
    ):
        assert f"transformer_core/{name}" in found


def test_a_job_does_not_depend_on_what_it_does_not_import() -> None:
    found = sources("transformer_core.data.tokenizer")
    assert not [path for path in found if "/model/" in path or "/report/" in path]


def test_what_changes_no_result_is_left_out() -> None:
    without = ("transformer_core.measure.progress",)
    found = sources("transformer_core.measure.worker", without)
    assert "transformer_core/measure/progress.py" not in found
    assert "transformer_core/measure/clock.py" in found


def test_an_unknown_module() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_job"):
        sources("transformer_core.no_such_job")
