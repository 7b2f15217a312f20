"""Starts a worker, or several on one host, faster than Python starts and ends by itself.

``python -m transformer_core.run.quick_start MODULE ...`` replaces ``python -m MODULE ...``. It does
not collect garbage while torch is imported, and skips Python's shutdown. Each takes as long as the
import itself, in which there is no garbage; the kernel frees everything at once.

With ``--fork 2`` it replaces ``torchrun --standalone --nproc-per-node=2 -m MODULE ...``, with the
same agent. torchrun starts new processes, each of which imports torch after the agent has done so;
here they are forks of the agent. This is for hosts without GPUs: a process that has used CUDA must
not be forked.

If Snakemake offers warm starts on this host, all this happens in a fork of a process that has
imported torch: see :mod:`transformer_core.run.warm_start`.
"""

import argparse
import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from transformer_core.common.quick_end import to_the_end
from transformer_core.run.warm_start import ENDING, Program, start_warm


def imported(worker: str, *others: str) -> ModuleType:
    """Imports the module ``worker`` with ``others`` while garbage collection is off, and exempts
    their objects from later collections."""
    gc.disable()
    try:
        module = importlib.import_module(worker)
        for other in others:
            importlib.import_module(other)
    finally:
        gc.freeze()
        gc.enable()
    return module


def work(worker: str, options: Sequence[str]) -> None:
    """Runs the module ``worker`` as a program in a forked process."""
    # Not the agent's signal handlers: its children end at once, even if they wait in a library.
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    sys.argv = [worker, *options]
    importlib.import_module(worker).main()


@dataclass(frozen=True)
class Meeting:
    """Where the hosts of a run meet."""

    nodes: int = 1
    node_rank: int = 0  # of this host
    endpoint: str = "127.0.0.1:0"  # address and port of the first host
    timeout: int = 600  # seconds to wait for the others


def fork(processes: int, worker: str, options: Sequence[str], meeting: Meeting) -> int:
    """Runs ``processes`` forks of this process as ``worker``; returns the exit code."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher import LaunchConfig, elastic_launch

    from transformer_core.run.rendezvous import BACKEND, register, stop_silently

    register()
    stop_silently()
    config = LaunchConfig(
        min_nodes=meeting.nodes,
        max_nodes=meeting.nodes,
        nproc_per_node=processes,
        run_id="run",  # the same on all hosts, which alone use the store
        rdzv_backend=BACKEND,
        rdzv_endpoint=meeting.endpoint,
        rdzv_configs={"rank": meeting.node_rank, "timeout": meeting.timeout},
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # else they stay in /tmp
        max_restarts=0,
        start_method="fork",
    )
    return code_of_agent(lambda: elastic_launch(config, work)(worker, options))


def code_of_agent(run: Callable[[], object]) -> int:
    """Runs torch's agent; returns the exit code."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run()
    except ChildFailedError as error:
        return exit_code(error)
    except SignalException as error:
        return 128 + error.sigval
    return 0


def exit_code(error: Any) -> int:
    """The exit code for torchrun's error about failed processes: that of a shell if a signal ended
    one of them, unless it was the agent's own, else 1.

    Names the signal: other processes that failed have reported the reason themselves.
    """
    ended = {
        rank: failure
        for rank, failure in error.failures.items()
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM
    }
    for rank, failure in ended.items():
        print(f"rank {rank} ended: {failure.signal_name()}", file=sys.stderr, flush=True)
    return 128 - next(iter(ended.values())).exitcode if ended else 1


def carry_out(program: Program, meeting: Meeting = Meeting()) -> int:
    """Runs ``program`` in this process or, as one host of a ``meeting``, in forks of it; returns the
    exit code."""
    if program.processes is not None:
        # torch's optimizers would import the second on first use, in every fork.
        module = imported(program.module, "torch._dynamo")
        if hasattr(module, "prepare"):  # it imports what these options need
            module.prepare(program.options)
            gc.freeze()
        return fork(program.processes, program.module, program.options, meeting)
    module = imported(program.module)
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{program.module}.__main__")
    sys.argv = [program.module, *program.options]
    return module.main() or 0


def program_of(arguments: Sequence[str] | None = None) -> Program:
    """The program of a command line of this module, by default of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.run.quick_start",
        description="Run a module as a program, or several times at once under torchrun's agent.",
    )
    parser.add_argument(
        "--fork", type=int, metavar="N", dest="processes", help="processes; only without GPUs"
    )
    parser.add_argument("module", help="module whose main() runs")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="its options")
    return Program(**vars(parser.parse_args(arguments)))


def main() -> int:
    program = program_of()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # As in a fork, and without a traceback: its job says that it stops.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # A rank: if its agent is killed while it imports torch, which takes seconds, it must not go on.
        from transformer_core.run.statuses import end_with_parent

        end_with_parent()
    start_warm(program)
    return carry_out(program)


if __name__ == "__main__":
    to_the_end(main)
