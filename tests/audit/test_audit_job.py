"""The audit of a baseline as a job: the training that it starts."""

import subprocess
import sys
from pathlib import Path

from tests.training.small_training import small_spec
from transformer_core.audit.job import own_training
from transformer_core.tune.coordinator import _environment


def test_the_projects_own_training_is_started_by_its_command(tmp_path):
    spec, alone = tmp_path / "spec.json", small_spec()
    spec.write_text(alone.model_dump_json())
    program = own_training(spec, tmp_path / "data", tmp_path / "audit")
    assert program.command[:2] == ("-m", "transformer_core.training")
    assert (program.launcher, program.ranks) == ((), 1)
    assert program.directory.is_dir(), "an overlay is mounted on it"
    assert all(Path(p).is_absolute() for p in program.command[3::2])
    assert program.modules == Path.cwd(), "the model may be the user's"
    two = small_spec(parallel={"kind": "ddp"}, machine={"device": "cpu", "devices_per_node": 2})
    spec.write_text(two.model_dump_json())
    assert own_training(spec, tmp_path / "data", tmp_path / "audit").ranks == 2


def test_a_users_model_is_found_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "users_own_model.py").touch()
    (tmp_path / "spec.json").write_text(small_spec().model_dump_json())
    monkeypatch.chdir(tmp_path)
    program = own_training(Path("spec.json"), Path("data"), tmp_path / "audit")
    environment = _environment((), {}, program.modules)
    command = [sys.executable, "-c", "import users_own_model"]
    subprocess.run(command, cwd=program.directory, env=environment, check=True)
