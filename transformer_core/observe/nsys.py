"""Nsight Systems: finds it, adapts to the options of its version, and checks what it recorded.

Nothing here imports torch. An exit code of 0 proves nothing: success is an SQLite export with at
least one kernel.
"""

import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from transformer_core.study.users_environment import variables_of_speed
from transformer_core.trace.events.phases import CAPTURE_RANGE

DOMAIN = "transformer_core"  # NVTX domain of all ranges

REPORTS = (".nsys-rep", ".qdrep")  # endings of reports, newest first

_WANTED = (
    ("--trace", "cuda,nvtx"),
    ("--sample", "none"),
    ("--cpuctxsw", "none"),
    ("--cuda-graph-trace", "node"),
    ("--export", "sqlite"),
    ("--kill", "none"),
    ("--force-overwrite", "true"),
)
_NEEDED = ("--trace", "--capture-range", "--output")

_PASSED_ON = re.compile(
    r"(PATH|HOME|USER|LOGNAME|SHELL|TERM|LANG|LC_\w+|TZ|TMPDIR|TEMP|TMP|VIRTUAL_ENV|STUDY_OPTIONS"
    r"|LD_\w+|PYTHON\w*|GLOO_\w+|CC|CXX|CPATH|(C|CPLUS)_INCLUDE_PATH|LIBRARY_PATH|COMPILER_PATH|NODE_RANK"
    r"|RENDEZVOUS|MASTER_\w+|XDG_\w+|SLURM_(JOB|PROC|NODE|LOCAL|STEP)\w*)"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASS(WORD|WD)|CREDENTIAL|_KEY", re.IGNORECASE)
_TELLING = re.compile(
    r"error|denied|permi|privilege|not (be )?found|fail|cannot|unable|unrecogni|illegal", re.I
)


@dataclass(frozen=True)
class Nsys:
    path: str
    version: str  # the output of ``nsys --version``
    help: Mapping[str, str]  # text of ``nsys profile --help`` by option

    def command(self, output: Path, cuda: bool) -> list[str]:
        """The command that profiles one rank, without the program it runs.

        With ``cuda`` the capture lasts from cudaProfilerStart to cudaProfilerStop, else for an NVTX
        range. Raises ValueError if this version lacks a necessary option.
        """
        missing = [option for option in _NEEDED if option not in self.help]
        if missing:
            raise ValueError(f"{self.version} does not know {', '.join(missing)}")
        words = [self.path, "profile"]
        words += [f"{option}={value}" for option, value in _WANTED if self._knows(option, value)]
        if cuda:
            words += ["--capture-range=cudaProfilerApi"]
        else:
            words += ["--capture-range=nvtx", f"--nvtx-capture={CAPTURE_RANGE}@{DOMAIN}"]
        if self._knows("--capture-range-end", "stop"):
            words += ["--capture-range-end=stop"]
        elif "--stop-on-range-end" in self.help:  # until 2021.2
            words += ["--stop-on-range-end=true"]
        return [*words, f"--output={output}/rank-%q{{RANK}}"]

    def _knows(self, option: str, value: str) -> bool:
        text = self.help.get(option)
        if text is None:
            return False
        # A value is known to be missing only if the help lists the possible ones.
        return "ossible" not in text or all(word in text for word in value.split(","))


def find_nsys() -> Nsys | None:
    """Nsight Systems on the PATH; None if it is missing or does not start."""
    path = shutil.which("nsys")
    if path is None:
        return None
    version, text = _output([path, "--version"]), _output([path, "profile", "--help"])
    if version is None or text is None:
        return None
    found = re.search(r"\d+(\.\d+)+\S*", version)
    return Nsys(path, found[0] if found else version.strip(), options(text))


def options(text: str) -> dict[str, str]:
    """The text of every option in the help of ``nsys profile``."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        match = re.match(r"\s{1,8}(?:-\w, *)?(--[a-z][\w-]*)", line)
        if match:
            current = found.setdefault(match[1], [])
        current.append(line)
    return {option: "\n".join(lines) for option, lines in found.items()}


def environment() -> dict[str, str]:
    """The part of the environment that a profiled run receives.

    Reports and exports contain the whole environment of the profiled process. So it receives only
    what a training needs, and nothing that looks like a secret.
    """
    speed = variables_of_speed()
    kept = {
        name: value
        for name, value in os.environ.items()
        if (_PASSED_ON.fullmatch(name) or name in speed) and not _SECRET.search(name)
    }
    # Names the files of a rank without torchrun, and lets a range start the capture whatever kind of
    # string its name is.
    return kept | {"RANK": "0", "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}


def rank_files(nsys: Nsys, output: Path, rank: int) -> list[str]:
    """Names of the export and the report of a rank; empty if there is no export."""
    base = output / f"rank-{rank}"
    sqlite = base.with_suffix(".sqlite")
    reports = [path for ending in REPORTS if (path := base.with_suffix(ending)).exists()]
    if not sqlite.exists() and reports:
        command = [nsys.path, "export", "--type=sqlite", "--force-overwrite=true"]
        _output([*command, f"--output={sqlite}", str(reports[0])], seconds=600)
    if not sqlite.exists():
        return []
    for path in (sqlite, *reports):
        path.chmod(0o600)
    return [sqlite.name, *(path.name for path in reports)]


def rows(export_file: Path) -> tuple[int, int]:
    """The numbers of kernels and NVTX events in an export, which has no tables without rows."""
    place = f"{export_file.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(place, uri=True)) as database:
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}

        def count(table: str) -> int:
            query = f"SELECT count(*) FROM {table}"
            return int(database.execute(query).fetchone()[0]) if table in names else 0

        return count("CUPTI_ACTIVITY_KIND_KERNEL"), count("NVTX_EVENTS")


def telling_lines(text: str) -> str:
    """The last lines of a log that describe errors, else its last line."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)]
    return " ".join((telling or lines[-1:])[-3:])


def _output(command: list[str], seconds: float = 60) -> str | None:
    """The output of a command; None if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout + done.stderr
