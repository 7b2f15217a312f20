"""The coordinator, which gives waiting processes their turns."""

import errno
import json
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import pytest

from tests.records import topology
from transformer_core.common.endings import in_words
from transformer_core.run.coordinator import (
    Coordinator,
    Hello,
    Leave,
    Report,
    SideEndedError,
    Turn,
    Turns,
    connect,
)

TOPOLOGY = topology()


def report(seconds: float, tokens: int = 0) -> Report:
    return Report(seconds, tokens, 0, 0.0)


def alive() -> None:
    """A check that finds all sides running."""


@pytest.fixture(params=[False, True], ids=["one host", "several hosts"])
def coordinator(request, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RENDEZVOUS", "127.0.0.1:1")
        with Coordinator(tmp_path / "coordinator.json", several_hosts=request.param) as made:
            yield made
        assert not made.file.exists(), "the coordinator removes its file"


def join(
    coordinator: Coordinator, side: str, rank: int, act: Callable[[Any], Any]
) -> threading.Thread:
    """A rank that answers each task with the result of ``act``."""

    def live() -> None:
        turns = Turns(coordinator.file, Hello(side, rank, TOPOLOGY))
        with suppress(EOFError, OSError):  # the coordinator has gone
            while not isinstance(task := turns.next(), Leave):
                turns.answer(act(task))

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    return thread


def test_only_the_asked_side_works_and_its_ranks_answer_in_order(coordinator):
    asked: list[str] = []

    def act(side: str, rank: int, task: Turn) -> Report:
        asked.append(side)
        return report(rank, task.steps)

    ranks = [("a", 2), ("a", 0), ("b", 0), ("a", 1)]
    threads = [join(coordinator, *who, partial(act, *who)) for who in ranks]
    found = coordinator.gather({"a": 3, "b": 1}, alive, timeout=60)
    assert found["a"][0] == TOPOLOGY
    for side, count in (("a", 3), ("b", 1), ("b", 1), ("a", 3)):
        answers = coordinator.ask(side, Turn(1, 5), alive, timeout=60)
        assert answers == [report(rank, 5) for rank in range(count)]
    assert asked == [*"aaabbaaa"]
    coordinator.dismiss()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_side_that_does_not_connect(coordinator):
    def gone() -> None:
        raise SideEndedError("b", "is gone")

    join(coordinator, "a", 0, lambda task: None)
    with pytest.raises(SideEndedError, match=r"a was not ready after 0\.3 s"):
        coordinator.gather({"a": 2}, alive, timeout=0.3)
    with pytest.raises(SideEndedError, match="b is gone"):
        coordinator.gather({"a": 2}, gone, timeout=60)


def test_a_silent_stranger_keeps_nobody_waiting(coordinator):
    address = json.loads(coordinator.file.read_text())["address"]
    unix = isinstance(address, str)
    with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as silent:
        silent.connect(address if unix else tuple(address))
        join(coordinator, "a", 0, lambda task: None)
        assert list(coordinator.gather({"a": 1}, alive, timeout=20)) == ["a"]


def test_a_late_rank_is_awaited_while_the_sides_run(coordinator):
    late = iter(["a"])

    def check() -> None:
        for side in late:
            join(coordinator, side, 0, lambda task: None)

    assert list(coordinator.gather({"a": 1}, check, timeout=60)) == ["a"]


@pytest.mark.parametrize("name", ["short", "long" * 25])
def test_a_coordinator_needs_no_short_tmpdir_and_leaves_nothing_there(tmp_path, monkeypatch, name):
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with Coordinator(tmp_path / "coordinator.json", several_hosts=False) as made:
        join(made, "a", 0, lambda task: None)
        assert list(made.gather({"a": 1}, alive, timeout=60)) == ["a"]
        place = Path(json.loads(made.file.read_text())["address"])
        assert place.exists()
    assert not place.parent.exists()
    assert not [*folder.iterdir()]


def test_a_coordinator_that_may_open_no_more_files_says_so(coordinator, monkeypatch):
    calls: list[None] = []

    def full(*_: Any) -> None:
        calls.append(None)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Listener, "accept", full)
    join(coordinator, "a", 0, lambda task: None)  # for this one it waits already
    with pytest.raises(OSError, match=r"open files: this process may open at most \d+") as found:
        coordinator.gather({"a": 2}, alive, timeout=60)
    assert "ulimit -n" in in_words(found.value)
    assert len(calls) == 1, "it does not try again and again"


@pytest.mark.parametrize("several_hosts", [False, True])
def test_a_coordinator_leaves_no_thread(tmp_path, several_hosts):
    before = threading.enumerate()
    with Coordinator(tmp_path / "coordinator.json", several_hosts) as made:
        join(made, "a", 0, lambda task: None)
        made.gather({"a": 1}, alive, timeout=60)
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(20)
            assert not thread.is_alive()


def test_strangers_are_refused(coordinator, tmp_path):
    assert stat.S_IMODE(coordinator.file.stat().st_mode) == 0o600
    known = json.loads(coordinator.file.read_text())
    other = tmp_path / "other.json"
    other.write_text(json.dumps(known | {"key": "00" * 32}))
    with pytest.raises(AuthenticationError):
        connect(other)
    # A client that does not send JSON is ignored.
    connect(coordinator.file).send(Hello("a", 0, TOPOLOGY))
    join(coordinator, "a", 0, lambda task: Report(1.0, 2, 3, 0.0))
    coordinator.gather({"a": 1}, alive, timeout=60)
    assert coordinator.ask("a", Turn(0, 1), alive, timeout=60) == [Report(1.0, 2, 3, 0.0)]
