"""Mistakes are refused before any work starts, with the field, the value and what to do."""

from pathlib import Path
from typing import Any

import pytest
from project import TINY, Project

from schemas.study import Study
from schemas.targets import FIGURES, TABLES, known_targets
from transformer_core.report import figures, tables


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"), TINY)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"variants": ["single", "dpp"]}, ["variants[1]", "'dpp'", "did you mean ddp"]),
        ({"model": TINY["model"] | {"heads": 3}}, ["model.heads", "3", "take 2 or 4 heads"]),
        ({"modell": {}}, ["modell", "did you mean model"]),
        ({"batching": {"kind": "fixed_size", "pairs": 1}}, ["batching.pairs", "at least 2"]),
        ({"training": TINY["training"] | {"steps": 3}}, ["training.steps", "at least 4"]),
    ],
)
def test_a_wrong_study(project: Project, change: dict[str, Any], words: list[str]) -> None:
    project.write_study(TINY | change)
    try:
        code, output = project.snakemake("results/report.html")
    finally:
        project.write_study(TINY)
    assert code != 0
    for word in ["study.yaml", "remedy:", *words]:
        assert word in output
    assert not (project.folder / "results/runs").exists()


def test_a_wrong_value_on_the_command_line(project: Project) -> None:
    code, output = project.snakemake("-n", "--config", 'training={"steps": "many"}')
    assert code != 0
    assert "training.steps" in output
    assert "'many'" in output


def test_a_mistyped_target_is_refused_with_near_names(project: Project) -> None:
    code, output = project.snakemake("results/runs/singel/metrics.json")
    assert code != 0
    assert "results/runs/single/metrics.json" in output


def test_the_known_targets_are_what_the_rules_make(project: Project) -> None:
    study = Study.model_validate(TINY)
    code, output = project.snakemake("-n", *known_targets(study))
    assert code == 0, output


def test_figures_and_tables_are_those_of_the_report() -> None:
    assert tuple(figures.FIGURES) == FIGURES
    assert [Path(name).stem for name in tables.TABLES] == list(TABLES)


@pytest.mark.parametrize("name", ["multi30k", "original", "h200"])
def test_every_study_plans(project: Project, name: str) -> None:
    code, output = project.snakemake("-n", "--configfile", f"config/studies/{name}.yaml")
    assert code == 0, output
