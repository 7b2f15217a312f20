"""The audit of a baseline as a job: what it starts, and what it says where it cannot."""

import json
from pathlib import Path

from schemas.config.run_spec import RunSpec
from tests.training.small_training import small_spec
from transformer_core.audit.job import own_training


def written(spec: RunSpec, folder: Path) -> Path:
    file = folder / "spec.json"
    file.write_text(spec.model_dump_json())
    return file


def test_the_projects_own_training_is_started_as_anybody_starts_it(tmp_path):
    spec = written(small_spec(), tmp_path)
    program = own_training(spec, tmp_path / "data", tmp_path / "audit")
    assert program.command[:2] == ("-m", "transformer_core.training")
    assert (program.launcher, program.ranks) == ((), 1)
    assert program.directory.is_dir(), "an overlay is mounted on it"
    assert all(Path(p).is_absolute() for p in program.command[3::2])


def test_several_ranks_are_started_together(tmp_path):
    two = small_spec(parallel={"kind": "ddp"}, machine={"device": "cpu", "devices_per_node": 2})
    program = own_training(written(two, tmp_path), tmp_path / "data", tmp_path / "audit")
    assert program.ranks == 2
    assert json.loads((tmp_path / "spec.json").read_text())["parallel"]["kind"] == "ddp"
