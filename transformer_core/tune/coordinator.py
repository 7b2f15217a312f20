"""Starts several copies of a script, changed or not, and lets one copy at a time train.

A session is fresh processes of all sides. They start at the same time and wait at their first
boundary. Then all take the same steps: first those that the certificate compares, then rounds, in
which each side in turn trains for a few steps while the others wait, blocked in the kernel.
"""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import psutil
from pydantic import AfterValidator

from transformer_core.common.endings import signal_name
from transformer_core.run import warm_start
from transformer_core.run.coordinator import COORDINATOR, Coordinator, SideEndedError, Task
from transformer_core.run.linked_hosts import free_port
from transformer_core.run.oom import kernel_kills
from transformer_core.run.supervisor import Child, obstacle
from transformer_core.tune.early_variables import early_variables
from transformer_core.tune.isolation import OUTSIDE, inside, isolated, outside, overlay_works
from transformer_core.tune.order import SIDE, UNOBSERVED, Copy, Order
from transformer_core.tune.program import Program, Say, SideEnded, printed
from transformer_core.tune.source import Source
from transformer_core.tune.techniques import TECHNIQUES, environment_of
from transformer_core.tune.techniques.technique import NOISE, Rounding

HELLO_SECONDS = 120.0  # time limit in seconds for a process to import torch
PATIENCE = 15.0  # seconds after which a session reports which side it waits for
SHOWN = {
    "own": "the script",
    "twin": "its second copy",
    "again": "its second copy",
    **{f"floor_{name}": f"its copy with rounding to {name}" for name in NOISE},
    "changed": "the changed script",
    "new": "the new version",
    "recommended": "the recommendation",
}
"""Names that messages give to sides. Other sides are called by their techniques."""
DRIVER = "transformer_core.tune.factory"


@dataclass(frozen=True)
class Side(Copy):
    """A named copy of a program in a session."""

    name: str
    techniques: tuple[str, ...] = ()
    program: Program | None = None  # a program other than the session's: a changed script
    files: Mapping[Path, str] = field(default_factory=dict)
    """Edited files of the program with their new text: relative to its folder, or absolute outside it where
    overlays work."""
    module: str = "transformer_core.tune.side"  # the module that its processes run

    @property
    def rounding(self) -> Rounding | None:
        """The coarsest rounding of its techniques; None for a changed script, whose rounding is
        unknown."""
        if self.files or self.program:
            return None
        found: list[Rounding] = ["exact", *(TECHNIQUES[name].rounding for name in self.techniques)]
        return max(found, key=lambda rounding: [*NOISE].index(rounding))

    @property
    def divided(self) -> bool:
        return any(TECHNIQUES[name].divides for name in self.techniques)


def started(program: Program, techniques: Sequence[str], shift: int) -> Program:
    """The program to start with ``techniques`` and seeds moved by ``shift``: a factory inside the loop
    that the techniques need, a script unchanged."""
    if program.factory is None:
        return program
    settings = dict(program.factory) | {"shift": shift}
    for name in techniques:
        settings |= TECHNIQUES[name].settings
    over = ("torchrun", "--standalone", f"--nproc-per-node={program.devices}")
    launcher = over if "over" in settings else ()
    return replace(program, command=("-m", DRIVER, json.dumps(settings)), launcher=launcher)


TOO_LATE = "it was not ready when the time ran out"
TOO_SLOW = f"{UNOBSERVED}its processes did not start within {HELLO_SECONDS:g} s; remedy: use a quieter machine"


class _LastWordsError(Exception):
    """A process reported the end of its script, the argument, instead of an answer."""


def _answered(answer: dict[str, Any]) -> dict[str, Any]:
    if "ended" in answer:
        raise _LastWordsError(answer)
    return answer


@dataclass(frozen=True)
class TellFacts(Task):
    answer: ClassVar[Any] = Annotated[dict[str, Any], AfterValidator(_answered)]


@dataclass(frozen=True)
class WriteRecord(TellFacts):
    """Task to write everything recorded so far to a file."""


@dataclass(frozen=True)
class Train(TellFacts):
    """Task to train for some steps, and to record them for the certificate or profile them."""

    steps: int
    record: bool = False
    profile: bool = False


class Session:
    """The processes of one session. Use :func:`session` to start and end them."""

    def __init__(
        self, sides: Sequence[Side], folder: Path, coordinator: Coordinator, say: Say
    ) -> None:
        self.sides, self.folder, self.say = sides, folder, say
        self._coordinator = coordinator
        self.processes: dict[str, Child] = {}
        self._ranks: Mapping[str, int] = {}
        self._kills = kernel_kills()
        self.overlaid = False
        """Whether overlays work: then sides may also edit files outside the folder."""
        self.failed: dict[str, SideEnded] = {}  # sides that ended early, by name
        self.waited = (
            0.0  # seconds until the first process had begun: a server may import torch first
        )
        self.deadlines: dict[str, float] = {}
        """By ``time.monotonic``, when sides that have not answered count as ended: :data:`TOO_LATE`."""

    def welcome(self, ranks: Mapping[str, int]) -> None:
        """Wait until every process of every side has connected. Sides that end first, or take longer than
        :data:`HELLO_SECONDS`, are ``failed``; the others continue."""
        self._ranks, expected = ranks, dict(ranks)
        gone: set[str] = set()
        began = time.monotonic()

        def check() -> None:
            late = time.monotonic() > began + HELLO_SECONDS
            for name in list(expected):
                arrived = self._coordinator.arrived(name) == expected[name]
                if arrived or (not late and self.processes[name].poll() is None):
                    continue  # A side that arrived and then ended has sent its last words.
                if late or name in gone:  # It ended before the last check, without connecting.
                    why = TOO_SLOW if late else self._how(name)
                    self.failed[name] = self._ended(name, why, {})
                    kill(self.processes[name])
                    del expected[name]
                gone.add(name)
            if all(process.pid is None for process in self.processes.values()):
                self.waited = time.monotonic() - began

        self._coordinator.gather(expected, check, math.inf)
        self.sides = [side for side in self.sides if side.name in expected]

    def facts(self, side: str) -> dict[str, Any]:
        """The facts about the script that rank 0 of a side has observed, once it waits at a
        boundary."""
        return self.facts_of_ranks(side)[0]

    def facts_of_ranks(self, side: str) -> list[dict[str, Any]]:
        return [answer["facts"] for answer in self._ask(side, TellFacts())]

    def steps(self, side: str, count: int, record: bool = False) -> float:
        """Let a side train for ``count`` steps; returns the seconds of its slowest rank."""
        return max(done["seconds"] for done in self._ask(side, Train(count, record)))

    def profile(self, side: str, count: int) -> list[Path]:
        """Let a side train for ``count`` steps under torch.profiler; returns the trace of each rank."""
        return [Path(done["trace"]) for done in self._ask(side, Train(count, profile=True))]

    def records(self, side: str) -> list[Path]:
        """The files with the records of a side, one for each rank."""
        return [Path(answer["written"]) for answer in self._ask(side, WriteRecord())]

    def attempt(self, work: Callable[..., Any], side: str, *arguments: Any, **more: Any) -> Any:
        """The result of ``work``, a method of this session, for a side. If the side ends, or has
        ended, the result is None, the side is in ``failed``, and the others continue."""
        if side in self.failed:
            return None
        try:
            return work(side, *arguments, **more)
        except SideEnded as error:
            self.failed[side] = error
            self.drop(side)
            # Other ranks may wait for the one that failed.
            kill(self.processes[side])
            return None

    def drop(self, side: str) -> None:
        """End one side; the others continue."""
        self._coordinator.dismiss(side)
        self.sides = [each for each in self.sides if each.name != side]

    def _ask(self, side: str, task: Task) -> list[dict[str, Any]]:
        if side in self.failed:
            raise self.failed[side]
        began = said = time.monotonic()
        gone = False

        def check() -> None:
            nonlocal said, gone
            if gone:  # It ended before the last check: its last words have been read.
                raise SideEndedError(side, "")
            gone = self.processes[side].poll() is not None
            if time.monotonic() > self.deadlines.get(side, math.inf):
                raise self._ended(side, TOO_LATE, {})
            if time.monotonic() > said + PATIENCE:
                said = time.monotonic()
                self.say(
                    f"waiting for {SHOWN.get(side, side)}, {said - began:.0f} s so far{self._last(side)}"
                )

        try:
            return self._coordinator.ask(side, task, check, math.inf)
        except _LastWordsError as error:
            # The first failure: ranks that communicate with a failed one fail, too.
            unread = [words for words in self._coordinator.unread(side) if "ended" in words]
            first = min([*error.args, *unread], key=lambda words: words["at"])
            raise self._ended(side, first["ended"], first) from None
        except SideEndedError:
            raise self._ended(side, self._how(side), {}) from None

    def _last(self, side: str) -> str:
        """The last line that a side printed, as the end of a sentence."""
        lines = printed(self.folder / side / "output.txt")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"; its last line: {last[:120]}" if last else "; it has printed nothing"

    def _how(self, side: str) -> str:
        if lacking := obstacle(self.folder, 1):
            return f"{UNOBSERVED}{lacking}"
        with suppress(subprocess.TimeoutExpired):
            code = self.processes[side].wait(10)
            if code >= 0:
                return f"ended with exit code {code}"
            memory = " (out of memory?)" if code == -signal.SIGKILL else ""
            return f"killed by {signal_name(-code)}{memory}"
        return "closed its connection"

    def _ended(self, side: str, why: str, said: Mapping[str, Any]) -> SideEnded:
        if why and self._ranks.get(side, 1) > 1 and kernel_kills() > self._kills:
            # The others only say that they have lost a rank.
            why = f"out of memory: the kernel ended a process. {why}"
        return SideEnded(side, why, said, self.folder / side / "output.txt")


@contextmanager
def session(
    program: Program,
    sides: Sequence[Side],
    logs: Path,
    seed: int = 0,
    facts: Mapping[str, Any] | None = None,
    say: Say = lambda text: None,
) -> Iterator[Session]:
    """Fresh processes of ``sides``, which run to their first boundary; they end with the block.

    ``say`` reports from time to time which side the session waits for.
    The output of a side goes to ``logs``/<side>/output.txt. Sides that cannot start are in
    ``failed``. Raises TooLarge if the folder would have to be copied and is too large.
    """
    with ExitStack() as stack:
        programs = [program, *(side.program for side in sides if side.program)]
        # Also for the coordinator's socket: through an overlay, nothing can connect to it.
        tempfile.tempdir = outside([each.directory for each in programs])
        folder = tempfile.TemporaryDirectory(prefix="tune-", ignore_cleanup_errors=True)
        exchange = Path(stack.enter_context(folder))
        coordinator = stack.enter_context(Coordinator(exchange / COORDINATOR, several_hosts=False))
        made = Session(sides, logs, coordinator, say)
        made.overlaid = overlay_works(program.directory, exchange)
        stack.callback(_stop, made)
        ranks = {}
        for side in sides:
            techniques = (*program.applied, *side.techniques)
            own = started(side.program or program, techniques, seed)
            order = Order(
                side=side.name,
                command=own.command,
                directory=str(own.directory),
                coordinator=str(exchange / COORDINATOR),
                record=str(exchange / side.name / "record"),
                techniques=techniques,
                seed=seed,
                facts=dict(facts or {}),
                boundary=own.boundary,
                launched=bool(own.launcher),
                whole=own.factory is not None,
                **{each.name: getattr(side, each.name) for each in fields(Copy)},
            )
            output = logs / side.name / "output.txt"
            made.processes[side.name] = _start(side, own, order, exchange / side.name, output)
            ranks[side.name] = own.ranks
        made.welcome(ranks)
        yield made


def _start(side: Side, program: Program, order: Order, home: Path, output: Path) -> Child:
    """Starts the processes of a side: normally forks of the server, which has imported torch; new
    processes if they need an environment of their own, or their launcher."""
    home.mkdir()
    directory, overlay = isolated(program.directory, home)
    for name, text in (_edited(order.techniques, order.facts) | dict(side.files)).items():
        place = (home / "upper" if overlay else directory) / name
        if name.is_absolute():
            place = home / OUTSIDE / name.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    order = replace(order, directory=str(directory), original=order.directory)
    order.write(home / "order.json")
    arguments = ["-m", side.module, str(home / "order.json")]
    start = [*(program.launcher or [sys.executable]), *arguments]
    # Sides run at the same time: each needs a port of its own, whatever the options say.
    if program.launcher[:1] == ("torchrun",):
        # Its own folder of logs would stay in /tmp.
        ours = "-m", "torch.distributed.run", "--standalone", f"--log-dir={os.devnull}"
        start = [sys.executable, *ours, *program.launcher[1:], *arguments]
    elif program.launcher:  # accelerate; its last port counts
        start = [*program.launcher, f"--main_process_port={free_port()}", *arguments]
    environment = _environment(order.techniques, order.facts, program)
    environment[SIDE] = side.name
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(b"")

    def alone() -> subprocess.Popen[bytes]:
        with output.open("ab") as file:
            return subprocess.Popen(
                inside(overlay, start),
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    unique = bool(environment_of(side.techniques, order.facts))
    if unique or not program.forkable or side.module not in warm_start.SIDES:
        return alone()
    ranks = program.ranks if program.launcher else 0
    wanted = warm_start.Program(side.module, [arguments[-1], str(ranks), *overlay], None)
    with output.open("ab") as file, Path(os.devnull).open() as nothing:
        streams = nothing.fileno(), file.fileno(), file.fileno()
        return warm_start.start_fork(wanted, environment, alone, streams) or alone()


def _edited(techniques: tuple[str, ...], facts: Mapping[str, Any]) -> dict[Path, str]:
    """The edited files for techniques that hooks cannot apply."""
    names = [name for name in techniques if TECHNIQUES[name].in_source]
    if not names or not facts:
        return {}
    source = Source.of(dict(facts))
    for name in names:
        TECHNIQUES[name].edit(source, dict(facts))
    return source.files()


def _environment(
    techniques: tuple[str, ...], facts: Mapping[str, Any], program: Program
) -> dict[str, str]:
    """The user's environment with the variables of the techniques, with fixed string hashes, and with
    the program's ``modules`` among the folders of modules. Sides start elsewhere, so all are absolute. What
    the script sets itself before it imports torch wins."""
    ours = str(Path(__file__).resolve().parents[2])
    folder = program.modules or program.directory
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    paths = [str(program.modules or ""), *(str(folder / path) for path in given)]
    paths += [ours] if "site-packages" not in ours else []
    found = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    found["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    quiet = {"WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false"}
    quiet["KINETO_LOG_LEVEL"] = "6"  # or torch.profiler's lines are the last ones of the script
    quiet[warm_start.WARM_STARTS] = warm_start.offer_warm_starts()
    # The user's value, if any, wins.
    found = quiet | dict(os.environ) | found | environment_of(techniques, facts)
    if program.launcher[:1] == ("torchrun",) and program.ranks > 1:  # as it does itself
        found.setdefault("OMP_NUM_THREADS", "1")
    if program.factory is None:
        found |= early_variables(program.script, program.directory, found)
    return found


def _stop(made: Session) -> None:
    for side in list(made.sides):
        made.drop(side.name)
    end = time.monotonic() + 2
    for process in made.processes.values():
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.05, end - time.monotonic()))
    for name, process in made.processes.items():
        # A failed one was killed then: its number may be another program's by now.
        if name not in made.failed:
            kill(process)


def kill(process: Child) -> None:
    """Kill a side and everything that it started, including ranks of torchrun, which have their own
    process sessions."""
    process.poll()
    if process.pid is not None:
        with suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    child.kill()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
