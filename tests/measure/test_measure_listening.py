"""Processes of one host listen on loopback only, and leave no temporary folders."""

import logging
import os
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from worker_builders import spec

from schemas.config.measurement import Quality
from transformer_core.measure import quality
from transformer_core.run import host_processes as interfaces
from transformer_core.run.launcher import launcher, worker_environment
from transformer_core.run.rendezvous import listening, stop_silently

WORKER = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist

def main():
    dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == 2
    folder = Path(sys.argv[1])
    (folder / f"joined-{dist.get_rank()}").touch()
    while not (folder / "seen").exists():
        time.sleep(0.02)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


def test_the_agent_of_failed_processes_prints_no_traceback(caplog):
    """It printed ten lines for each failed training; the reason came from the job."""
    agent = logging.getLogger("torch.distributed.elastic.multiprocessing.api")
    before = agent.filters[:]
    stop_silently()
    with caplog.at_level(logging.INFO, agent.name):
        agent.addHandler(caplog.handler)
        agent.error("failed (exitcode: %s) local_rank: %s", 1, 0)
        agent.error("another error")
    agent.removeHandler(caplog.handler)
    agent.filters[:] = before
    assert {record.getMessage() for record in caplog.records} == {"another error"}


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [False, True], ids=["forked", "torchrun"])
def test_processes_of_one_host_listen_on_loopback_only(tmp_path, fresh):
    (tmp_path / "listening_worker.py").write_text(WORKER)
    (tmp_path / "tmp").mkdir()
    ddp = spec("ddp", device="cpu")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    run = subprocess.Popen(
        [*launcher(ddp, "listening_worker", fresh=fresh), str(tmp_path)],
        env=worker_environment(ddp, os.environ)
        | {"PYTHONPATH": path, "TMPDIR": str(tmp_path / "tmp")},
    )
    try:
        while len(list(tmp_path.glob("joined-*"))) < 2:
            assert run.poll() is None
            time.sleep(0.05)
        everyone = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
        places = {
            connection.laddr.ip
            for process in everyone
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert len(everyone) >= 3
        assert places == {"127.0.0.1"}
    finally:
        (tmp_path / "seen").touch()
        code = run.wait(60)
    assert code == 0
    assert not list((tmp_path / "tmp").glob("torchelastic_*"))


def test_the_users_interface_takes_precedence():
    given = {"GLOO_SOCKET_IFNAME": "eth7"}
    found = interfaces.within_host(given)
    assert found["GLOO_SOCKET_IFNAME"] == "eth7"
    assert found["NCCL_SOCKET_IFNAME"] == f"={interfaces.interface_of('127.0.0.1')}"
    assert interfaces.interface_of("127.0.0.1").startswith("lo")


def test_several_hosts_use_the_interface_to_the_first():
    first = interfaces.between_hosts("127.0.0.1", 29_500, True, {})
    other = interfaces.between_hosts("127.0.0.1", 29_500, False, {})
    name = interfaces.interface_of("127.0.0.1")
    # To NCCL a name alone is also the beginning of others, such as eth0.100.
    exactly = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
    assert first == other == exactly | {"TP_SOCKET_IFNAME": name}
    assert interfaces.interface_of("192.0.2.77") == ""


def test_the_first_hosts_own_name_may_stand_for_loopback(monkeypatch):
    """As on Debian. The others, which know the name from DNS, could not reach it."""
    known = {"first": "127.0.1.1", "other": "10.0.0.9", "localhost": "127.0.0.1"}
    monkeypatch.setattr(interfaces.socket, "gethostbyname", known.__getitem__)
    monkeypatch.setattr(interfaces, "_own_address", lambda host, port: "10.0.0.7")
    eth7 = SimpleNamespace(family=socket.AF_INET, address="10.7.7.7")
    monkeypatch.setattr(interfaces.psutil, "net_if_addrs", lambda: {"eth7": [eth7]})
    assert interfaces.own_or_given("first", {}) == "10.0.0.7"
    for given in ("eth7", "=eth7"):
        assert interfaces.own_or_given("first", {"NCCL_SOCKET_IFNAME": given}) == "10.7.7.7"
    for name in ("other", "localhost", "127.0.0.1", "10.0.0.9"):
        assert interfaces.own_or_given(name, {}) == name
    monkeypatch.setattr(interfaces, "_own_address", lambda host, port: "")
    assert interfaces.own_or_given("first", {}) == "first", "a host without a network"


def test_an_address_of_another_host_is_refused_with_the_remedy():
    with pytest.raises(OSError, match="RENDEZVOUS"):
        listening("192.0.2.77", 0)
    with listening("127.0.0.1", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("link", [{"bandwidth": "100Mbit/s"}, None], ids=["emulated", "real"])
def test_only_real_hosts_connect_to_a_coordinator_over_the_network(link, tmp_path, monkeypatch):
    ddp = spec("ddp", nodes=2, devices_per_node=1, device="cpu", link=link)
    asked = []

    class StartedError(Exception):
        pass

    def start(file: Path, several_hosts: bool) -> Any:
        asked.append(several_hosts)
        raise StartedError

    monkeypatch.setattr("transformer_core.measure.sessions.Coordinator", start)
    found: Any = SimpleNamespace(status="found", spec=ddp, baseline={}, parts=["v"])
    with pytest.raises(StartedError):
        quality.time_to_quality(ddp, found, [], Quality(loss=4.0), tmp_path, tmp_path, "")
    assert asked == [link is None]
