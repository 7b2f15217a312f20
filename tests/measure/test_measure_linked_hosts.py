"""Two hosts on this machine: their ranks, the limit of their link, and lost processes."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from worker_builders import NAME, spec, told, write_worker

from schemas.config.parallel import HOST_VARIABLE, LINK_VARIABLE
from schemas.errors import Refusal
from transformer_core.measure.timed_run import TimedRunOrder
from transformer_core.run import linked_hosts
from transformer_core.run.statuses import read_outcomes
from transformer_core.run.supervisor import run_workers

REFUSAL = linked_hosts.refusal()
linked = pytest.mark.skipif(REFUSAL is not None, reason=f"no limited link here: {REFUSAL}")
linux = pytest.mark.skipif(sys.platform != "linux", reason="takes SIGSTOP and parent-death signals")

TRIAL = [sys.executable, "-m", linked_hosts.__name__, "--try"]
BANDWIDTH = 8e6
BYTES = 1_000_000

TRANSFER = f"""
import os, socket, sys, time
from transformer_core.run import linked_hosts as namespaces
first, second = namespaces.join_two({BANDWIDTH})
child = os.fork()
if child == 0:
    first.enter()
    with socket.create_server((first.address, 5000)) as server:
        connection, _ = server.accept()
        left = {BYTES}
        while left:
            left -= len(connection.recv(65536))
        connection.sendall(b"!")
    os._exit(0)
for _ in range(200):
    try:
        connection = socket.create_connection((first.address, 5000))
        break
    except OSError:
        time.sleep(0.05)
began = time.monotonic()
connection.sendall(bytes({BYTES}))
connection.recv(1)
print(time.monotonic() - began)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_a_wrong_command_gets_the_right_one(arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["linked_hosts.py", *arguments])
    with pytest.raises(SystemExit, match=r"usage: .*--try"):
        linked_hosts.main()


@pytest.mark.slow
@linked
def test_the_link_is_no_faster_than_its_bandwidth():
    done = subprocess.run(
        [sys.executable, "-c", TRANSFER], capture_output=True, text=True, check=True, timeout=100
    )
    ideal = 8 * BYTES / BANDWIDTH
    # Headers make it longer; an idle link passes only a hundredth at once.
    assert float(done.stdout) > 0.98 * ideal


@linked
def test_namespaces_leave_nothing_behind():
    before = Path("/proc/self/ns/net").readlink(), socket.if_nameindex()
    subprocess.run(TRIAL, check=True, capture_output=True)
    assert (Path("/proc/self/ns/net").readlink(), socket.if_nameindex()) == before


@linked
@pytest.mark.skipif(os.getuid() != 0, reason="takes rights away from the superuser")
def test_a_user_without_rights_gets_them_in_a_user_namespace():
    command = ["setpriv", "--bounding-set=-sys_admin,-net_admin", *TRIAL]
    done = subprocess.run(command, capture_output=True, text=True)
    if "not allowed" in done.stderr:
        pytest.skip(f"no user namespaces: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


def test_a_missing_tool_is_named(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(
        linked_hosts, "_tool", lambda name: None if name == "tc" else f"/sbin/{name}"
    )
    with pytest.raises(linked_hosts.NamespacesUnavailableError, match=r"tc is missing.*iproute2"):
        linked_hosts.join_two(BANDWIDTH)


def test_a_host_that_a_signal_ended_has_the_exit_code_of_a_shell():
    host = subprocess.Popen([sys.executable, "-c", "import os; os.abort()"])
    assert linked_hosts.wait([host]) == 128 + signal.SIGABRT


def test_nccl_finds_no_way_past_the_link(monkeypatch):
    """Plugins for other networks, as in vendors' containers, do not belong to a namespace."""
    given: list[dict[str, str]] = []
    hosts = [linked_hosts.Namespace(address, 0) for address in linked_hosts.ADDRESSES]
    monkeypatch.setattr(linked_hosts, "join_two", lambda bandwidth: hosts)
    monkeypatch.setattr(
        linked_hosts.subprocess, "Popen", lambda command, env, preexec_fn: given.append(env)
    )
    monkeypatch.setenv("NCCL_NET", "AWS Libfabric")
    linked_hosts.start(linked_hosts.Linked(1, 60.0, "namespaces", 1e9), ["worker"])
    assert [env["NCCL_HOSTID"] for env in given] == ["host-0", "host-1"]
    assert {env["NCCL_NET"] for env in given} == {"Socket"}
    assert {env["NCCL_SOCKET_IFNAME"] for env in given} == {f"={linked_hosts.DEVICE}"}
    assert {env["GLOO_SOCKET_IFNAME"] for env in given} == {linked_hosts.DEVICE}
    given.clear()
    linked_hosts.start(linked_hosts.Linked(1, 60.0, "emulated", 1e9), ["worker"])
    assert {env["NCCL_NET"] for env in given} == {"AWS Libfabric"}


def test_a_trial_without_a_message_is_a_refusal(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert linked_hosts.refusal() == "it failed without a message"


def test_a_trial_that_does_not_end_is_refused_with_the_remedy(monkeypatch):
    late = mock.Mock(side_effect=subprocess.TimeoutExpired("--try", 60))
    monkeypatch.setattr(linked_hosts.subprocess, "run", late)
    with pytest.raises(Refusal, match=r"--try did not end within 60 seconds\n    remedy: wait"):
        linked_hosts.refusal()


@pytest.mark.parametrize(
    ("tool", "reason"), [("false", "non-zero exit status 1"), ("sleep", "timed out")]
)
def test_a_tool_that_fails_is_a_reason(monkeypatch, tool, reason):
    run = subprocess.run
    soon = {"timeout": 0.1} if tool == "sleep" else {}
    monkeypatch.setattr(linked_hosts.subprocess, "run", lambda *a, **n: run(*a, **(n | soon)))
    with pytest.raises(linked_hosts.NamespacesUnavailableError, match=f"^{tool} 60: .*{reason}"):
        linked_hosts._run(tool, "60")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["emulated", pytest.param("namespaces", marks=linked)])
def test_hosts_have_their_ranks_and_names(kind, tmp_path):
    command = linked_hosts.Linked(2, 60.0, kind, 1e9).command
    environment = write_worker(tmp_path)
    subprocess.run(
        [*command, NAME, str(tmp_path)], env=environment, check=True, capture_output=True
    )
    ranks = told(tmp_path)
    assert [rank["RANK"] for rank in ranks] == ["0", "1", "2", "3"]
    assert {rank["WORLD_SIZE"] for rank in ranks} == {"4"}
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "1", "0", "1"]
    assert {rank[LINK_VARIABLE] for rank in ranks} == {kind}
    here = socket.gethostname()
    hosts = [f"{node} on {here}" for node in (0, 0, 1, 1)]
    assert [rank[HOST_VARIABLE] for rank in ranks] == hosts
    imported_by = [rank["imported_by"] for rank in ranks]
    assert imported_by[0] == imported_by[1] != imported_by[2] == imported_by[3], "no forks"
    # Only a limited link puts hosts into namespaces.
    first, _, second, _ = (rank["NAMESPACE"] for rank in ranks)
    own = os.readlink("/proc/self/ns/net")  # noqa: PTH115
    if kind == "emulated":
        assert {first, second} == {own}
        return
    assert len({first, second, own}) == 3
    for rank in ranks:
        assert rank["GLOO_SOCKET_IFNAME"] == linked_hosts.DEVICE
        assert rank["MASTER_ADDR"] == linked_hosts.ADDRESSES[0]


TIMEOUT = 4.0

WORKER = """
import os, signal, sys, time
from pathlib import Path
import torch
from transformer_core.measure.timed_run import TimedRunOrder
from transformer_core.run.worker import take_place
from transformer_core.run.statuses import supervised
from transformer_core.parallel.strategy import ProcessGroupStrategy

def work(order):
    process = take_place(order)
    strategy = ProcessGroupStrategy(process, order.spec.machine)
    for step in range(1000):
        if process.rank == 1 and step == 3:
            match order.command:
                case "killed": os.kill(os.getpid(), signal.SIGKILL)
                case "asleep": time.sleep(600)
        strategy.sum(torch.ones(1))

def main():
    file = Path(sys.argv[1])
    with supervised(file.parent):
        work(TimedRunOrder.read(file))

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@linux
@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("killed", r"^rank 1 on host \S+ does not answer\. The same command tries again\.$"),
        (
            "asleep",
            r"^rank 1 on host \S+ makes no progress and is behind the others\. The same command tries again\.$",
        ),
    ],
)
def test_a_lost_rank_is_named_with_its_host(tmp_path, monkeypatch, end, reason):
    (tmp_path / "losing_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    monkeypatch.setattr(TimedRunOrder, "worker", "losing_worker")
    ddp = spec("ddp", device="cpu", devices_per_node=2, timeout=TIMEOUT)
    order = TimedRunOrder(spec=ddp, data=tmp_path, output=tmp_path, command=end, repeat=1)
    assert run_workers(order) > 0
    outcome = read_outcomes(tmp_path)
    assert outcome is not None, "no rank gave a reason"
    assert outcome.status == "failed"
    assert re.search(reason, outcome.reason or ""), outcome
