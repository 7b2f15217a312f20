"""The clock of a study: it survives kills, and knows how long jobs took."""

from types import SimpleNamespace

import pytest

from transformer_core.common import study_clock
from transformer_core.common.study_clock import BEAT, Clock, RunningClock, read_clock


class Time:
    """A clock that only the test advances."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch):
    now = Time()
    monkeypatch.setattr(study_clock, "time", SimpleNamespace(time=now))
    return now


@pytest.fixture
def file(tmp_path):
    return tmp_path / "results/.clock.json"


def test_time_between_commands_does_not_count(time, file):
    for number in range(3):
        clock = RunningClock(file, time)
        time.now += BEAT / 2
        at_work = read_clock(file).spent(time.now)
        assert at_work == pytest.approx(number * 100.0 + BEAT / 2), "it is up to date"
        time.now += 100.0 - BEAT / 2
        clock.stop()
        time.now += 5_000.0
    assert read_clock(file).spent() == pytest.approx(300.0)
    assert read_clock(file).spent(time.now) == pytest.approx(300.0), "no command is running"


def test_after_a_kill_the_clock_resumes_from_its_last_save(time, file):
    killed = RunningClock(file, time)
    time.now += 60.0
    killed.beat()
    time.now += 3.0  # and is killed
    time.now += 86_400.0
    assert read_clock(file).spent(time.now) == pytest.approx(60.0), "a day later nothing runs"
    again = RunningClock(file, time)
    time.now += 10.0
    assert again.spent() == pytest.approx(70.0)


@pytest.mark.parametrize("content", [b'{"worked": 3', b"\xff\x00"])
def test_a_damaged_clock_starts_from_zero(time, file, content):
    file.parent.mkdir()
    file.write_bytes(content)
    assert RunningClock(file, time).spent() == 0.0
    assert read_clock(file.with_name("none")) == Clock()


@pytest.mark.parametrize("jump", [-3_600.0, 3_600.0])
def test_jumps_of_the_hosts_clock_and_its_sleep_are_no_work(time, file, monkeypatch, jump):
    clock = RunningClock(file, time)
    time.now += 30.0
    monkeypatch.setattr(study_clock, "time", SimpleNamespace(time=lambda: time.now + jump))
    assert read_clock(file).spent(time.now + jump) == 0.0, "unknown until it is saved"
    clock.beat()
    assert clock.spent() == read_clock(file).spent(time.now + jump) == pytest.approx(30.0)
    clock.stop()
    assert read_clock(file).spent() == pytest.approx(30.0)


def test_a_late_save_does_not_restart_a_stopped_clock(time, file):
    clock = RunningClock(file, time)
    clock.stop()
    clock.beat()  # of the thread, which may have been about to save
    assert not read_clock(file).running


def test_jobs_of_another_host_are_forgotten(time, file, monkeypatch):
    monkeypatch.setattr(study_clock.platform, "node", lambda: "here")
    clock = RunningClock(file, time)
    clock.job_done("train", 4.0)
    clock.job_done("train", 6.0, share=0.5)
    clock.stop()
    found = read_clock(file).jobs["train"]
    assert (found.count, found.mean, found.share) == (2, 5.0, 0.5)
    assert RunningClock(file, time).clock.jobs == {"train": found}
    monkeypatch.setattr(study_clock.platform, "node", lambda: "there")
    assert RunningClock(file, time).clock.jobs == {}


def test_a_clock_that_cannot_be_saved_stops_nonetheless(time, file):
    """For example on a full disk: the study should end with its own error."""
    clock = RunningClock(file, time)
    file.unlink()
    file.parent.rmdir()
    file.parent.touch()
    time.now += 10
    clock.stop()
    assert clock.spent() == 10.0
