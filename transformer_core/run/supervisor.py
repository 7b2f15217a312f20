"""The supervisor of a job's workers: starts them, waits, and finds out how they ended.

It only waits, and slow imports would delay the run, so nothing here imports torch.
"""

import logging
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from schemas.config.run_spec import RunSpec
from schemas.errors import Refusal, Unsupported
from transformer_core.common.endings import count_failure, signal_name
from transformer_core.common.progress import log
from transformer_core.run import oom
from transformer_core.run.host_processes import QUICK_START, this_host
from transformer_core.run.launcher import (
    launcher,
    lends_processes_only,
    spans_machines,
    threads_per_process,
    worker_environment,
)
from transformer_core.run.order import Order
from transformer_core.run.quick_start import program_of
from transformer_core.run.statuses import (
    AGAIN,
    Outcome,
    clear_outcomes,
    end_with_parent,
    read_outcomes,
)
from transformer_core.run.warm_start import Fork, start_fork


def end_on_request() -> None:
    """Makes SIGTERM and SIGINT end this process like an exception, so that it cleans up."""

    def stop(number: int, interrupted: FrameType | None) -> None:
        if interrupted and interrupted.f_code.co_filename == logging.__file__:
            # logging runs around each fork, where Python ignores exceptions: asks again soon.
            threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
            return
        said = f"stopped before it had finished ({how_ended(-number)})"
        sys.exit(f"{said}. Remedy: give the same command again.")

    for number in (signal.SIGTERM, signal.SIGINT):
        # A process started to ignore it (a shell's background) still ignores it.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)


def lend_processes(order: Order) -> None:
    """On every host of a run except the first, runs its workers and ends this process with them: the
    first host writes the results. Returns on the first host."""
    if lends_processes_only():
        sys.exit(run_workers(order))


def attempt(order: Order, result: Path, target: Path | None = None) -> Outcome | None:
    """Runs the workers; returns None if they wrote ``result``, else how they ended.

    Removes leftovers of an earlier attempt first. If another attempt may succeed, the next call of
    the same command makes ``target`` again. Ends this process if the workers were asked to stop.
    """
    clear_outcomes(order.output)
    result.unlink(missing_ok=True)
    code, kills = 0, oom.kernel_kills()
    outcome: Outcome | None = None
    try:
        code = run_workers(order)
    except CANNOT_START as error:
        outcome = Outcome.of(error)
    if code == 0 and outcome is None and result.exists():
        return None
    if code in (-signal.SIGTERM, -signal.SIGINT):
        # A report from a worker that was stopped is not a result.
        end_as_stopped(order.output, code)
    outcome = explained(outcome or read_outcomes(order.output), code, kills)
    outcome = outcome or unexplained(order, code)
    log.warning("%s: %s, %s", order.title, outcome.status, outcome.reason)
    clear_outcomes(order.output)
    if outcome.again and target is not None:
        count_failure(target)
    return outcome


def explained(outcome: Outcome | None, code: int, kills: int) -> Outcome | None:
    """``outcome``, with the cause if it only says that a process is gone, and the kernel or the exit
    ``code`` of the workers tells it. ``kills`` is :func:`oom.kernel_kills` from before their start."""
    if outcome is not None and not outcome.about_peers:
        # It has its own reason: the kernel counts all processes of the host.
        return outcome
    if oom.kernel_kills() > kills:
        why = f"The kernel ended a process because memory ran out. {oom.HINT}"
        return Outcome(status="oom", reason=why)
    if outcome is not None and (number := _signal(code)):
        reason = f"{signal_name(number)} ended a process: {outcome.reason}"
        return outcome.model_copy(update={"signal": number, "reason": reason})
    return outcome


def unexplained(order: Order, code: int) -> Outcome:
    """The outcome of workers that ended without giving a reason."""
    threads = threads_per_process(order.spec) * order.spec.processes_per_machine
    why = obstacle(order.output, threads) or "The log may tell more."
    reason = f"The processes ended ({how_ended(code)}) without giving a reason. {why} {AGAIN}"
    return Outcome(status="failed", reason=reason, again=True, signal=_signal(code))


def _signal(code: int) -> int:
    """The signal that ended a process or, by the exit code of its launcher, one of several; else 0."""
    return max(0, -code, code - 128 if code - 128 in {*signal.Signals} else 0)


def run_workers(order: Order) -> int:
    """Runs the workers of this host, forwarding requests to stop; returns the exit code."""
    return wait_for(start_workers(order))


def check_start(spec: RunSpec, worker: str) -> None:
    """Raises Unsupported if the workers of a run spec cannot be started here; starts nothing."""
    launcher(spec, worker)
    worker_environment(spec, os.environ)


Child = subprocess.Popen[bytes] | Fork
"""This host's workers of an order."""

CANNOT_START = Unsupported, OSError, Refusal


def start_workers(order: Order, place: int = 0) -> Child:
    """Starts the workers of this host; for ``place`` see :func:`launcher`.

    Raises one of :data:`CANNOT_START` if they cannot be started here, or could not reach one another.
    """
    among_themselves = order.spec.world_size > 1 and not spans_machines(order.spec)
    if among_themselves and (why := no_loopback()):
        raise Refusal(why)
    command = [*launcher(order.spec, order.worker, place), str(write_order(order))]
    environment = worker_environment(order.spec, os.environ, order.shares_cores)

    def start() -> subprocess.Popen[bytes]:
        # It ends with this process: otherwise torchrun would keep training, unrecorded.
        with_this = partial(end_with_parent, os.getpid())
        return subprocess.Popen(command, env=environment, preexec_fn=with_this)

    quick = command[1:3] == ["-m", QUICK_START]
    fork = start_fork(program_of(command[3:]), environment, start) if quick else None
    return fork or start()


def write_order(order: Order) -> Path:
    host = this_host()
    return order.write(host.node_rank if host else 0)


def wait_for(child: Child) -> int:
    """Waits for a child, forwarding requests to stop; returns the exit code, negative if stopped."""
    asked: list[int] = []

    def hand_on(number: int, _: object) -> None:
        asked.append(number)
        child.send_signal(number)

    heard = [n for n in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(n) != signal.SIG_IGN]
    before = {n: signal.signal(n, hand_on) for n in heard}
    code = child.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    return -asked[0] if code and asked else code


def end_as_stopped(folder: Path, code: int) -> NoReturn:
    """Ends this process, whose workers were stopped before they had finished."""
    sys.exit(
        f"{folder}: stopped before it had finished ({how_ended(code)}). The same command resumes "
        "it, from the last checkpoint if one exists."
    )


def how_ended(code: int) -> str:
    if code < 0:
        return f"signal {signal_name(-code)}"
    number = _signal(code)
    return f"exit code {code}" + (f", {signal_name(number)}" if number else "")


_SHARED_MEMORY = Path("/dev/shm")
_LEAST_BYTES = 1 << 20
_SECONDS = 2.0


def obstacle(folder: Path, threads: int) -> str | None:
    """A sentence naming what this host lacks for a run that writes to ``folder``, and needs
    ``threads`` more threads than this process, and some more open files; None if nothing."""
    looks: tuple[Callable[[], str | None], ...] = (
        _no_files,
        lambda: _no_threads(max(1, threads)),
        lambda: _full(_SHARED_MEMORY, "remove unused files there, or give it more room"),
        # Not Python's gettempdir, which passes over a full one.
        lambda: _full(Path(os.environ.get("TMPDIR") or "/tmp"), "make room there, or set TMPDIR"),
        lambda: _full(folder, "make room there"),
        no_loopback,
    )
    return next((text for look in looks if (text := look())), None)


def no_loopback() -> str | None:
    """A sentence if processes of this host cannot connect to one another; else None."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=_SECONDS):
                return None
    except OSError as error:
        return (
            f"Processes on this host cannot reach one another at 127.0.0.1 ({error}). "
            "Remedy: ip link set lo up."
        )


def _no_files() -> str | None:
    with ExitStack() as stack:
        try:
            for _ in range(64):
                stack.enter_context(Path(os.devnull).open())
        except OSError as error:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return (
                f"Too few files may be open: {error.strerror} at a limit of {limit}. "
                f"Remedy: ulimit -n {max(4096, 2 * limit)}."
            )
    return None


def _no_threads(threads: int) -> str | None:
    end, started = threading.Event(), []
    try:
        for _ in range(min(threads, 1024)):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        limits = "no limit" if limit == resource.RLIM_INFINITY else f"a limit of {limit}"
        return (
            f"This host can start only {len(started)} of the run's {threads} threads, with {limits} "
            "for this user. Remedy: raise ulimit -u or pids.max of the control group, or lower "
            "machine.threads."
        )
    finally:
        end.set()
        for thread in started:
            thread.join()
    return None


def _full(folder: Path, remedy: str) -> str | None:
    with suppress(OSError):  # a missing folder is no obstacle
        free = shutil.disk_usage(folder).free
        if free < _LEAST_BYTES:
            return f"{folder} is full: {free} bytes are free. Remedy: {remedy}."
    return None
