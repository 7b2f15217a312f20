"""The audit of a baseline as a job: the training that it starts."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from schemas.errors import ConfigError
from tests.observe.capture_builders import write_shards
from tests.training.small_training import small_spec
from transformer_core.audit.flow import Audit
from transformer_core.audit.job import AuditJob, own_training
from transformer_core.audit.relations import Answer, Finding
from transformer_core.common.endings import failures
from transformer_core.common.records import read_as
from transformer_core.tune.coordinator import SideEnded, _environment


def test_the_projects_own_training_is_started_by_its_command(tmp_path):
    spec, alone = tmp_path / "spec.json", small_spec()
    spec.write_text(alone.model_dump_json())
    program = own_training(spec, tmp_path / "data", tmp_path / "audit")
    assert program.command[:2] == ("-m", "transformer_core.training")
    assert (program.launcher, program.ranks) == ((), 1)
    assert program.directory.is_dir(), "an overlay is mounted on it"
    assert all(Path(p).is_absolute() for p in program.command[3:6:2])
    assert program.command[6:] == ("--output", "output"), "no two copies train in one folder"
    assert program.modules == Path.cwd(), "the model may be the user's"
    two = small_spec(parallel={"kind": "ddp"}, machine={"device": "cpu", "devices_per_node": 2})
    spec.write_text(two.model_dump_json())
    assert own_training(spec, tmp_path / "data", tmp_path / "audit").ranks == 2


def test_a_users_model_is_found_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "users_own_model.py").touch()
    (tmp_path / "spec.json").write_text(small_spec().model_dump_json())
    monkeypatch.chdir(tmp_path)
    program = own_training(Path("spec.json"), Path("data"), tmp_path / "audit")
    # So are relative folders of modules, which are those of the folder where the user started.
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/users_helper.py").touch()
    monkeypatch.setenv("PYTHONPATH", "lib", prepend=os.pathsep)
    environment = _environment((), {}, program)
    command = [sys.executable, "-c", "import users_own_model, users_helper"]
    subprocess.run(command, cwd=program.directory, env=environment, check=True)


@pytest.fixture
def audit(tmp_path):
    """An audit of a small training, whose shards exist."""
    spec = tmp_path / "spec.json"
    spec.write_text(small_spec().model_dump_json())
    output = tmp_path / "results/audit.json"
    return AuditJob(spec=spec, data=write_shards(tmp_path / "data"), output=output)


def test_a_damaged_shard_is_no_final_answer(audit):
    (audit.data / "shards/train/0.arrow").write_bytes(b"")
    audit.run(None)
    found = read_as(audit.output, dict[str, Any])
    assert found["status"] == "failed"
    assert "0.arrow" in found["reason"]
    assert failures(audit.output) == 1, "the same command tries again"


@pytest.mark.parametrize(
    ("why", "said", "tried_again"),
    [
        ("killed by SIGKILL", {}, 1),
        ("SafetensorError: I/O error: No space left on device (os error 28)", {"step": 3}, 1),
        ("ValueError: a mistake", {"step": 3}, 0),
    ],
)
def test_a_copy_that_was_killed_or_lacked_room_is_no_final_answer(
    audit, tmp_path, monkeypatch, why, said, tried_again
):
    log = tmp_path / "output.txt"
    log.touch()

    def killed(*_: Any) -> NoReturn:
        raise SideEnded("own", why, said, log)

    monkeypatch.setattr(Audit, "_session", killed)
    audit.run(None)
    assert why in read_as(audit.output, dict[str, Any])["reason"]
    assert failures(audit.output) == tried_again
    assert audit.output.with_suffix("").exists(), "the reason names a file there"


def test_a_changed_answer_is_refused(audit, monkeypatch):
    monkeypatch.setattr(Audit, "run", lambda self: Answer("single"))
    audit.run(None)
    audit.output.write_text(audit.output.read_text().replace("clean", "wrong"))
    with pytest.raises(ConfigError, match="has changed since it was made"):
        read_as(audit.output, dict[str, Any])


def test_the_log_says_in_sentences_what_was_found(audit, monkeypatch, caplog):
    caplog.set_level("INFO")
    found = Finding("inputs", "source of Objective", "nothing depends on it", "use it", sure=False)
    monkeypatch.setattr(Audit, "run", lambda self: Answer("single", findings=[found]))
    audit.run(None)
    assert caplog.messages[-1] == "source of Objective: nothing depends on it"
