"""The provenance of a number: code, packages, machine, and the command that reproduces it."""

import platform
import runpy
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from schemas.config.run_spec import RunSpec
from schemas.results import Provenance
from transformer_core.machine.hardware import output_of, read_hardware

CHANGES_NO_RESULT = True  # it records where a number comes from

DISTRIBUTIONS = (
    *("numpy", "nvidia-ml-py", "nvidia-ml-py3", "pandas", "pyarrow", "pydantic", "sacrebleu"),
    *("safetensors", "scipy", "snakemake", "tokenizers"),
)
"""Packages besides torch whose versions are recorded if they are installed."""


def collect(spec: RunSpec, command: str, started: datetime) -> Provenance:
    """The provenance of a run of ``spec``. ``command`` reproduces the result; ``started`` is local
    time if it has no zone."""
    return Provenance(
        spec_sha256=spec.digest(),
        command=command,
        commit=git_commit(Path(__file__)),
        started=started.astimezone(UTC).isoformat(timespec="seconds"),
        python=platform.python_version(),
        packages=package_versions(),
        hardware=read_hardware(),
    )


def git_commit(file: Path) -> str | None:
    """Commit of the repository that tracks ``file``, with -dirty if tracked files differ from it.

    None without git or a commit, or if no repository tracks the file (a package installed below
    some other checkout).
    """
    folder = file.parent
    if _git(folder, "ls-files", "--error-unmatch", "--", file.name) is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if commit is None or changes is None:
        return None
    return f"{commit}-dirty" if changes else commit


def package_versions() -> dict[str, str]:
    """Versions of torch, of the libraries it was built with, and of :data:`DISTRIBUTIONS`."""
    built = _built()
    versions = {"torch": str(built["__version__"])}
    for name in DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    if built["cuda"] is not None:
        import torch  # imported here: a supervisor does not need it otherwise

        versions["cuda"] = built["cuda"]
        cudnn = torch.backends.cudnn.version()
        if cudnn is not None:
            versions["cudnn"] = str(cudnn)
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return dict(sorted(versions.items()))


def _built() -> Mapping[str, Any]:
    """torch's version and build settings, without importing it."""
    if "torch.version" in sys.modules:
        return vars(sys.modules["torch.version"])
    found = find_spec("torch")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("torch is not installed", name="torch")
    return runpy.run_path(str(Path(found.submodule_search_locations[0], "version.py")))


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of git in ``folder``; None if it fails."""
    # git status would lock the index, and several runs may call it at the same time.
    return output_of("git", "-C", str(folder), *arguments, GIT_OPTIONAL_LOCKS="0")
