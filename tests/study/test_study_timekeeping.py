"""Messages on the time of a study: before, during and after it runs."""

import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
from claim_builders import comparison

from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.results import Unsettled
from schemas.results.data import LengthHistogram
from tests.records import refinement
from transformer_core.common.study_clock import JobTimes, RunningClock
from transformer_core.run.job import note
from transformer_core.study import timekeeping
from transformer_core.study.timekeeping import (
    FEW_STEPS,
    LINE_SECONDS,
    Forecast,
    Range,
    Timekeeper,
    at_the_end,
    at_the_start,
    begin,
    end,
    guesses,
    longest_of,
    matrix_rate,
    step_seconds,
)


class Now:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def record(event: str, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("snakemake", logging.INFO, "", 0, None, None, None)
    vars(made).update(fields, event=SimpleNamespace(value=event))
    return made


def keeper(
    folder: Path, jobs: dict[str, int], forecast: Forecast, asked: float | None = None
) -> tuple[Timekeeper, Now, list[str]]:
    """A timekeeper, its clock, and what it says."""
    now, said = Now(), list[str]()
    clock = RunningClock(folder / "clock.json", now)
    return Timekeeper(clock, jobs, forecast, asked, said.append, lambda: 50.0, now), now, said


JOBS = {"train": 4, "page": 1}


def fixed(guessed: dict[str, float]) -> Callable[[float, float], dict[str, float]]:
    """Guesses that depend on steps alone."""
    return lambda start, step: {rule: step * seconds for rule, seconds in guessed.items()}


def start_or_step(start: float, step: float) -> dict[str, float]:
    return {"train": step, "page": start}


FORECAST = Forecast({}, start_or_step, start=2.0, step=1.0, shares={"train": 1.0, "page": 0.5})


def run_job(one: Timekeeper, now: Now, number: int, rule: str, seconds: float) -> None:
    one.emit(record("job_info", jobid=number, rule_name=rule, rule_msg=f"Job of {rule}\nmore"))
    now.now += seconds
    one.emit(record("job_finished", job_id=number))
    one.tell()


def test_the_line_has_progress_time_left_and_job(tmp_path):
    one, now, _ = keeper(tmp_path, JOBS, FORECAST)
    for number in range(3):
        run_job(one, now, number, "train", 100.0)
    one.emit(record("job_info", jobid=9, rule_name="train", rule_msg="Train ddp, repeat 1"))
    line = one.line()
    assert line.startswith("3 of 5 jobs, 5:00, ")
    assert line.endswith(" left | Train ddp, repeat 1")
    # One training of 100 s, and a page with only a guess.
    left = one.left()
    assert 70 <= left.low <= 100 <= left.high <= 140
    now.now += 60.0
    assert one.left().high == pytest.approx(left.high - 60.0)
    # While a job is overdue, the line says so, and the time left grows.
    now.now += 90.0
    overdue = one.left()
    now.now += 90.0
    assert one.left().low > overdue.low
    assert one.left().high > overdue.high
    assert one.line().endswith(" left | Train ddp, repeat 1, for 4:00: 1 to 2 min expected")
    # A job that failed no longer runs.
    one.emit(record("job_error", jobid=9, rule_name="train", log=[]))
    assert one.running == {}
    assert one.clock.clock.jobs["train"].count == 3


def test_jobs_may_end_while_the_line_is_made(tmp_path):
    """In the thread of Snakemake's log; an error would stop the clock, which the thread of the line saves."""
    one, now, said = keeper(tmp_path, JOBS, FORECAST)
    for number in range(2):
        one.emit(record("job_info", jobid=number, rule_name="train", rule_msg="Train"))

    class Ending(Forecast):
        def job(self, job: str) -> Range:
            one.running.clear()
            return super().job(job)

    one.forecast = Ending({}, start_or_step, start=2.0, step=1.0, shares={})
    now.now += 2 * LINE_SECONDS
    one.tell()
    assert said[0].startswith("0 of 5 jobs, 1:00, ")


def test_the_end_of_the_log_says_which_jobs_failed_and_why(tmp_path, monkeypatch):
    """The reason stood above some twenty lines of Snakemake's own."""
    one, _, said = keeper(tmp_path, JOBS, FORECAST)
    one.emit(record("job_info", jobid=9, rule_name="train", rule_msg="Train ddp, repeat 1"))
    log = tmp_path / "train.log"
    note(log, ValueError("no such row"))
    one.emit(record("job_error", jobid=9, rule_name="train", log=[str(log)]))
    monkeypatch.setattr(timekeeping, "REFINEMENT", log)
    monkeypatch.setattr(timekeeping, "LEAST_BYTES", 0)
    timekeeping.end(one)
    assert not [line for line in said if "disk" in line]
    said.clear()
    monkeypatch.setattr(timekeeping, "LEAST_BYTES", 2**80)
    timekeeping.end(one)
    assert said[0].startswith(f"Failed: Train ddp, repeat 1 ({log})\n")
    assert said[0].endswith("ValueError: no such row")
    assert "The disk is full." in said[1]


def test_a_job_that_succeeded_at_the_second_attempt_did_not_fail(tmp_path):
    """A cluster's profile retries a job that was preempted."""
    one, now, said = keeper(tmp_path, JOBS, FORECAST)
    one.emit(record("job_info", jobid=9, rule_name="train", rule_msg="Train ddp"))
    one.emit(record("job_error", jobid=9, rule_name="train", log=[]))
    run_job(one, now, 9, "train", 1.0)
    timekeeping.end(one)
    assert not [line for line in said if "Failed" in line]


def test_the_log_has_a_line_now_and_then_with_the_time_limit(tmp_path):
    one, now, said = keeper(tmp_path, dict(JOBS), FORECAST, asked=600.0)
    assert one.left().high < 600.0  # no job uses up the time
    one.todo["refine"] = 1
    run_job(one, now, 0, "page", 60.0)
    assert len(said) == 1
    assert "1:00 of 10:00, 9 min left" in said[0].replace("about ", "")
    for number in range(100):
        run_job(one, now, number, "train", LINE_SECONDS / 10)
    assert len(said) == 11


def test_jobs_should_take_as_long_as_before():
    known = {"train": JobTimes(count=2, seconds=20.0)}
    forecast = Forecast(known, fixed({"other": 2.0, "train": 1.5}), 1.0, 1.0, {"other": 0.5})
    found, guess = forecast.job("train"), forecast.job("other")
    assert found.low < 10.0 < found.high < 20.0
    assert fmean(found) == pytest.approx(10.0)
    both = forecast.jobs({"train": 3, "other": 4})
    assert fmean(both) == pytest.approx(3 * fmean(found) + 2 * fmean(guess))
    # Errors of different rules are independent.
    assert both.high < 3 * found.high + 2 * guess.high


def test_finished_trainings_correct_other_guesses():
    guessed = {"train": 16.0, "profile": 8.0, "turns": 8.0}
    known = {"train": JobTimes(count=2, seconds=16.0)}
    forecast, before = (Forecast(times, fixed(guessed), 1.0, 1.0, {}) for times in (known, {}))
    found = forecast.job("profile")
    assert found.low < 4.0 < found.high < 8.0
    guess = before.job("profile")
    assert found.high / found.low < guess.high / guess.low
    assert fmean(forecast.job("turns")) == pytest.approx(fmean(before.job("turns")) / 2)


def test_jobs_that_share_the_cores_do_not_make_steps_look_slow():
    asked, groups, shares = study(comparison={"budget": 1e-3}), {"a/1": 4}, {"short_run": 0.5}
    start, step = 0.5, 0.3
    # Two run at a time, each at half the speed.
    known = {
        "short_run": JobTimes(count=2, seconds=2 * (start + FEW_STEPS["short_run"] * 2 * step))
    }
    forecast = Forecast(known, partial(guesses, asked, 1, groups, shares), start, 0.1, shares)
    truth = guesses(asked, 1, groups, shares, start, step)
    assert fmean(forecast.job("turns a/1")) == pytest.approx(truth["turns a/1"])


def test_starts_and_steps_are_corrected_apart():
    """Quick jobs show how long a start takes, trainings how long a step takes."""
    asked = study(training={"steps": 100}, comparison={"budget": 1e-3}, search={"budget": 60.0})
    groups = {"a/1": 4}
    truth = guesses(asked, 1, groups, {}, 0.5, 0.3)
    known = {
        rule: JobTimes(count=2, seconds=2 * truth[rule])
        for rule in ("resolve_spec", "hardware", "train", "profile")
    }
    forecast = Forecast(known, partial(guesses, asked, 1, groups, {}), 4.0, 0.1, {})
    for job in ("turns a/1", "search", "memory", "combine"):
        assert fmean(forecast.job(job)) == pytest.approx(truth[job])
    # A job that ended is expected to take as long as it took.
    # It may be one for which there is no guess.
    slow = {rule: JobTimes(count=1, seconds=100.0) for rule in ("search", "compare")}
    forecast = Forecast(known | slow, partial(guesses, asked, 1, groups, {}), 4.0, 0.1, {})
    for job in slow:
        assert fmean(forecast.job(job)) == pytest.approx(100.0)


def test_turns_of_few_sides_correct_guesses_for_more_sides(tmp_path):
    guessed = {"turns a/1": 50.0, "turns a/2": 20.0}
    forecast = Forecast({}, fixed(guessed), 1.0, 1.0, {})
    one, now, _ = keeper(tmp_path, dict.fromkeys(guessed, 1), forecast)
    info = {"rule_name": "turns", "rule_msg": "Time", "wildcards": {"group": "a/2"}}
    one.emit(record("job_info", jobid=1, **info))
    now.now += 40.0
    one.emit(record("job_finished", job_id=1))
    assert fmean(one.left()) == pytest.approx(100.0)


def test_batches_are_guessed_from_the_lengths_of_sentences(tmp_path):
    """A limit of 128 tokens says nothing on sentences of twelve."""

    def step(lengths: LengthHistogram | None, **filter: int) -> float:
        of = study(batching={"kind": "fixed_size", "pairs": 32}, filter=filter)
        shared = of.model_dump(include={"batching", "filter"})
        spec = RunSpec.model_validate({"variant": "single", **shared})
        return step_seconds(of, {"single": spec}, 1e9, lengths)

    def all_of(length: int) -> LengthHistogram:
        return LengthHistogram(unit="tokens", source={length: 100}, target={length: 300})

    assert step(all_of(10), max_tokens=10) == pytest.approx(step(None, max_tokens=10))
    assert step(all_of(21)) == pytest.approx(2 * step(all_of(10)))
    assert step(None) == step(None, max_tokens=60) < step(all_of(60))
    # A batch is padded to its longest sentence.
    assert longest_of(1, {10: 1, 20: 3}) == pytest.approx(17.5)
    assert longest_of(2, {10: 1, 20: 3}) == pytest.approx(10 / 16 + 20 * 15 / 16)
    assert longest_of(32, {10: 1, 20: 3}) == pytest.approx(20.0)
    # The guess is made again after sentences have been tokenized.
    one, now, _ = keeper(tmp_path, {"shards": 1, "train": 1}, FORECAST)
    run_job(one, now, 1, "shards", 1.0)
    assert fmean(one.left()) == pytest.approx(50.0)


def study(**sections: Any) -> Study:
    return Study(name="test", variants=["single"], **sections)


def guessed(of: Study, rate: float, sides: int = 1) -> dict[str, float]:
    """Guesses for a study of one variant, and of a job with so many sides."""
    shared = of.model_dump(include={"model", "training"})
    spec = RunSpec.model_validate({"variant": "single", **shared})
    return guesses(of, 1, {"a/1": sides}, {}, 0.0, step_seconds(of, {"single": spec}, rate))


def test_guesses_grow_with_the_model_and_the_steps():
    def guess(width: int, steps: int) -> dict[str, float]:
        model = {"kind": "transformer", "d_model": width, "d_ff": 4 * width}
        return guessed(study(model=model, training={"steps": steps}), rate=1e12)

    long, short = guess(64, 1000), guess(64, 10)
    assert long["train"] == pytest.approx(100 * short["train"])
    assert guess(512, 10)["train"] > 8 * short["train"]
    # Short jobs take a few steps, however long a training is.
    assert all(long[rule] == short[rule] > 0 for rule in ("memory", "profile", "short_run"))
    # A search without a budget takes no time.
    assert not any("search" in guessed(study(search=s), 1e12) for s in (None, {"budget": 0.0}))


def test_interruptions_of_the_host_count(monkeypatch):
    """Others take nine tenths of the time, and let single products pass."""
    slow = (number % 10 > 0 for number in count())
    monkeypatch.setattr(
        timekeeping,
        "timeit",
        lambda work, number: sum(1e-2 if next(slow) else 1e-3 for _ in range(number)),
    )
    assert matrix_rate() == pytest.approx(2 * 512**3 / 9.1e-3)


def test_the_first_guess_does_not_depend_on_how_long_planning_took(tmp_path, monkeypatch):
    """In a new checkout, planning takes longer: all sources are parsed."""
    monkeypatch.chdir(tmp_path)
    jobs = [SimpleNamespace(rule=SimpleNamespace(name="certify"), threads=1)] * 100
    specs, said = {"single": RunSpec.model_validate({"variant": "single"})}, list[str]()
    for planning in (1.0, 9.0):
        monkeypatch.setattr(timekeeping.time, "process_time", lambda spent=planning: spent)
        end(begin(jobs, 1, study(), specs, {}, Path("none"), said.append, 1.0, 1e12))
    assert said[0] == said[1]


def test_memory_of_few_variants_is_predicted_in_no_less_time_than_one_process_takes():
    """One process is measured whatever the number of variants."""
    one, many = (guesses(study(), number, {}, {}, 1.0, 0.0)["predict_memory"] for number in (1, 20))
    assert one > 4
    assert many < 20 * one / 4


def test_turns_take_at_least_the_minimum_number_of_sessions():
    """With slow steps, these take longer than the budget."""

    def turns(sessions: int, sides: int) -> float:
        asked = study(comparison={"budget": 1.0, "sessions_least": sessions})
        return guessed(asked, 1e10, sides)["turns a/1"]

    assert turns(4, 2) > 1.0
    assert turns(8, 2) == pytest.approx(2 * turns(4, 2))

    def longer(window: float) -> float:
        asked = {"budget": 0.0, "pairs": 10, "sessions_least": 4, "window_seconds": window}
        return guessed(study(comparison=asked), 1e10, 2)["turns a/1"]

    assert longer(50.0) - longer(40.0) == pytest.approx(4 * 2 * 10 * 10.0)
    # The reference has two processes for four others, and three for nine.
    assert turns(4, 5) == pytest.approx(3 * turns(4, 2))
    assert turns(4, 10) == pytest.approx(6 * turns(4, 2))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (Range(20.2, 45.0), "20 to 45 s"),
        (Range(30.0, 30.3), "about 30 s"),
        (Range(200.0, 560.0), "3 to 9 min"),
        (Range(30.0, 400.0), "0.5 to 7 min"),
        (Range(8_000.0, 20_000.0), "2 to 6 h"),
    ],
)
def test_ranges_in_words(seconds, words):
    assert str(seconds) == words


@pytest.mark.parametrize(
    ("ended", "asked", "words"),
    [
        ([], None, "101 jobs: 3 to 11 min on this machine (a first guess: no such job has"),
        (["train"], None, "partly a guess: 1 of 2 kinds of jobs"),
        (["train", "turns"], None, "from earlier jobs of the same kind"),
        (
            ["train", "turns"],
            600.0,
            "The time limit is 10:00, of which 1:00 is spent."
            " The time left goes to undecided comparisons.",
        ),
        (
            ["train", "turns"],
            200.0,
            "The required jobs take longer: comparisons get only their first round.",
        ),
    ],
)
def test_the_message_at_the_start_gives_its_basis(ended, asked, words):
    counts = {"train": 100, "turns": 1}
    known = {rule: JobTimes(count=1, seconds=4.0) for rule in ended}
    forecast = Forecast(known, fixed({"train": 4.0}), 0.0, 1.0, {})
    said = at_the_start(16, counts, forecast, asked, 60.0)
    assert words in said
    assert at_the_start(1, {"train": 1}, forecast, None, 0.0).startswith("1 variant, 1 job: ")
    refined = at_the_start(16, counts | {"refine": 1}, forecast, asked, 60.0)
    assert refined == said.replace("101 jobs", "102 jobs"), "refining takes the time that is left"


def test_trying_techniques_on_a_training_takes_the_time_of_the_study():
    asked = study(time="3min")
    assert guesses(asked, 1, {}, {}, 1.0, 0.0)["tune"] == pytest.approx(181.0)
    forecast = Forecast({}, fixed({"tune": 181.0}), 0.0, 1.0, {})
    said = at_the_start(1, {"tune": 1}, forecast, 180.0, 0.0)
    assert "1 to 5 min on this machine" in said
    assert said.endswith("The time limit is 3:00. Techniques are tried until it is reached.")


def test_the_message_at_the_end_names_undecided_comparisons(tmp_path):
    file = tmp_path / "refinement.json"
    assert at_the_end(None, 10.0, file) == ""
    assert at_the_end(600.0, 580.0, file) == "9:40 of 10:00 is spent."
    found = refinement(Unsettled(variant="a", reference="b", seconds=90.0))
    file.write_text(found.model_dump_json())
    assert at_the_end(600.0, 580.0, file) == (
        "9:40 of 10:00 is spent. Undecided: a against b (about 1:30 more)."
        " With --config time=12min the same command continues them."
    )
    file.write_text(found.model_copy(update={"unsettled": []}).model_dump_json())
    compared = tmp_path / "comparisons.json"
    for counts, words in (
        (True, " Every comparison that counts has a verdict."),
        (False, " No comparison counts; the report says why."),
    ):
        one = comparison("a", "b", 1.1, 1.2).model_copy(update={"counts": counts})
        compared.write_text(f"[{one.model_dump_json()}]")
        assert at_the_end(600.0, 580.0, file) == f"9:40 of 10:00 is spent.{words}"
    compared.unlink()
    assert at_the_end(600.0, 580.0, file) == "9:40 of 10:00 is spent."
