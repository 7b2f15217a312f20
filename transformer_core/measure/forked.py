"""One host's processes of a run, forked from a process that has imported what they need.

``python -m transformer_core.measure.forked --processes 2 MODULE ...`` does the same as ``torchrun
--standalone --nproc-per-node=2 -m MODULE ...``, with the same agent. But torchrun starts every
process anew, and each of them imports torch, as the agent has done before: most of the time of a
short run. A process that has used CUDA may not be forked, so this is for hosts without GPUs only.
"""

import argparse
import importlib
import signal
import sys
import uuid
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher import LaunchConfig, elastic_launch


def work(worker: str, options: Sequence[str]) -> None:
    """The life of a forked process: the module ``worker`` as a program."""
    # What the agent does when it is asked to stop is not for its children: they end at once, also
    # where they wait in a library.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    sys.argv = [worker, *options]
    importlib.import_module(worker).main()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.measure.forked",
        description="Start the processes of a run on this host, which has no GPUs.",
    )
    parser.add_argument("--processes", type=int, required=True, help="how many")
    parser.add_argument("worker", help="module whose main() the processes run")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="its options")
    arguments = parser.parse_args()
    importlib.import_module(arguments.worker)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=arguments.processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
    )
    try:
        elastic_launch(config, work)(arguments.worker, arguments.options)
    except ChildFailedError:
        sys.exit(1)  # the process that failed has said why
    except SignalException as error:
        sys.exit(128 + error.sigval)


if __name__ == "__main__":
    main()
