"""Two hosts on this machine: who is where."""

import os
import socket
import subprocess
from pathlib import Path

import pytest
from worker_builders import NAME, told, write_worker

from schemas.config.parallel import HOST_VARIABLE, LINK_VARIABLE
from transformer_core.run import linked_hosts, namespaces

pytestmark = pytest.mark.slow

REFUSAL = namespaces.refusal()
KINDS = [
    "emulated",
    pytest.param(
        "namespaces",
        marks=pytest.mark.skipif(REFUSAL is not None, reason=f"no limited link here: {REFUSAL}"),
    ),
]


def run(folder: Path, kind: str) -> int:
    """Start a worker on two hosts of two processes; the exit code."""
    command = linked_hosts.Linked(2, 60.0, kind, 1e9).command  # type: ignore[arg-type]
    done = subprocess.run(
        [*command, NAME, str(folder), "end"],
        env=write_worker(folder),
        capture_output=True,
        timeout=200,
    )
    return done.returncode


@pytest.mark.parametrize("kind", KINDS)
def test_hosts_have_their_ranks_and_say_who_they_are(kind: str, tmp_path: Path) -> None:
    assert run(tmp_path, kind) == 0
    ranks = told(tmp_path)
    assert [rank["RANK"] for rank in ranks] == ["0", "1", "2", "3"]
    assert {rank["WORLD_SIZE"] for rank in ranks} == {"4"}
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "1", "0", "1"]
    assert {rank[LINK_VARIABLE] for rank in ranks} == {kind}
    here = socket.gethostname()
    hosts = [f"{node} on {here}" for node in (0, 0, 1, 1)]
    assert [rank[HOST_VARIABLE] for rank in ranks] == hosts


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_limited_link_puts_hosts_into_namespaces(kind: str, tmp_path: Path) -> None:
    assert run(tmp_path, kind) == 0
    first, _, second, _ = (rank["NAMESPACE"] for rank in told(tmp_path))
    here = os.readlink("/proc/self/ns/net")  # noqa: PTH115
    if kind == "emulated":
        assert {first, second} == {here}
        return
    assert len({first, second, here}) == 3
    for rank in told(tmp_path):
        assert rank["GLOO_SOCKET_IFNAME"] == namespaces.DEVICE
        assert rank["MASTER_ADDR"] == namespaces.ADDRESSES[0]
