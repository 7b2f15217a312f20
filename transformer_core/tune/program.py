"""The command that starts a training, as its user gives it. Imports no torch: a command line is read
before anything starts."""

import itertools
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_core.study.users_files import file_of_module
from transformer_core.tune.order import Boundary

DEPRECATED = "torch.distributed.launch"
"""The launcher that torchrun replaces. With --use-env it works the same way."""
LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch")
LAUNCHING = {
    "torch.distributed.run": "torchrun",
    "accelerate.commands.launch": "accelerate-launch",
    DEPRECATED: DEPRECATED,
}
"""Launchers that start as ``python -m`` and a module, and the commands that do the same."""
MODULE = ("-m", "--module")  # options of launchers before the name of a module
OTHER_LAUNCHERS = (
    *("deepspeed", "horovodrun", "mpirun", "mpiexec", "orterun", "srun", "composer", "colossalai"),
    *("fabric", "lightning", "ipexrun", "bagua"),
)
"""Launchers whose ranks cannot be observed."""
ENVIRONMENTS = ("uv", "poetry", "pipenv", "pdm", "hatch", "rye", "pixi", "conda", "mamba")
"""Commands that start others in an environment."""
PLAIN_OPTIONS = {"standalone", "nnodes", "nproc-per-node", "master-port"}
"""Options of torchrun that say no more than how many ranks to start on this host. Each side gets its
own port anyway."""

Say = Callable[[str], None]
"""Tells the user how far the work is."""


def _name(option: str) -> str:
    """The name of an option of a launcher."""
    return option.partition("=")[0].lstrip("-").replace("_", "-")


@dataclass(frozen=True)
class Program:
    """The user's command, unchanged."""

    command: tuple[str, ...]  # script and arguments, as after ``python``, without a launcher
    directory: Path  # working directory
    launcher: tuple[str, ...] = ()  # ``torchrun`` and its options, if the script has several ranks
    modules: Path | None = None  # another folder in which its modules are looked up
    boundary: Boundary = "optimizer"
    factory: Mapping[str, Any] | None = None
    """Settings of :mod:`transformer_core.tune.factory` for a function that returns the parts of a
    training. The command is then the function's name."""
    devices: int = 1  # devices available to a factory
    head: str | None = None  # name of the output layer, if the study gives it
    applied: tuple[str, ...] = ()  # techniques applied to all sides, including the unchanged one

    @property
    def title(self) -> str:
        return shlex.join([*self.launcher, *self.command])

    @property
    def name(self) -> str:
        """The name of the script or the module, without its folder."""
        return Path(self.command[self.command[0] == "-m"]).name

    @property
    def script(self) -> Path:
        """The file that a diff changes: the script, the module after ``-m``, or the factory's module."""
        if self.factory is not None:
            module = self.directory.joinpath(*self.command[0].partition(":")[0].split("."))
            return module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
        if self.command[0] != "-m":
            return self.directory / self.command[0]
        name = self.command[1]
        return file_of_module(name, self.directory) or self.directory / f"{name}.py"

    @property
    def ranks(self) -> int:
        """Number of processes, from the options of its launcher: a number, or what torchrun counts.
        A launcher that reads it elsewhere starts another number, which its processes report. Raises
        ValueError for anything else."""
        value = self.option("nproc-per-node", "num-processes")
        if value is None or value.isdigit():
            return int(value or 1)
        from torch.distributed.run import determine_local_world_size

        return determine_local_world_size(value)

    @property
    def forkable(self) -> bool:
        """Whether forks can stand for its processes: it has no launcher, or a torchrun that is only
        told how many ranks to start on this host. Variables tell it more: PET_NPROC_PER_NODE."""
        options = [word for word in self.launcher[1:] if word.startswith("-")]
        return not self.launcher or (
            self.launcher[0] == "torchrun"
            and {_name(option) for option in options} <= PLAIN_OPTIONS
            and not any(name.startswith("PET_") for name in os.environ)
        )

    def option(self, *names: str) -> str | None:
        """The value of an option of the launcher, under any of these names."""
        for option, after in itertools.pairwise([*self.launcher, ""]):
            if _name(option) in names:
                return option.partition("=")[2] or after
        return None


PACKAGES = ("site-packages", "dist-packages", "/transformer_core/", "/lib/python3")


def is_own(file: str) -> bool:
    """Whether a file name of a stack frame is one of the user's own files."""
    return not file.startswith("<") and not any(part in file for part in PACKAGES)


_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
"""Codes that control a terminal: colours, movements of the cursor, titles of windows, links."""


def plain(text: str) -> str:
    """``text`` without the codes that control a terminal."""
    return _CODES.sub("", text)


def printed(output: Path) -> list[str]:
    """The lines that a side has printed, each state of a progress bar among them."""
    return plain(output.read_text(encoding="utf-8", errors="replace")).splitlines()


def shortened(line: str) -> str:
    """``line`` without its end if it is too long for a message: a script may print or raise megabytes."""
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


LONGEST = 300  # characters of a line of the script that a message quotes


class SideEnded(Exception):
    """A side ended before its session. ``why`` is empty if its script reached its end."""

    def __init__(self, side: str, why: str, said: Mapping[str, Any], log: Path) -> None:
        super().__init__(f"{side}: {why or 'the script reached its end'}")
        self.side, self.why, self.said, self.log = side, plain(why), said, log
        self.place = f"{said['place']}: " if said.get("place") else ""

    @property
    def what(self) -> str:
        """The first line of ``why``, to be followed by other words. Of an error that torch hands over from the worker of
        a data loader, or from a replica, the last one."""
        lines = self.why.strip().splitlines() or [""]
        return shortened(lines[-("Original Traceback" in self.why)].rstrip(": ."))

    @property
    def out_of_memory(self) -> bool:
        return says_out_of_memory(f"{self.why} {self.said.get('trace') or ''}")


def says_out_of_memory(text: str) -> bool:
    """Whether the ``text`` of an error says that memory ran out."""
    return bool(_OUT_OF_MEMORY.search(text))


_OUT_OF_MEMORY = re.compile(
    r"out of ?memory|MemoryError|bad_alloc|can(no|')t allocate memory|_ALLOC_FAILED"
    r"|SIGKILL|killed by signal: Killed",
    re.IGNORECASE,
)
"""How Python, NumPy, torch, CUDA and its libraries say it. The kernel kills without a word: the script, or
a worker of its data loader."""
