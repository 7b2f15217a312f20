"""A copy of the project with a tiny study, for tests that run the DAG or change its files."""

import compileall
import contextlib
import copy
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import warm_snakemake
import yaml

from schemas.config.data import SPLITS
from transformer_core.common.sources import CACHE, Sources
from transformer_core.run import warm_start as places
from transformer_core.study import staleness

ROOT = Path(__file__).resolve().parents[2]

TINY: dict[str, Any] = {
    "name": "tiny",
    "corpus": {"kind": "grammar", "train_pairs": 600, "validation_pairs": 40, "test_pairs": 20},
    "filter": {"max_tokens": 80},
    "tokenizer": {"vocabulary": 320},
    "batching": {"kind": "token_budget", "tokens": 700},
    "model": {
        "kind": "transformer",
        "encoder_layers": 1,
        "decoder_layers": 1,
        "d_model": 16,
        "d_ff": 32,
        "heads": 2,
    },
    "training": {
        "steps": 12,
        "schedule": {"kind": "noam", "warmup": 4},
        "log_every": 1,
        "validate_every": 6,
    },
    # Other tests run beside this one: threads that wait for each other would take minutes.
    "machine": {"device": "cpu", "devices_per_node": 2, "threads": 1},
    "measurement": {"warmup_steps": 2, "window_steps": 2},
    "repeats": 1,
    "profiling": {"warmup_steps": 1, "steps": 2},
    "limits": {"seconds": 0.001, "largest_matrix": 256, "largest_message": 65536},
    "comparison": {
        "warmup_steps": 2,
        "window_seconds": 0.02,
        "pairs": 5,
        "sessions_least": 2,
        "budget": 0,
    },
    "search": None,
    "evaluation": {"beam_size": 2, "max_pairs": 8, "samples": 2},
    "variants": ["single", "ddp"],
}


class Project:
    """The project's files in a folder of their own, and Snakemake on them."""

    program = "snakemake"
    """The module that is started as Snakemake."""

    def __init__(self, folder: Path, study: dict[str, Any]) -> None:
        self.folder = folder
        shutil.copytree(_made_once("sources", _copy_sources), folder, dirs_exist_ok=True)
        self.study = folder / "study.yaml"
        self.write_study(study)

    @classmethod
    def with_data(cls, folder: Path, study: dict[str, Any]) -> "Project":
        """One that has the shards of :data:`TINY` already, and what Snakemake knows of them."""
        made = cls(folder, study)
        for name in ("results/data", ".snakemake/metadata"):
            data = _made_once("data", _make_data)
            shutil.copytree(data / name, folder / name, dirs_exist_ok=True)
        return made

    def copy(self, folder: Path) -> "Project":
        """The project with its results at another place."""
        made = copy.copy(self)
        made.folder, made.study = folder, folder / self.study.name
        shutil.copytree(self.folder, folder, symlinks=True)
        return made

    def write_study(self, study: dict[str, Any]) -> None:
        """Put this study in place of the one before."""
        self.study.write_text(yaml.safe_dump(study))

    @contextlib.contextmanager
    def asked_for(self, study: dict[str, Any]) -> Iterator[None]:
        """Within the block, this study is in place of the one before."""
        with put_back(self.study):
            self.write_study(study)
            yield

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``snakemake --cores 2`` with the study, in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", self.program, *self._options(arguments)],
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def snakemake(self, *arguments: str) -> tuple[int, str]:
        """Run it to the end: exit code and output."""
        output = self.folder / ".snakemake/output.txt"
        # One fork server for all calls in a project, instead of one for each call.
        options, environment = self._options(arguments), self._environment()
        environment.setdefault(places.WARM_STARTS, places.offer_warm_starts())
        code = warm_snakemake.call(options, self.folder, environment, output)
        return code, output.read_text()

    def make(self, *arguments: str) -> str:
        """Run it to the end, which must succeed: its output."""
        code, output = self.snakemake(*arguments)
        assert code == 0, output
        return output

    def _options(self, arguments: Sequence[str]) -> list[str]:
        return ["--cores", "2", *arguments, "--configfile", "study.yaml", "--nocolor"]

    def _environment(self) -> dict[str, str]:
        """This one's, with the project's own packages, which are compiled once."""
        environment = os.environ | {"PYTHONPATH": str(self.folder)}
        # It would give each test fork servers of its own.
        environment.pop("PYTEST_CURRENT_TEST", None)
        return environment

    def refused(self, *arguments: str) -> str:
        """Run it to the end, which must not succeed: its output."""
        code, output = self.snakemake(*arguments)
        assert code != 0, output
        return output

    def planned(self, *arguments: str) -> dict[str, int]:
        """Jobs by rule that a dry run announces."""
        return self.dry_run(*arguments)[0]

    def dry_run(self, *arguments: str) -> tuple[dict[str, int], str]:
        """Jobs by rule that a dry run announces, and all that it says."""
        output = self.make("-n", *arguments)
        lines = output.split("Job stats:")[-1].splitlines() if "Job stats:" in output else []
        counts = [line.split() for line in lines]
        found = {
            words[0]: int(words[1])
            for words in counts
            if len(words) == 2 and words[1].isdigit() and words[0] != "total"
        }
        return found, output


SHARED = Path()
"""A folder of all processes that run these tests at the same time; the fixture of conftest.py sets it."""


@cache
def _made_once(name: str, make: Callable[[Path], None]) -> Path:
    """What ``make`` writes to a folder, written by the first process that asks for it."""
    folder = SHARED / name
    with (SHARED / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            begun = folder.with_suffix(".begun")
            make(begun)
            begun.rename(folder)
    return folder


def _copy_sources(folder: Path) -> None:
    """The project's files, compiled. Copies have the times of the originals, so that what was
    compiled of these holds for them."""
    for name in ("workflow", "profiles", "config", "schemas", "transformer_core"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "Snakefile", folder)
    know_sources(folder)
    for name in ("schemas", "transformer_core"):
        compileall.compile_dir(folder / name, quiet=1)


def _make_data(folder: Path) -> None:
    """A project with all shards of :data:`TINY`."""
    shards = "results/data/grammar/shards/{}/manifest.json"
    Project(folder, TINY).make(*(shards.format(split) for split in SPLITS))


def know_sources(folder: Path) -> None:
    """Let Snakemake in ``folder`` know all sources: what was read of them holds for copies, too."""
    staleness.fingerprints(Sources(ROOT, ROOT / CACHE))
    (folder / CACHE).parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / CACHE, folder / CACHE)


@contextlib.contextmanager
def put_back(*files: Path) -> Iterator[None]:
    """What the block does to these files is undone after it."""
    before = {file: file.read_bytes() for file in files}
    try:
        yield
    finally:
        for file, content in before.items():
            file.write_bytes(content)


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill -9 for a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
