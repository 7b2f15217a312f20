"""Progress: occasional lines in a log, and a bar on a terminal."""

import io
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from transformer_core.common import progress
from transformer_core.common.progress import Progress, RunProgress, log_to


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test advances."""
    time = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: time.now)
    return time


@pytest.fixture
def lines(tmp_path):
    """A log file."""
    path = tmp_path / "deep" / "run.log"
    log_to(path)
    return path


def said(path: Path) -> list[str]:
    return [line.split(" ", 1)[1] for line in path.read_text().splitlines()]


def test_counts_are_logged_now_and_then(clock, lines):
    with Progress("read", "pairs", 4000) as counting:
        counting.update(1000)
        clock.now += 10
        counting.update(1000)
        clock.now += 5
        counting.update(1000)
    with Progress("read", "rows") as counting:  # an unknown total
        clock.now += 100
        counting.update(70)
    assert said(lines) == ["read: 2,000 of 4,000 pairs, 0:10 left", "read: 70 rows"]


def test_a_run_logs_its_loss_speed_and_remaining_time(clock, lines):
    run = RunProgress("ddp", 30, show=True)
    run.start(10)
    clock.now += 20
    for _ in range(5):
        run.step_done(400)
    run.logged(15, 5.25)
    run.validated(15, 4.5)
    for _ in range(15):
        run.step_done(400)
    run.logged(30, 4.0)
    run.close()
    assert said(lines) == [
        "ddp: resumes after step 10 of 30",
        "ddp: 15 of 30 steps, loss 5.250, 100 tokens/s, 1:00 left",
        "ddp: step 15, validation loss 4.500",
        "ddp: 30 of 30 steps, loss 4.000, 400 tokens/s, 0:00 left",
    ]


def test_other_ranks_are_silent(lines, monkeypatch):
    monkeypatch.setattr(progress.sys, "stderr", Terminal())
    run = RunProgress("ddp", 2, show=False)
    run.start()
    run.step_done(10)
    run.logged(2, 1.0)
    run.validated(2, 1.0)
    assert run.bar is None
    assert not said(lines)


def test_a_terminal_has_a_bar_and_no_lines_across_it(clock, monkeypatch, caplog):
    screen = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", screen)
    with caplog.at_level(logging.INFO), Progress("read", "pairs", 10) as counting:
        clock.now += 100
        counting.update(10)
    assert "read: 100%" in screen.getvalue()
    assert not caplog.records


def test_a_terminal_shows_warnings(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", screen)
    log_to(None)
    progress.log.info("as usual")
    progress.log.warning("look here")
    assert screen.getvalue().split(" ", 1)[1] == "look here\n"
