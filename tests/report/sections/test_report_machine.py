"""The section on the machine."""

import re
import shutil
from pathlib import Path

import pytest

from schemas.errors import ConfigError
from transformer_core.decide.study_results import StudyResults
from transformer_core.measure.evaluation import alone
from transformer_core.report import figures, page
from transformer_core.report.kit import svg

COLLECTIVES = "machine/collectives.parquet"
NONE = "Not measured: no variant has several processes."


def test_nobody_misses_collective_operations_of_single_processes(
    quick_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    shutil.copytree(quick_folder, folder)
    (folder / COLLECTIVES).unlink()
    for name, spec in StudyResults(folder).specs.items():
        (folder / f"runs/{name}/spec.json").write_text(alone(spec).canonical_json())
    assert StudyResults(folder).collectives is None
    figures.draw_all(StudyResults(folder), folder / "figures")
    assert svg.read(folder / "figures/collective_bandwidth.svg").description == NONE
    page.write_page(StudyResults(folder))
    assert NONE in re.sub("<[^>]*>", "", (folder / "report.html").read_text())


def test_where_processes_talk_to_one_another_they_are_missed(
    study_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    shutil.copytree(study_folder, folder)
    (folder / COLLECTIVES).unlink()
    with pytest.raises(ConfigError, match=r"collectives\.parquet"):
        _ = StudyResults(folder).collectives
