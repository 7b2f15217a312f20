"""Two hosts without a cluster: each runs the line of docs/clusters.md."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from project import ROOT, TINY, Project, kill_group, long_training, wait_until

HOSTS = ("first", "second")
RUN = "results/runs/ddp/repeat-1"
TIMEOUT = 5.0

STUDY = TINY | {
    "machine": TINY["machine"] | {"nodes": 2, "devices_per_node": 1, "timeout": TIMEOUT},
    "training": long_training(12),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A study over two hosts, with everything that a run needs."""
    made = Project.with_data(tmp_path_factory.mktemp("project"), STUDY)
    shards = "results/data/grammar/shards/{}/manifest.json"
    splits = [shards.format(split) for split in ("train", "validation")]
    made.make("results/runs/ddp/spec.json", *splits)
    return made


def documented_line(**changed: str) -> str:
    """The line that docs/clusters.md gives for the second host, with the changed fields of its
    order."""
    text = (ROOT / "docs/clusters.md").read_text().replace("\\\n", " ")
    (order,) = re.findall(r"^ORDER='(.*)'$", text, re.M)
    (line,) = re.findall(r"^(NODE_RANK=1 .*transformer_core\.run\.job.*)$", text, re.M)
    quoted = shlex.quote(json.dumps(json.loads(order) | changed))
    return str(line).replace('"$ORDER"', quoted)


def start(
    project: Project, node: int, port: int, *more: str, **changed: str
) -> subprocess.Popen[str]:
    """Starts the documented line as host ``node``, in its own process group."""
    words = shlex.split(documented_line(**changed))
    variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    command = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    assert command[0] == "python"
    variables |= {"NODE_RANK": str(node), "RENDEZVOUS": f"127.0.0.1:{port}"}
    return subprocess.Popen(
        [sys.executable, *command[1:], *more],
        cwd=project.folder,
        env=os.environ
        | variables
        | {"PYTHONPATH": str(project.folder), "SLURMD_NODENAME": HOSTS[node]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.slow
def test_the_same_line_on_every_host_makes_one_run(project):
    port = free_port()
    hosts = [start(project, node, port) for node in (0, 1)]
    said = [host.communicate(timeout=200)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    repeat = project.repeat(RUN)
    assert repeat.status == "ok", repeat.reason
    assert repeat.topology is not None
    found = repeat.topology
    assert (found.nodes, found.world_size, found.local_world_size) == (2, 2, 1)
    places = [(place.rank, place.node_rank, place.host) for place in found.ranks]
    assert places == [(0, 0, "first"), (1, 1, "second")]
    planned = project.planned(f"{RUN}/metrics.json")
    assert planned == {}, "Snakemake does not accept the run as done"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="takes parent-death signals")
def test_a_host_that_stops_is_named(project):
    """All processes of the second host are stopped in the middle of the training."""
    output = "results/stopped"
    port = free_port()
    long = project.folder / "long.json"
    spec = (project.folder / "results/runs/ddp/spec.json").read_text()
    long.write_text(spec.replace('"steps":12,', '"steps":1000000,'))
    assert '"steps":1000000' in long.read_text()
    # Of two equal options the last one counts.
    options = ("--log-file", f"{output}.log")
    changed = {"spec": str(long), "output": output}
    hosts = [start(project, node, port, *options, **changed) for node in (0, 1)]
    try:
        log = project.folder / f"{output}.log"
        assert wait_until(lambda: log.exists() and "starts, step" in log.read_text(), hosts[0])
        time.sleep(0.5)
        for process in processes_of(hosts[1]):
            process.send_signal(signal.SIGSTOP)
        said = hosts[0].communicate(timeout=120)[0]
    finally:
        for host in hosts:
            everything = processes_of(host)
            kill_group(host)
            for process in everything:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
    assert hosts[0].returncode == 0, said
    repeat = project.repeat(output)
    assert repeat.status == "failed"
    assert repeat.reason == "rank 1 on host second does not answer. The same command tries again."
    assert repeat.traceback is None


def processes_of(host: subprocess.Popen[str]) -> list[psutil.Process]:
    """All processes of a host, the last ones first; those of torchrun have their own groups."""
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(host.pid)
        return [*first.children(recursive=True)[::-1], first]
    return []
