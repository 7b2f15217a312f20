"""Mistakes are refused before any work starts, with field, value and remedy."""

import os
import re
import shutil

import pytest
import warm_snakemake
import yaml
from project import ROOT, TINY, Project, know_sources, put_back

from schemas.config.study import Study
from transformer_core.common.digests import forget, write_result
from transformer_core.report.contents import FIGURES, TABLES
from transformer_core.study.compared_pairs import known_targets


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return Project(tmp_path_factory.mktemp("project"), TINY)


def test_all_mistakes_of_a_study_are_refused_together(project):
    wrong = {"variants": ["single", "dpp"], "model": TINY["model"] | {"heads": 3}}
    with project.asked_for(TINY | wrong):
        output = project.refused("results/report.html")
    for words in ("study.yaml: variants[1] = 'dpp'", "did you mean ddp"):
        assert words in output
    for words in ("study.yaml: model.heads = 3", "remedy:  use 2 or 4 heads"):
        assert words in output
    assert not (project.folder / "results/runs").exists()


def test_a_refusal_is_shown_even_if_snakemake_is_quiet(project):
    """As tune-training calls it."""
    with project.asked_for(TINY | {"variants": ["dpp"]}):
        assert project.refused("--quiet", "all").count("did you mean ddp") == 1
        assert project.refused("-n", "--quiet", "all").count("did you mean ddp") == 1


def test_a_wrong_value_on_the_command_line_is_refused(project):
    output = project.refused("-n", "--config", 'memory={"largest_batch": {"variants": ["dpp"]}}')
    for words in ("memory.largest_batch.variants[0] = 'dpp'", "did you mean ddp"):
        assert words in output


def test_a_study_for_gpus_is_refused_on_a_host_without_any(project, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with project.asked_for(TINY | {"machine": TINY["machine"] | {"device": "cuda"}}):
        output = project.refused("results/report.html")
        assert project.planned("results/report.html")["train"] == 2
    assert "study.yaml: machine.device = 'cuda'" in output
    assert "torch finds 0 on this host" in output
    assert not (project.folder / "results/data").exists()


def test_names_of_scripts_may_have_braces(project):
    (project.folder / "{train}.py").touch()
    task = {"kind": "script", "command": ["{train}.py", "{x}"]}
    study = {"name": "tiny", "time": "1min", "task": task, "variants": ["single"], "search": None}
    with project.asked_for(study | {"baseline": "single"}):
        assert project.planned("results/report.html")["tune"] == 1


def test_a_mistake_in_a_file_of_the_project_is_named_by_its_path(project):
    """Snakemake reads copies of these files."""
    for name in ("config/variants.yaml", "config/claims.yaml"):
        file = project.folder / name
        with put_back(file):
            file.write_text(f"{file.read_text()}\nmine: {{}}\n")
            assert f"\n{name}: mine" in project.refused("-n")


def test_damaged_predictions_of_memory_can_be_made_again(project):
    """Snakemake reads them for the resources of every job."""
    file = project.folder / "results/memory/predicted.json"
    file.parent.mkdir(parents=True)
    file.write_text("{")
    asked = "results/memory/predicted.json"
    assert project.planned(asked, "--forcerun", asked)["predict_memory"] == 1
    file.unlink()


def test_a_damaged_report_is_named_with_the_command_that_makes_it_again(project):
    page = project.folder / "results/report.html"
    write_result(page, "whole")
    page.write_text("wh")
    said = project.make("-n")
    assert "has changed since it was made" in said
    assert "--forcerun results/report.html" in said
    for forced in (["-n", "--forcerun", "page"], ["-nF"]):
        assert "has changed" not in project.make(*forced)
    write_result(page, "whole")
    assert "has changed" not in project.make("-n")
    forget(page)
    page.unlink()


def test_commands_name_the_snakefile_of_another_folder(tmp_path):
    """As for two studies, each in a folder of its own."""
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(TINY))
    page = tmp_path / "results/report.html"
    write_result(page, "whole")
    page.write_text("wh")
    know_sources(tmp_path)
    arguments = ["-n", "--quiet", "rules", "--snakefile", f"{ROOT}/Snakefile"]
    output, environment = tmp_path / "output.txt", os.environ | {"PYTHONPATH": str(ROOT)}
    study = ["--configfile", "study.yaml"]
    assert warm_snakemake.call([*arguments, *study], tmp_path, environment, output) == 0
    named = os.path.relpath(f"{ROOT}/Snakefile", tmp_path)
    assert f"--snakefile {named} --configfile study.yaml" in output.read_text()


def test_other_results_must_exist(project):
    words = ["command line: against", "--config against=FOLDER"]
    nowhere = ("results/compare.html", "--config", "against=/nowhere")
    for asked in (["results/compare.html"], ["results/against.json"], nowhere):
        output = project.refused("-n", *asked)
        assert all(word in output for word in words)


def test_a_mistyped_target_is_refused_with_the_nearest_names(project):
    asked = ["results/runs/singel/metrics.json", "results/turns/singel/ddp"]
    asked += ["results/memory/largest_batch/ddp.json"]
    near = ["results/runs/single/metrics.json", "results/turns/single/ddp"]
    near += ["results/memory/largest_batch/single.json"]
    with project.asked_for(TINY | {"memory": {"largest_batch": {"variants": ["single"]}}}):
        output = project.refused(*asked)
    for name in near:
        assert f"did you mean {name}" in output


def test_the_rules_make_all_known_targets(project):
    study = Study.model_validate(TINY)
    there = project.folder / "elsewhere"
    there.mkdir()
    (there / "study.json").touch()
    targets = known_targets(study, (), FIGURES, TABLES)
    project.make("-n", *targets, "--config", f"against={there}")


def test_a_study_of_downloaded_texts_can_be_planned(project):
    """Other files make whole studies of the other tasks; tests/schemas resolves the variants of all.
    The study may lie among the results."""
    own = project.folder / "results/my multi30k.yaml"
    own.parent.mkdir(exist_ok=True)
    shutil.copy(project.folder / "config/studies/multi30k.yaml", own)
    output = project.make("-n", "--configfile", "results/my multi30k.yaml")
    assert "results/data/multi30k/shards/train/manifest.json" in output
    own.unlink()


def test_a_users_package_called_schemas_does_not_stand_for_ours(tmp_path):
    (tmp_path / "schemas").mkdir()
    for name in ("__init__.py", "base.py"):
        (tmp_path / "schemas" / name).touch()
    know_sources(tmp_path)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    # As tune-training calls it: profiles/default would import the project first.
    arguments = ["--list-rules", "--workflow-profile", "none", "--snakefile", f"{ROOT}/Snakefile"]
    output = tmp_path / "output.txt"
    code = warm_snakemake.call(arguments, tmp_path, environment, output)
    assert code == 0, output.read_text()


def test_another_workflow_can_include_this_one_as_a_module(tmp_path):
    """The Snakefile is like that of ``snakedeploy deploy-workflow``."""
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(TINY))
    know_sources(tmp_path)
    (tmp_path / "Snakefile").write_text(
        'configfile: "study.yaml"\n'
        f'module study:\n    snakefile: "{ROOT}/workflow/Snakefile"\n    config: config\n'
        "use rule * from study\n"
    )
    arguments, output = ["-n", "--quiet", "rules", "--nocolor"], tmp_path / "output.txt"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    code = warm_snakemake.call(arguments, tmp_path, environment, output)
    planned = output.read_text()
    assert code == 0, planned
    for rule in ("train", "turns", "page"):
        assert re.search(rf"\b{rule}\b", planned)


def test_jobs_need_no_container(project):
    """A user's profile may ask for containers, in which the project would be missing."""
    assert "image" not in project.make("-n", "--software-deployment-method", "apptainer")
