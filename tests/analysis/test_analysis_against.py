"""These results against others: the same ones, and changed ones."""

import json
import shutil
from pathlib import Path

import pytest
from report_builders import build, mixed

from schemas.errors import ConfigError
from transformer_core.analysis.against import against, read_side
from transformer_core.report.compare_page import render


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("against") / "results", mixed)


def test_equal_results_show_no_change(folder: Path) -> None:
    found = against(read_side(folder), read_side(folder))
    assert found.same_device
    assert found.changes
    assert {change.ratio.median for change in found.changes if change.ratio} == {1.0}
    assert not {change.verdict for change in found.changes} & {"FASTER", "SLOWER", "LESS", "MORE"}
    assert not [*found.statuses, *found.certificates, *found.other_specs]


def test_a_regression_is_named_on_the_page(folder: Path, tmp_path: Path) -> None:
    slow = tmp_path / "results"
    shutil.copytree(folder, slow)
    file = slow / "runs/amp_bf16/metrics.json"
    record = json.loads(file.read_text())
    for end in ("median", "low", "high"):
        record["tokens_per_second"][end] /= 2
    file.write_text(json.dumps(record))
    found = against(read_side(slow), read_side(folder))
    worse = [(c.variant, c.quantity) for c in found.changes if c.verdict == "SLOWER"]
    assert worse == [("amp_bf16", "throughput")]
    assert "<code>amp_bf16</code>" in render(found).split("Better here")[0]


def test_a_throughput_of_another_device_has_no_verdict(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "results"
    shutil.copytree(folder, other)
    file = other / "machine/hardware.json"
    file.write_text(file.read_text().replace("Example GPU", "Another GPU"))
    found = against(read_side(folder), read_side(other))
    assert not found.same_device
    assert {c.verdict for c in found.changes if c.quantity == "throughput"} == {None}


def test_a_folder_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no folder of results"):
        read_side(tmp_path)
