"""Starts a worker, or several on one host, without the time that starting and ending Python takes.

``python -m transformer_core.run.quick_start MODULE ...`` does what ``python -m MODULE ...`` does. Garbage is not looked for while torch is imported, and nothing is taken apart at the end: both
take as long as the import itself, in which there is no garbage, and the kernel takes back all at
once.

With ``--fork 2`` it does what ``torchrun --standalone --nproc-per-node=2 -m MODULE ...`` does, with
the same agent. But torchrun starts every process anew, and each of them imports torch, as the agent
has done before. A process that has used CUDA may not be forked: this is for hosts without GPUs.

Where Snakemake offers warm starts on this host, all this happens in a fork of a process that has
imported torch: see :mod:`transformer_core.run.warm_start`.
"""

import argparse
import gc
import importlib
import os
import signal
import sys
import traceback
import uuid
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NoReturn

from transformer_core.run.warm_start import Program, start_warm


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


def prepare(module: ModuleType, options: Sequence[str]) -> None:
    """Let a module import what these options need, before it is forked."""
    if hasattr(module, "prepare"):
        module.prepare(options)
        gc.freeze()


def work(worker: str, options: Sequence[str]) -> None:
    """Runs the module ``worker`` as a program in a forked process."""
    # The agent's signal handlers are not for its children: they end at once, even if they wait in a
    # library.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    sys.argv = [worker, *options]
    importlib.import_module(worker).main()


def fork(processes: int, worker: str, options: Sequence[str]) -> int:
    """Run ``processes`` forks of this process as ``worker``; the exit code."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher import LaunchConfig, elastic_launch

    from transformer_core.run.rendezvous import BACKEND, register

    register()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend=BACKEND,
        rdzv_endpoint="127.0.0.1:0",
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # else they stay in /tmp
        max_restarts=0,
        start_method="fork",
    )
    try:
        elastic_launch(config, work)(worker, options)
    except ChildFailedError:
        return 1  # the process that failed has reported the reason
    except SignalException as error:
        return 128 + error.sigval
    return 0


def carry_out(program: Program) -> int:
    if program.processes is not None:
        # The optimizers of torch import the second when they are first used, in every fork.
        prepare(imported(program.module, "torch._dynamo"), program.options)
        return fork(program.processes, program.module, program.options)
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
        "--fork", type=int, metavar="N", dest="processes", help="processes, on a host without GPUs"
    )
    parser.add_argument("module", help="module whose main() is run")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="its options")
    return Program(**vars(parser.parse_args(arguments)))


def main() -> int:
    program = program_of()
    start_warm(program)
    return carry_out(program)


def to_the_end(run: Callable[[], int]) -> NoReturn:
    """Runs a function, and ends this process at once with its exit code."""
    try:
        code = run()
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    to_the_end(main)
