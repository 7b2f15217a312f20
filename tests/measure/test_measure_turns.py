"""The desk, at which processes wait for their turn."""

import json
import stat
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

import pytest

from schemas.results import Topology
from transformer_core.measure.turns.turn_taking import (
    Desk,
    Hello,
    Leave,
    Report,
    Seat,
    SideEndedError,
    Turn,
    announced_session,
    connect,
)

TOPOLOGY = Topology(
    device="cpu", backend=None, world_size=1, local_world_size=1, nodes=1, threads_per_rank=1
)


def alive() -> None:
    """Nobody has ended."""


@pytest.fixture(params=[False, True], ids=["one host", "several hosts"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RENDEZVOUS", "127.0.0.1:1")
        with Desk(tmp_path / "desk.json", several_hosts=request.param) as made:
            yield made


def sit(desk: Desk, side: str, rank: int, act: Callable[[Any], Any]) -> threading.Thread:
    """A rank that gives what ``act`` makes of each task."""

    def live() -> None:
        seat = Seat(desk.file, Hello(side, rank, TOPOLOGY))
        while not isinstance(task := seat.next_task(), Leave):
            seat.answer(act(task))

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    return thread


def test_who_comes_is_told_which_session_it_is(desk: Desk) -> None:
    assert announced_session(desk.file) == 1
    desk.announce(3)
    assert announced_session(desk.file) == 3
    assert desk.file.stat().st_mode & 0o077 == 0
    lone = sit(desk, "a", 0, lambda task: "here")
    desk.seat({"a": 1}, alive, timeout=10)
    assert desk.ask("a", Turn(0, 1), alive, timeout=10) == ["here"]
    desk.dismiss()
    lone.join(10)


def test_answers_come_in_the_order_of_ranks(desk: Desk) -> None:
    for rank in (2, 0, 1):
        sit(desk, "a", rank, lambda task, rank=rank: (rank, task.steps))
    lone = sit(desk, "b", 0, lambda task: "b")
    found = desk.seat({"a": 3, "b": 1}, alive, timeout=10)
    assert found["a"][0] == TOPOLOGY
    assert desk.ask("a", Turn(1, 5), alive, timeout=10) == [(0, 5), (1, 5), (2, 5)]
    assert desk.ask("b", Turn(1, 5), alive, timeout=10) == ["b"]
    desk.dismiss()
    lone.join(10)
    assert not lone.is_alive()


def test_only_the_side_that_is_asked_works(desk: Desk) -> None:
    asked: list[str] = []
    for side in ("a", "b"):
        sit(desk, side, 0, lambda task, side=side: asked.append(side))
    desk.seat({"a": 1, "b": 1}, alive, timeout=10)
    for side in ("a", "b", "b", "a"):
        desk.ask(side, Turn(0, 1), alive, timeout=10)
    assert asked == ["a", "b", "b", "a"]


def test_a_side_that_hangs_up_has_ended(desk: Desk) -> None:
    connection = connect(desk.file)
    connection.send(Hello("a", 0, TOPOLOGY))
    desk.seat({"a": 1}, alive, timeout=10)
    connection.close()
    with pytest.raises(SideEndedError, match="a ended before its turn was over"):
        desk.ask("a", Turn(0, 1), alive, timeout=10)


def test_a_side_that_stalls_has_ended(desk: Desk) -> None:
    sit(desk, "a", 0, lambda task: time.sleep(60))
    desk.seat({"a": 1}, alive, timeout=10)
    with pytest.raises(SideEndedError, match=r"did not answer within 0\.3 s \(machine\.timeout\)"):
        desk.ask("a", Turn(0, 1), alive, timeout=0.3)


def test_a_side_that_does_not_come(desk: Desk) -> None:
    sit(desk, "a", 0, lambda task: None)
    with pytest.raises(SideEndedError, match=r"a was not ready after 0\.3 s"):
        desk.seat({"a": 2}, alive, timeout=0.3)


def test_the_check_is_heard_while_the_desk_waits(desk: Desk) -> None:
    def gone() -> None:
        raise SideEndedError("b", "is gone")

    sit(desk, "a", 0, lambda task: time.sleep(60))
    with pytest.raises(SideEndedError, match="b is gone"):
        desk.seat({"a": 2}, gone, timeout=10)
    desk.seat({"a": 0}, alive, timeout=10)


def test_a_stranger_has_no_key(desk: Desk, tmp_path: Path) -> None:
    assert stat.S_IMODE(desk.file.stat().st_mode) == 0o600
    known = json.loads(desk.file.read_text())
    other = tmp_path / "other.json"
    other.write_text(json.dumps(known | {"key": "00" * 32}))
    with pytest.raises(AuthenticationError):
        connect(other)
    # And the desk still welcomes others.
    sit(desk, "a", 0, lambda task: Report(1.0, 2, 3, 0.0))
    desk.seat({"a": 1}, alive, timeout=10)
    assert desk.ask("a", Turn(0, 1), alive, timeout=10) == [Report(1.0, 2, 3, 0.0)]


def test_the_file_goes_with_the_desk(tmp_path: Path) -> None:
    with Desk(tmp_path / "desk.json", several_hosts=False):
        assert (tmp_path / "desk.json").exists()
    assert not (tmp_path / "desk.json").exists()
