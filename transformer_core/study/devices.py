"""Whether this host has the devices of a study. On a cluster, other hosts do."""

from collections.abc import Iterable, Iterator

from schemas.config.run_spec import RunSpec
from schemas.errors import ConfigProblem
from transformer_core.study.reservations import devices_on_a_host

CHANGES_NO_RESULT = True  # it only refuses


def missing_devices(specs: Iterable[RunSpec], file: str) -> Iterator[ConfigProblem]:
    """The problem of a study, read from ``file``, if this host has too few GPUs for each of these runs.

    If some of them fit, the others are results: ``unsupported``, with the reason.
    """
    machines = [spec.machine for spec in specs]
    if not machines or any(machine.device != "cuda" for machine in machines):
        return
    import torch  # imported here: most studies need no answer, and it takes seconds

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    needed = min(map(devices_on_a_host, machines))
    if found < needed:
        message = (
            f"none of its runs can start: each needs at least {needed} CUDA "
            f"device{'s'[: needed > 1]}, and torch finds {found} on this host"
        )
        remedy = "use auto or cpu, or install torch for CUDA on a host with that many GPUs"
        yield ConfigProblem(file, "machine.device", "cuda", message, remedy)
