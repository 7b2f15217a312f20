"""A process that dies or stands still ends the run within its time-out, and is named."""

import re
import sys
from pathlib import Path

import pytest

from schemas.config.run_spec import RunSpec
from transformer_core.measure.timed_run import TimedRunOrder
from transformer_core.run import namespaces
from transformer_core.run.statuses import Outcome, read_outcomes
from transformer_core.run.supervisor import run_workers

pytestmark = pytest.mark.slow

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
                case "stopped": os.kill(os.getpid(), signal.SIGSTOP)
                case "asleep": time.sleep(600)
                case "raised": raise ValueError("a mistake of its own")
        strategy.sum(torch.ones(1))

def main():
    file = Path(sys.argv[1])
    with supervised(file.parent):
        work(TimedRunOrder.read(file))

if __name__ == "__main__":
    main()
"""


def end_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, nodes: int
) -> tuple[int, Outcome]:
    """Exit code and explaining outcome of a run whose rank 1 ends like ``end``."""
    # Side by side on the loopback: what is tested needs no network namespace.
    monkeypatch.setattr(namespaces, "refusal", lambda: "not in this test")
    link = {"bandwidth": "1Gbit/s"} if nodes == 2 else None
    machine = {"nodes": nodes, "devices_per_node": 2 // nodes, "link": link}
    spec = RunSpec.model_validate(
        {
            "variant": "v",
            "parallel": {"kind": "ddp"},
            "machine": machine | {"device": "cpu", "timeout": TIMEOUT},
        }
    )
    (tmp_path / "losing_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    monkeypatch.setattr(TimedRunOrder, "worker", "losing_worker")
    order = TimedRunOrder(spec=spec, data=tmp_path, output=tmp_path, command=end, repeat=1)
    code = run_workers(order)
    outcome = read_outcomes(tmp_path)
    assert outcome is not None, "nobody said why"
    return code, outcome


@pytest.mark.skipif(sys.platform != "linux", reason="takes SIGSTOP and parent-death signals")
@pytest.mark.parametrize(
    ("end", "nodes", "reason"),
    [
        ("killed", 2, r"^rank 1 on host 1 on \S+ does not answer$"),
        ("killed", 1, r"^rank 1 on host \S+ does not answer$"),
        ("stopped", 2, r"^rank 1 on host 1 on \S+ does not answer$"),
        ("asleep", 2, r"^rank 1 on host 1 on \S+ stands still, behind the others$"),
        ("raised", 2, r"^ValueError: a mistake of its own$"),
    ],
)
def test_the_lost_rank_and_its_host_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, nodes: int, reason: str
) -> None:
    code, outcome = end_of(tmp_path, monkeypatch, end, nodes)
    assert code > 0
    assert outcome.status == "failed"
    assert re.search(reason, outcome.reason or ""), outcome
