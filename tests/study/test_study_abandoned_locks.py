"""Locks of Snakemakes that are gone, and of those that are not."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from transformer_core.study import abandoned_locks
from transformer_core.study.abandoned_locks import Card, sign_in

SIGN_IN = """
import sys, time
from pathlib import Path
from transformer_core.study.abandoned_locks import sign_in
sign_in(Path(sys.argv[1]), beat=0.05)
print("there", flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a lock of somebody."""
    lock = tmp_path / "locks/0.output.lock"
    lock.parent.mkdir()
    lock.write_text("results/report.html\n")
    return tmp_path


@pytest.fixture
def other(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has signed in."""
    command = [sys.executable, "-c", textwrap.dedent(SIGN_IN), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def locked(folder: Path) -> bool:
    return (folder / "locks/0.output.lock").exists()


def cards(folder: Path) -> list[Path]:
    return sorted((folder / "at-work").glob("*.json"))


def elsewhere(card: Path) -> None:
    """Make a card that of a process on another host."""
    there = Card.model_validate_json(card.read_text()).model_copy(update={"kernel": "another"})
    card.write_text(there.model_dump_json())


def test_locks_of_a_killed_process_go(folder: Path, other: subprocess.Popen[str]) -> None:
    other.kill()
    other.wait()
    mine = sign_in(folder)
    assert not locked(folder)
    assert cards(folder) == [mine]


def test_locks_of_a_live_process_stay(folder: Path, other: subprocess.Popen[str]) -> None:
    sign_in(folder)
    assert locked(folder)
    assert len(cards(folder)) == 2


def test_locks_without_a_card_stay(folder: Path) -> None:
    sign_in(folder)
    assert locked(folder)


def test_a_silent_process_elsewhere_is_gone(folder: Path, other: subprocess.Popen[str]) -> None:
    other.kill()
    other.wait()
    elsewhere(cards(folder)[0])
    mine = sign_in(folder, patience=0.1)
    assert not locked(folder)
    assert cards(folder) == [mine]


def test_a_process_elsewhere_with_signs_of_life_is_not(
    folder: Path, other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abandoned_locks, "_kernel", lambda: "another")
    sign_in(folder, patience=2.0)
    assert locked(folder)


def test_who_lost_the_place_ends(folder: Path, other: subprocess.Popen[str]) -> None:
    cards(folder)[0].unlink()
    assert other.wait(timeout=10) == -15


def test_a_damaged_card_keeps_the_locks(folder: Path, other: subprocess.Popen[str]) -> None:
    other.kill()
    other.wait()
    cards(folder)[0].write_text("{")
    sign_in(folder)
    assert locked(folder)
