"""The roll call of a rank whose messages have a deadline, as on GPUs."""

import signal
import subprocess
import sys
import threading
import time
from dataclasses import make_dataclass
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from schemas.errors import PeerLost
from schemas.results import RankPlace
from transformer_core.observe import followed_step
from transformer_core.parallel import lost_ranks
from transformer_core.parallel.lost_ranks import RollCall
from transformer_core.run import statuses

PLACES = [
    RankPlace(rank=rank, local_rank=rank, node_rank=0, host="n1", device=f"cuda:{rank}")
    for rank in range(2)
]
DEADLINE = 0.3


@pytest.fixture
def ended(monkeypatch):
    """The reasons for which roll calls have ended this process."""
    found = []
    monkeypatch.setattr(RollCall, "_end", lambda self, lost, code: found.append(str(lost)))
    monkeypatch.setattr(lost_ranks, "PERIOD", 0.02)
    monkeypatch.setattr(lost_ranks, "PATIENCE", 0.1)
    yield found
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)


def test_a_rank_that_waits_for_its_turn_has_no_deadline(ended):
    roll = RollCall(dist.HashStore(), 0, PLACES[:1], DEADLINE)
    roll.progress()
    roll.rest()
    time.sleep(3 * DEADLINE)
    assert ended == []
    roll.progress()
    time.sleep(3 * DEADLINE)
    roll.close()
    assert ended[0] == f"no step for {DEADLINE:g} s: all ranks answer"
    ended.clear()
    time.sleep(DEADLINE)
    assert ended == []


def test_a_watched_step_may_compile_for_longer_than_the_deadline(ended, monkeypatch):
    """As those of largest batches and of memory."""
    monkeypatch.setattr(followed_step, "optimizer_step", lambda *_: time.sleep(3 * DEADLINE))
    roll = RollCall(dist.HashStore(), 0, PLACES[:1], DEADLINE)
    trainer = make_dataclass("Trainer", ["strategy", "precision"])(roll, None)
    followed_step.watched_step(trainer, None, lambda moment: None)
    roll.close()
    assert ended == []


@pytest.mark.parametrize("deadline", [None, DEADLINE])
def test_a_rank_without_the_store_still_ends_when_asked_or_after_the_deadline(ended, deadline):
    roll = RollCall(Mock(add=Mock(side_effect=RuntimeError("Broken pipe"))), 1, PLACES, deadline)
    roll.progress()
    time.sleep(0.1)
    if deadline is None:
        signal.raise_signal(signal.SIGTERM)
    end = time.monotonic() + 10
    while not ended and time.monotonic() < end:
        time.sleep(0.02)
    roll.close()
    assert ended[0].endswith(
        "rank 0 on host n1 does not answer, and neither does any other rank on its host"
    )


class Ended(BaseException):
    """Ends the thread of a roll call in place of its process."""


def test_a_rank_that_its_deadline_has_ended_is_not_taken_for_a_silent_one(monkeypatch):
    """All ranks wait for the same message, but none of their deadlines comes at the same time."""
    said: list[str] = []
    monkeypatch.setattr(lost_ranks, "PERIOD", 0.02)
    monkeypatch.setattr(lost_ranks, "PATIENCE", 0.2)
    monkeypatch.setattr(lost_ranks, "report", lambda lost: said.append(str(lost)))
    monkeypatch.setattr(lost_ranks.os, "_exit", Mock(side_effect=Ended))
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    store = dist.HashStore()
    rolls = [RollCall(store, rank, PLACES, DEADLINE * (1 + rank)) for rank in (0, 1)]
    for roll in rolls:
        roll._thread.join(10)
        signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert said == [f"no step for {DEADLINE * n:g} s: all ranks answer" for n in (1, 2)]


ALONE = """
import os, resource, time
from torch.distributed import HashStore
from schemas.results import RankPlace
from transformer_core.parallel.lost_ranks import RollCall
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
files = [open(os.devnull) for _ in range(1_100)]
place = RankPlace(rank=0, local_rank=0, node_rank=0, host="n1", device="cuda:0")
RollCall(HashStore(), 0, [place], 0.1)
time.sleep(60)
"""


def test_a_training_alone_that_its_deadline_ends_says_why_however_many_files_are_open():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "no step for 0.1 s: all ranks answer\n")


def test_a_process_that_trains_several_times_has_one_deadline(ended, monkeypatch):
    """Every training of a certificate joins the roll, and only the last one still makes progress."""
    monkeypatch.setattr(lost_ranks, "current", None)
    monkeypatch.setattr(dist, "TCPStore", lambda *_, **__: dist.HashStore())
    for name, value in (("RUN_ID", "run"), ("USE_AGENT_STORE", "True")):
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    rolls = [lost_ranks.begin(0, PLACES[:1], DEADLINE) for _ in range(2)]
    for _ in range(10):
        rolls[-1].progress()
        time.sleep(DEADLINE / 4)
    rolls[-1].close()
    assert ended == []
    after = lost_ranks.begin(0, PLACES[:1], DEADLINE)
    after.close()
    assert after is not rolls[-1], "another group may have other ranks"


def test_a_restart_by_torchrun_forgets_who_had_ended(ended, monkeypatch):
    monkeypatch.setattr(lost_ranks, "current", None)
    store = dist.HashStore()
    monkeypatch.setattr(dist, "TCPStore", lambda *_, **__: store)
    for name, value in (("RUN_ID", "run"), ("RESTART_COUNT", "0")):
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    before = lost_ranks.begin(0, PLACES, None)
    assert before.explain(ValueError("of its own")) is None
    before.close()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    roll = lost_ranks.begin(1, PLACES, None)
    assert str(roll.lost()) == "rank 0 on host n1 does not answer"
    roll.close()


@pytest.mark.parametrize(
    ("met", "said"),
    [
        (True, "rank 0 on host n1 does not answer"),
        (False, "ranks cannot reach one another: [gloo/pair.cc] Connection closed by peer"),
    ],
)
def test_a_lost_peer_is_one_sentence_in_the_result_and_a_traceback_in_the_log(
    ended, monkeypatch, tmp_path, capfd, met, said
):
    """Also while the ranks meet, and in work without a roll call, such as compute times."""
    roll = RollCall(dist.HashStore(), 1, PLACES, None)
    monkeypatch.setattr(lost_ranks, "current", roll if met else None)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setattr(statuses.os, "_exit", lambda code: None)
    monkeypatch.setattr(statuses, "end_with_parent", lambda: None)
    with statuses.supervised(tmp_path):
        raise RuntimeError("[gloo/pair.cc] Connection closed by peer. GLHF!\nException raised")
    roll.close()
    outcome = statuses.read_outcomes(tmp_path)
    assert outcome.reason == f"{said}. The same command tries again."
    assert (outcome.traceback, outcome.again, outcome.about_peers) == (None, True, True)
    logged = capfd.readouterr().err
    assert "Traceback" in logged
    assert "Connection closed by peer" in logged


def test_only_ranks_have_lost_peers(monkeypatch):
    monkeypatch.setattr(lost_ranks, "current", None)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    refused = RuntimeError("the user's own server: Connection refused")
    assert lost_ranks.explain(refused) is refused
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    for error in (refused, dist.DistError()):
        assert isinstance(lost_ranks.explain(error), PeerLost)
    said = "Cuda failure 101 'invalid device ordinal'"
    nccl = f"NCCL error in: NCCLUtils.cpp:77, unhandled cuda error\nLast error:\n{said}\nException"
    lost = lost_ranks.explain(dist.DistBackendError(nccl))
    assert str(lost) == f"ranks cannot reach one another: {said}"


FULL = "Error while creating shared memory segment /dev/shm/nccl-x, error: No space left on device (28)"


@pytest.mark.parametrize(
    ("said", "status", "words"),
    [
        ("Failed to CUDA calloc 4194304 bytes", "oom", "GPU"),
        (FULL, "failed", "containers: --shm-size"),
    ],
)
@pytest.mark.parametrize("met", [True, False])
def test_what_nccl_lacks_on_one_rank_is_not_taken_for_a_lost_peer(
    ended, monkeypatch, tmp_path, said, status, words, met
):
    """The others answer and are a step ahead, as happens when a single rank has no room left."""
    store = dist.HashStore()
    roll = RollCall(store, 1, PLACES, None)
    store.set("present/1/0", "7")
    monkeypatch.setattr(lost_ranks, "current", roll if met else None)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setattr(statuses.os, "_exit", lambda code: None)
    monkeypatch.setattr(statuses, "end_with_parent", lambda: None)
    nccl = f"NCCL error in: NCCLUtils.hpp:77\nLast error:\n{said}"
    with statuses.supervised(tmp_path):
        raise torch.distributed.DistBackendError(nccl)
    roll.close()
    outcome = statuses.read_outcomes(tmp_path)
    assert (outcome.status, outcome.again) == (status, status == "failed")
    assert words in outcome.reason
