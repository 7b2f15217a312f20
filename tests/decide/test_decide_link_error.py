"""The error of the emulated link, from runs that took turns on both."""

import json
from typing import Any

import pytest
from pair_builders import ended, paired, side

from schemas.config.parallel import LinkKind
from schemas.results import LinkUse, PairedRun
from tests.orders import run_job
from transformer_core.decide.link_error import EMULATED, REAL, judge, summarise

BANDWIDTH = 1e8


def trial(*ratios: float, kind: LinkKind = "namespaces", **changes: Any) -> PairedRun:
    """Sessions in which the emulated link has these throughputs, relative to the real one."""
    used = {REAL: kind, EMULATED: "emulated"}
    sides = [
        found.model_copy(
            update={
                "topology": found.topology
                and found.topology.model_copy(
                    update={"link": LinkUse(kind=used[found.name], bandwidth=BANDWIDTH)}
                )
            }
        )
        for found in (side(REAL), side(EMULATED))
    ]
    return paired(*ratios, reference=REAL, variant=EMULATED, sides=sides, **changes)


def test_a_smaller_throughput_is_a_longer_step():
    found = judge("ddp", BANDWIDTH, trial(0.8, 0.8))
    assert found.status == "ok"
    # The rounds scatter around the ratio by less than a hundredth in the middle.
    assert found.error == pytest.approx(1 / 0.8 - 1, abs=0.01)
    assert found.emulated_seconds / found.real_seconds == pytest.approx(1.25, rel=0.05)


def test_all_sessions_count():
    found = judge("ddp", BANDWIDTH, trial(0.9, 1.1, 1.1))
    assert found.error == pytest.approx(1 / 1.1 - 1, abs=0.02)


def test_two_emulated_links_are_no_check():
    found = judge("ddp", BANDWIDTH, trial(1.0, kind="emulated"))
    assert found.status == "unsupported"
    assert "cannot be made" in str(found.reason)
    assert (found.real_seconds, found.emulated_seconds, found.error) == (None, None, None)


def test_a_trial_that_ended_keeps_its_status():
    run = ended("oom", "too large", EMULATED, REAL)
    found = judge("ddp", BANDWIDTH, run)
    assert (found.status, found.reason, found.error) == ("oom", "too large", None)


def test_errors_are_summarised_without_their_sign():
    ratios = {"a": 1.1, "b": 0.98, "c": 1.0}
    trials = [judge(name, BANDWIDTH, trial(ratio)) for name, ratio in ratios.items()]
    trials.append(judge("d", BANDWIDTH, ended("oom", "too large", EMULATED, REAL)))
    summary = summarise(trials)
    assert [t.name for t in summary.trials] == ["a", "b", "c", "d"]
    assert summary.median_error == pytest.approx(0.02, abs=0.01)
    assert summary.worst_error == pytest.approx(0.09, abs=0.015)
    nothing = summarise(trials[-1:])
    assert (nothing.median_error, nothing.worst_error) == (None, None)


def test_the_job_writes_all_trials(tmp_path):
    (tmp_path / "0.json").write_text(trial(0.8).model_dump_json())
    (tmp_path / "1.json").write_text(trial(1.0, kind="emulated").model_dump_json())
    trials = [("ddp", 1e8, tmp_path / "0.json"), ("ring", 1e9, tmp_path / "1.json")]
    assert run_job("link_error", trials=trials, output=tmp_path / "error.json") == 0
    written = json.loads((tmp_path / "error.json").read_text())
    assert [(t["name"], t["bandwidth"]) for t in written["trials"]] == [("ddp", 1e8), ("ring", 1e9)]


def test_a_missing_trial_is_named(tmp_path, capsys):
    trials = [("ddp", 1e8, tmp_path / "none.json")]
    assert run_job("link_error", trials=trials, output=tmp_path / "error.json") == 1
    assert "none.json" in capsys.readouterr().err
