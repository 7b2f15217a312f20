"""Makes system calls fail inside jobs, one after the other.

Jobs that make data and records run in this process on a copy of a study's results. Stand-ins for
Python's functions that open, write, rename, map and make files and folders let each of the jobs'
calls fail with each error, one per run. The job must name the file, the cause and the remedy, and
leave no result or the right one; without the fault the same job must then make the right one.
"""

import contextlib
import errno
import io
import json
import os
import random
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from errno import errorcode
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from schemas.config.run_spec import RunSpec
from tests.attacks.damages import copy_results
from tests.attacks.tally import Tally, Verdict
from tests.orders import combining, comparing, order_text, run_order
from transformer_core.common.digests import forget
from transformer_core.common.records import read_record

ERRORS = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EACCES)


class Calls:
    """Counts calls on files below ``folder``, and makes call number ``fails`` fail."""

    def __init__(self, folder: Path, fails: int = -1, number: int = errno.EIO) -> None:
        self.folder = str(folder)
        self.fails = fails
        self.number = number
        self.count = 0

    def call(self, path: Any) -> None:
        """Counts a call on ``path``; OSError if this call must fail."""
        if isinstance(path, int) or not str(path).startswith(self.folder):
            return
        self.count += 1
        if self.count - 1 == self.fails:
            raise OSError(self.number, os.strerror(self.number), str(path))


@contextmanager
def failing(calls: Calls) -> Iterator[None]:
    """Lets ``calls`` count, and perhaps fail, the calls within the block."""
    real_open = io.open

    def opened(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        calls.call(path)
        file = real_open(path, mode, *rest, **options)
        if set(mode) & set("wax+"):
            write = file.write

            def counted(content: Any) -> Any:
                calls.call(path)
                return write(content)

            file.write = counted
        return file

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(io, "open", opened))
        for owner, name in ((os, "replace"), (os, "mkdir"), (pa, "memory_map"), (pa, "OSFile")):
            stand_in = _counted(getattr(owner, name), calls)
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        yield


def _counted(real: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    def call(path: Any, *rest: Any, **options: Any) -> Any:
        calls.call(path)
        return real(path, *rest, **options)

    return call


@dataclass(frozen=True)
class Job:
    """A job that runs in this process."""

    name: str
    main: Callable[[Any], int]
    options: str | list[str]  # its order, or its command line
    output: Path  # the file that it writes last
    varying: tuple[str, ...] = ()  # fields of the output that depend on the clock

    def made(self) -> str | None:
        """The output; None if there is none."""
        if not self.output.exists():
            return None
        text = self.output.read_text()
        record = json.loads(text)
        if isinstance(record, dict):
            record = {k: v for k, v in record.items() if k not in self.varying}
        return json.dumps(record)


def jobs(results: Path, output: Path) -> list[Job]:
    """The jobs, on a study's ``results``, that write below ``output``."""
    (data,) = (path.parent for path in results.glob("data/*/tokenizer.json"))
    spec = next(results.glob("runs/*/spec.json"))
    settings, pairs = read_record(spec, RunSpec), data / "pairs/test.arrow"

    def job(kind: str, made: str = "", **fields: Any) -> Job:
        """A job that makes ``made``, or else a file of its own name without varying fields."""
        order = {"output": output / f"{kind}.json"} | fields
        varying = ("seconds",) if made else ()
        last = output / (made or f"{kind}.json")
        return Job(kind, run_order, order_text(kind, **order), last, varying)

    return [
        job(
            "shards",
            "shards/manifest.json",
            tokenizer=data / "tokenizer.json",
            filter=settings.filter,
            pairs=pairs,
            output=output / "shards",
            threads=1,
        ),
        job(
            "tokenizer",
            "report.json",
            tokenizer=settings.tokenizer,
            pairs=pairs,
            report=output / "report.json",
        ),
        job(
            "verify_data",
            "verify_data.json",
            manifests=[*map(str, data.glob("shards/*/manifest.json"))],
        ),
        job("combine", **combining(results, spec.parent)),
        job("compare", **comparing(results)),
    ]


def run(most: int, seed: int, results: Path) -> Tally:
    """The verdicts on at most ``most`` failing calls of each job."""
    tally = Tally("calls", seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_results(results, folder / "results")
        for job in jobs(folder / "results", folder / "made"):
            calls = Calls(folder)
            with failing(calls):
                _started(job)
            right = job.made()
            places = [(place, error) for place in range(calls.count) for error in ERRORS]
            chance = random.Random(f"{seed}/{job.name}")
            for place, error in sorted(chance.sample(places, min(most, len(places)))):
                shutil.rmtree(folder / "made", ignore_errors=True)
                verdict, said = judge(job, Calls(folder, place, error), right)
                case = f"{job.name}, call {place} of {calls.count}, {errorcode[error]}: {said}"
                tally.add(f"{job.name}_{errorcode[error].lower()}", place, verdict, case)
    return tally


def judge(job: Job, calls: Calls, right: str | None) -> tuple[Verdict, str]:
    """How a job reacts if a call fails."""
    try:
        with failing(calls):
            code, said = _started(job)
    except BaseException:
        return "traceback", traceback.format_exc()
    left = job.made()
    if left is not None and left != right:
        return "silent", f"it left another result; it said: {said}"
    if code == 0:
        return ("same" if left == right else "silent"), said
    forget(job.output)
    if _started(job)[0] or job.made() != right:
        return "silent", f"the next attempt makes another result; it said: {said}"
    clear = "remedy" in said.lower() and calls.folder in said
    return ("refused" if clear else "unclear"), said


def _started(job: Job) -> tuple[int, str]:
    """Runs a job: its exit code and its messages."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = job.main(job.options)
        except SystemExit as end:
            code = int(end.code or 0) if not isinstance(end.code, str) else 1
    return code, said.getvalue()
