"""A training of the user's own, from a study to the report."""

import json
import shutil
from pathlib import Path

import pytest
from project import ROOT, Project

from schemas.results.own_training import OwnProfiles, OwnTrainingResult

STUDY = {
    "name": "mine",
    "task": {
        "kind": "import",
        "factory": "docs.examples.my_training:build",
        "options": {"width": 24},
        "head": "head",
        "techniques": ["fused_optimizer", "bf16", "tf32", "ddp"],
        "steps": 6,
    },
    "machine": {"device": "cpu", "devices_per_node": 2, "threads": 1},
    "comparison": {
        "warmup_steps": 1,
        "pairs": 5,
        "budget": 0,
        "sessions_least": 2,
        "sessions_most": 2,
    },
    "variants": ["single"],
}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path, STUDY)
    shutil.copytree(ROOT / "docs/examples", tmp_path / "docs/examples")
    return made


def test_a_script_is_certified_timed_and_reported(project: Project) -> None:
    code, output = project.snakemake()
    assert code == 0, output
    folder = project.folder / "results/own_training"
    found = OwnTrainingResult.model_validate_json((folder / "results.json").read_text())
    assert (found.status, found.reason) == ("ok", None)
    assert found.own_rounding is not None
    assert 0 < found.own_rounding < 1e-2
    by_name = {tuple(one.techniques): one for one in found.tried}
    for name in ("fused_optimizer", "ddp"):
        assert by_name[name,].certificate.word == "same", by_name[name,]
        assert by_name[name,].speed is not None
    assert by_name["tf32",].status == "unsupported"
    assert "this run is on a CPU" in str(by_name["tf32",].reason)
    assert by_name["bf16",].certificate.word in ("same", "undecided")
    page = (folder / "report.md").read_text()
    assert "## What to change in the script" in page
    answer = (project.folder / "results/report.html").read_text()
    for words in (
        "<code>fused_optimizer</code>",
        str(by_name["tf32",].reason),
        'id="figure-own_partition"',
    ):
        assert words in answer, words
    profiles = OwnProfiles.model_validate_json((folder / "profiles.json").read_text()).profiles
    assert [(profile.status, profile.reason) for profile in profiles] == [("ok", None)] * len(
        profiles
    )
    assert len(profiles) == (2 if found.recommended else 1)
    # All of it is there; and the script that is read is a part of what it comes from.
    code, output = project.snakemake("-n")
    assert "Nothing to be done" in output
    script = project.folder / "docs/examples/byte_gpt.py"
    script.write_text(script.read_text().replace("4, 3e-4", "4, 2e-4"))
    code, output = project.snakemake("-n")
    assert "own_training" in output
    assert "Nothing to be done" not in output


def test_a_dry_run_runs_nothing_of_the_users(project: Project) -> None:
    (project.folder / "mine_alone.py").write_text("raise SystemExit('this module was run')\n")
    task = json.dumps(STUDY["task"] | {"factory": "mine_alone:build"})  # type: ignore[operator]
    code, output = project.snakemake("-n", "--config", f"task={task}")
    assert code == 0, output
    assert "this module was run" not in output
    code, output = project.snakemake("results/comparisons.json", "-n")
    assert code != 0
    assert "ask for results/report.html" in output
