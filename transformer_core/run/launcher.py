"""Starts the processes of a run, on one host or on several."""

import sys

from schemas.config.parallel import Ddp, Link, LinkKind
from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from transformer_core.run.gpu_leases import visible_gpus
from transformer_core.run.host_processes import (
    QUICK_START,
    Hosts,
    in_slurm_job,
    srun,
    this_host,
    torchrun,
)
from transformer_core.run.linked_hosts import Linked, refusal


def launcher(spec: RunSpec, worker: str, place: int = 0, anew: bool = False) -> list[str]:
    """The start of the command line: Python for a single process, torchrun for more, or where there
    are no GPUs forks, which start faster (see
    :mod:`transformer_core.run.quick_start`).

    ``worker`` is the module that the processes run. Runs at the same time need a ``place`` of their
    own, which is added to the port of the rendezvous. With ``anew``, every process is a Python of
    its own that runs nothing but the worker, so that each can be started within another program.

    A run over several hosts is started

    - with ``machine.link``: on two hosts that are made on this machine;
    - by hand, or by srun on every host: on this one (see
      :mod:`transformer_core.run.host_processes`);
    - in a Slurm job: by srun, on all hosts of the job.

    Raises Unsupported where none of them is possible, or there is nothing to train.
    """
    spec.refuse_without_meaning()
    machine, processes = spec.machine, spec.processes_per_node
    if spec.parallel.one_process:
        return [sys.executable, "-m", *([] if anew else [QUICK_START]), worker]
    if machine.nodes == 1:
        if not anew and _no_gpus(spec):
            return [sys.executable, "-m", QUICK_START, f"--fork={processes}", worker]
        start = [*torchrun(processes), "-m"]
        return [*start, *([] if anew else [QUICK_START]), worker]
    if machine.link is not None:
        linked = Linked(
            processes,
            machine.timeout,
            _link_kind(spec, machine.link),
            machine.link.bandwidth,
            _shared_gpus(spec),
        )
        return [*linked.command, worker]
    hosts = Hosts(machine.nodes, processes, machine.timeout, place)
    if this_host() is not None:
        return [*hosts.command, worker]
    if in_slurm_job():
        return [*srun(machine.nodes), *hosts.command, worker]
    raise Unsupported(
        f"needs {machine.nodes} hosts: submit it to Slurm, or start the same command on each of "
        "them with NODE_RANK (0, 1, ...) and RENDEZVOUS (host:port of the first) set"
    )


def lends_processes_only() -> bool:
    """Whether this host is not the first of a run: the first one writes the results."""
    host = this_host()
    return host is not None and host.node_rank > 0


def spans_machines(spec: RunSpec) -> bool:
    """Whether the run's processes are on several machines that share only a network."""
    return spec.machine.nodes > 1 and spec.machine.link is None


def uses_gpus(spec: RunSpec) -> bool:
    """Whether processes of the run use CUDA, or would if this host had GPUs."""
    device = spec.machine.device
    return device == "cuda" or (device == "auto" and bool(visible_gpus()))


def _no_gpus(spec: RunSpec) -> bool:
    """Whether no process of the run can use CUDA."""
    return spec.machine.device != "cuda" and not visible_gpus()


def _link_kind(spec: RunSpec, link: Link) -> LinkKind:
    """How this host can emulate the link of ``spec``; Unsupported if it cannot."""
    reason = "machine.link.emulate" if link.emulate else refusal()
    if reason is None:
        return "namespaces"
    parallel = spec.parallel
    buckets = isinstance(parallel, Ddp) and parallel.overlap
    hook = parallel.message_hook
    if buckets and (hook is None or hook.by_backend):
        return "emulated"
    raise Unsupported(
        f"needs a link of limited bandwidth, which cannot be set up here ({reason}), and can be "
        "emulated only where DDP all-reduces its gradients, in buckets, during backward"
    )


def _shared_gpus(spec: RunSpec) -> list[str]:
    """The GPUs of this machine that its emulated hosts share out."""
    found = [] if spec.machine.device == "cpu" else visible_gpus()
    if not found and spec.machine.device != "cuda":
        return []
    if len(found) < spec.world_size:
        raise Unsupported(
            f"needs {spec.world_size} CUDA devices for two hosts on one machine, which has "
            f"{len(found)}"
        )
    return found
