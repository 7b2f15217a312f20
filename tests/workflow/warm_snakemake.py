"""Starts Snakemake without its imports, which take longer than a dry run: every call is a fork of a
process that has imported Snakemake and found its plugins, but nothing of the project."""

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

USED = ("jmespath", "requests", "smart_open", "xxhash", "yte")
USED += tuple(f"snakemake.{name}" for name in ("profiles", "report.html_reporter", "storage"))
"""Other modules that a call of Snakemake imports late."""


def call(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path
) -> int:
    """Does the same as ``python -m snakemake`` in ``folder``, in its own process group; returns the
    exit code and writes the messages to the file ``output``."""
    server = _server()
    assert server.stdin is not None
    asked = [list(arguments), str(folder), dict(environment), str(output)]
    print(json.dumps(asked), file=server.stdin, flush=True)
    return int(server.stdout.readline())


@cache
def _server() -> subprocess.Popen[str]:
    """Starts the process that is forked; it ends with this one."""
    return subprocess.Popen(
        [sys.executable, __file__],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _serve() -> None:
    import snakemake.cli

    for name in USED:
        importlib.import_module(name)
    snakemake.cli.get_argument_parser()  # looks for plugins in all folders of modules
    gc.freeze()
    for line in sys.stdin:
        arguments, folder, environment, output = json.loads(line)
        fork = os.fork()
        if not fork:
            _become_a_new_process(folder, environment, output)
            sys.argv = ["snakemake", *arguments]
            snakemake.cli.main()
        _, status = os.waitpid(fork, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become_a_new_process(folder: str, environment: Mapping[str, str], output: str) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    # In place of the folder of this file.
    sys.path[:1] = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    with Path(output).open("w") as said, Path(os.devnull).open() as nothing:
        for place, file in enumerate((nothing, said, said)):
            os.dup2(file.fileno(), place)


if __name__ == "__main__":
    _serve()
