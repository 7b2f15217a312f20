"""The provenance of numbers: commit, versions, command."""

import json
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy
import pytest
import torch

from schemas.config.run_spec import RunSpec
from schemas.results import Provenance
from tests.records import write_tree
from transformer_core.machine import provenance


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_commit_says_whether_tracked_files_have_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    repository, outside = tmp_path / "repository", tmp_path / "outside"
    write_tree(repository, {"one.py": "pass\n", "two.py": "pass\n"})
    git(repository, "init", "--quiet")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "Two files")
    head, file = git(repository, "rev-parse", "HEAD"), repository / "one.py"
    assert re.fullmatch(r"[0-9a-f]{40}", head)
    for folder in (repository / "site-packages", outside):
        write_tree(folder, {"module.py": "pass\n"})
        assert provenance.git_commit(folder / "module.py") is None, "not tracked, or no repository"
    assert provenance.git_commit(file) == head
    write_tree(repository, {"results/metrics.json": "{}"})
    assert provenance.git_commit(file) == head, "untracked files are no change"
    (repository / "two.py").write_text("changed\n")
    assert provenance.git_commit(file) == f"{head}-dirty"
    git(repository, "add", "two.py")
    assert provenance.git_commit(file) == f"{head}-dirty"
    monkeypatch.setenv("PATH", "")
    assert provenance.git_commit(file) is None, "no git"


def test_versions(monkeypatch):
    found = provenance.package_versions()
    assert found["torch"] == torch.__version__
    assert found["numpy"] == numpy.__version__
    assert {"pyarrow", "pydantic", "sacrebleu", "safetensors", "tokenizers"} <= set(found)
    assert all(found.values())
    assert ("cuda" in found) == (torch.version.cuda is not None)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91300)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
    found = provenance.package_versions()
    assert (found["cuda"], found["cudnn"], found["nccl"]) == ("13.0", "91300", "2.27.3")
    monkeypatch.setattr(provenance, "DISTRIBUTIONS", ("numpy", "no-such-distribution-anywhere"))
    assert set(provenance.package_versions()) == {"numpy", "torch", "cuda", "cudnn", "nccl"}


def test_collect():
    spec = RunSpec(variant="single")
    berlin = timezone(timedelta(hours=2))
    started = datetime(2024, 5, 1, 12, 30, 15, 999, tzinfo=berlin)
    found = provenance.collect(spec, "snakemake one", started)
    assert found.spec_sha256 == spec.digest()
    assert found.command == "snakemake one"
    assert found.started == "2024-05-01T10:30:15+00:00"
    assert datetime.fromisoformat(found.started).tzinfo == UTC
    assert found.python == platform.python_version()
    assert found.hardware.cores >= 1
    assert Provenance.model_validate_json(found.model_dump_json()) == found


@pytest.mark.slow
def test_versions_are_known_without_importing_torch():
    program = (
        "import json, sys; from transformer_core.machine.provenance import package_versions; "
        "print(json.dumps([package_versions(), 'torch' in sys.modules]))"
    )
    found, imported = json.loads(subprocess.check_output([sys.executable, "-c", program]))
    assert found == provenance.package_versions()
    assert imported == (torch.version.cuda is not None)
