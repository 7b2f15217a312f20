"""A copy of the project with a tiny study, for tests that run Snakemake or change its files."""

import compileall
import contextlib
import copy
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import warm_snakemake
import yaml

from schemas.config.data import SPLITS
from schemas.results import Repeat
from tests.records import AnySchema
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
    # Other tests run at the same time: threads that wait for each other would take minutes.
    "machine": {"device": "cpu", "devices_per_node": 2, "threads": 1},
    "measurement": {"warmup_steps": 2, "window_steps": 2},
    "repeats": 1,
    "profiling": {"warmup_steps": 1, "steps": 2},
    "limits": {
        "seconds": 0.001,
        "largest_matrix": 256,
        "largest_array": 2**20,
        "largest_message": 65536,
    },
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


def long_training(steps: int, **changed: Any) -> dict[str, Any]:
    """The training of :data:`TINY` with more steps, so that a test can disturb it."""
    usual = {"steps": steps, "log_every": 100, "validate_every": 0}
    return TINY["training"] | usual | {"schedule": {"kind": "constant", "peak": 1e-3}} | changed


class Project:
    """A folder with the project's files, and Snakemake in it."""

    program = "snakemake"  # the module that is started as Snakemake

    def __init__(self, folder: Path, study: dict[str, Any]) -> None:
        self.folder = folder
        shutil.copytree(_made_once("sources", _copy_sources), folder, dirs_exist_ok=True)
        self.study = folder / "study.yaml"
        self.write_study(study)

    @classmethod
    def with_data(cls, folder: Path, study: dict[str, Any]) -> "Project":
        """A project that has the shards of :data:`TINY`, and Snakemake's metadata of them."""
        made = cls(folder, study)
        for name in ("results/data", ".snakemake/metadata"):
            data = _made_once("data", _make_data)
            shutil.copytree(data / name, folder / name, dirs_exist_ok=True)
        return made

    def copy(self, folder: Path) -> "Project":
        """Copies the project with its results to another folder."""
        made = copy.copy(self)
        made.folder, made.study = folder, folder / self.study.name
        shutil.copytree(self.folder, folder, symlinks=True)
        return made

    def write_study(self, study: dict[str, Any]) -> None:
        """Replaces the study."""
        self.study.write_text(yaml.safe_dump(study))

    @contextlib.contextmanager
    def asked_for(self, study: dict[str, Any]) -> Iterator[None]:
        """Replaces the study within the block."""
        with put_back(self.study):
            self.write_study(study)
            yield

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts ``snakemake --cores 2`` with the study, in its own process group."""
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
        """Runs Snakemake to the end: exit code and output."""
        output = self.folder / ".snakemake/output.txt"
        # One fork server for all calls in a project, instead of one for each call.
        options, environment = self._options(arguments), self._environment()
        environment.setdefault(places.WARM_STARTS, places.offer_warm_starts())
        code = warm_snakemake.call(options, self.folder, environment, output)
        return code, output.read_text()

    def make(self, *arguments: str) -> str:
        """The output of Snakemake, which must succeed."""
        code, output = self.snakemake(*arguments)
        assert code == 0, output
        return output

    def _options(self, arguments: Sequence[str]) -> list[str]:
        # Of two, Snakemake would only read the last.
        study = [] if "--configfile" in arguments else ["--configfile", "study.yaml"]
        return ["--cores", "2", *arguments, *study, "--nocolor"]

    def _environment(self) -> dict[str, str]:
        """The environment of this process, with the project's own packages, which are compiled."""
        return os.environ | {"PYTHONPATH": str(self.folder)}

    def refused(self, *arguments: str) -> str:
        """The output of Snakemake, which must fail."""
        code, output = self.snakemake(*arguments)
        assert code != 0, output
        return output

    def planned(self, *arguments: str) -> dict[str, int]:
        """The number of jobs of each rule that a dry run announces."""
        return self.dry_run(*arguments)[0]

    def dry_run(self, *arguments: str) -> tuple[dict[str, int], str]:
        """The number of jobs of each rule that a dry run announces, and its output."""
        output = self.make("-n", *arguments)
        lines = output.split("Job stats:")[-1].splitlines() if "Job stats:" in output else []
        counts = [line.split() for line in lines]
        found = {
            words[0]: int(words[1])
            for words in counts
            if len(words) == 2 and words[1].isdigit() and words[0] != "total"
        }
        return found, output

    def read(self, file: str, schema: type[AnySchema]) -> AnySchema:
        """A record of the results."""
        return schema.model_validate_json((self.folder / file).read_text())

    def repeat(self, folder: str) -> Repeat:
        """The record of a run in this folder."""
        return self.read(f"{folder}/metrics.json", Repeat)

    def at_a_checkpoint(
        self, running: subprocess.Popen[str], folder: str, act: Callable[[], None]
    ) -> None:
        """Waits until the run in this folder has a checkpoint, and acts, unless Snakemake ended."""
        checkpoints = self.folder / folder / "checkpoint"
        if wait_until(lambda: any(checkpoints.glob("step-*")), running):
            act()


SHARED = Path()
"""A folder that all processes share that run these tests; a fixture of conftest.py sets it."""


@cache
def _made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder that ``make`` fills; the first process that needs it calls ``make``."""
    folder = SHARED / name
    with (SHARED / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            begun = folder.with_suffix(".begun")
            make(begun)
            begun.rename(folder)
    return folder


def _copy_sources(folder: Path) -> None:
    """Copies the project's files and compiles them. Copies of these keep their time stamps, so that
    the compiled files remain valid."""
    for name in ("workflow", "profiles", "config", "schemas", "transformer_core"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "Snakefile", folder)
    know_sources(folder)
    for name in ("schemas", "transformer_core"):
        compileall.compile_dir(folder / name, quiet=1)


def _make_data(folder: Path) -> None:
    """Makes a project with all shards of :data:`TINY`."""
    shards = "results/data/grammar/shards/{}/manifest.json"
    Project(folder, TINY).make(*(shards.format(split) for split in SPLITS))


def know_sources(folder: Path) -> None:
    """Gives ``folder`` the cache of parsed sources, which is valid for copies, too."""
    staleness.fingerprints(Sources(ROOT, ROOT / CACHE))
    (folder / CACHE).parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / CACHE, folder / CACHE)


@contextlib.contextmanager
def put_back(*files: Path) -> Iterator[None]:
    """Restores these files after the block."""
    before = {file: file.read_bytes() for file in files}
    try:
        yield
    finally:
        for file, content in before.items():
            file.write_bytes(content)


def wait_until(happened: Callable[[], bool], running: subprocess.Popen[str]) -> bool:
    """Waits until something has happened, or the process has ended: whether it has happened."""
    while running.poll() is None:
        if happened():
            return True
        time.sleep(0.02)
    return False


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kills a process and its process group by SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
