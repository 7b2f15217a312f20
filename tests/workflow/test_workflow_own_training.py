"""A user's own training, from the study to the report."""

import json
import shutil

import pytest
from project import ROOT, Project

from transformer_core.tune.flow import Answer

STUDY = {
    "name": "mine",
    "time": "5min",
    "task": {
        "kind": "import",
        "factory": "my_slow_loss:build",
        "options": {"width": 24},
        "head": "head",
        # None is faster, because comparisons would take most of the time.
        "techniques": ["accumulation_2", "tf32"],
        "steps": 3,
        "verify": False,
    },
    "machine": {"device": "cpu", "devices_per_node": 2, "threads": 1},
    "variants": ["single"],
}

# A wait for each micro-batch: two of them are surely slower than one.
SLOW_LOSS = """
import time

from docs.examples import my_training

def build(**given):
    made = my_training.build(**given)
    return made | {"loss": slow(made["loss"])}

def slow(loss):
    def waiting(model, batch):
        time.sleep(0.03)
        return loss(model, batch)
    return waiting
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    made = Project(tmp_path_factory.mktemp("project"), STUDY)
    shutil.copytree(ROOT / "docs/examples", made.folder / "docs/examples")
    (made.folder / "my_slow_loss.py").write_text(SLOW_LOSS)
    return made


def test_a_dry_run_runs_no_code_of_the_user(project):
    (project.folder / "mine_alone.py").write_text("raise SystemExit('this module was run')\n")
    task = json.dumps(STUDY["task"] | {"factory": "mine_alone:build"})
    output = project.make("-n", "--config", f"task={task}")
    assert "this module was run" not in output
    assert "ask for results/report.html" in project.refused("results/comparisons.json", "-n")


def test_an_error_in_the_function_names_file_and_line(project):
    (project.folder / "broken.py").write_text("def build(**_):\n    return 1 / 0\n")
    task = json.dumps({"kind": "import", "factory": "broken:build"})
    output = project.refused("--config", f"task={task}")
    assert "broken.py, line 2: ZeroDivisionError" in output
    failed = json.loads((project.folder / "results/tune/failed.json").read_text())
    assert failed["status"] == "failed"
    assert not (project.folder / "results/report.html").exists()


def test_a_function_is_certified_timed_and_reported(project):
    project.make()
    found = Answer.read(project.folder / "results/tune/answer.json")
    assert (found.status, found.reproducible) == ("ok", True)
    by_name = {each.name: each for each in found.tried}
    divided = by_name["accumulation_2"]
    assert divided.certificate is not None, divided
    assert divided.certificate["word"] == "same", divided
    assert divided.screened is not None
    assert by_name["tf32"].status == "unsupported"
    assert 0 < found.memory["gradients"] == found.memory["weights"] < found.memory["peak"]
    (own, *_) = found.profiles
    assert own.breakdown is not None, own.reason
    phases = {use["phase"] for use in own.breakdown["summary"]["phases"]}
    assert {"forward", "loss", "backward", "optimizer"} <= phases
    page = (project.folder / "results/report.html").read_text()
    shown = ("<code>accumulation_2</code>", "two micro-batches a step")
    for words in (*shown, "TensorFloat-32 needs a GPU", 'id="profiles"'):
        assert words in page, words
    # Everything is made. A change of the script makes it stale.
    output = project.make("-n")
    assert "Nothing to be done" in output
    script = project.folder / "docs/examples/byte_gpt.py"
    script.write_text(script.read_text().replace("4, 3e-4", "4, 2e-4"))
    output = project.make("-n")
    assert "tune" in output
    assert "Nothing to be done" not in output
