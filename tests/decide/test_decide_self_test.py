"""The self-test's report, on sessions with planted differences."""

import numpy as np
import pytest
from pair_builders import session, side, window

from schemas.config.measurement import Comparing, SelfTest
from schemas.config.run_spec import RunSpec
from schemas.results import Interval, Round, Session
from schemas.results.comparisons import SelfTestKind, SelfTestReport, SelfTestRun
from tests.orders import run_job
from tests.records import provenance
from transformer_core.common.digests import forget_all
from transformer_core.decide import self_test_report
from transformer_core.measure import self_test
from transformer_core.measure.sessions import SessionEndedError, Sessions
from transformer_core.run.statuses import Outcome

PLANTED = {"equal": 0.0, "equal_too": 0.0, "by_30": 0.03, "by_50": 0.05, "by_100": 0.10}


def run(noise: float, comparisons: int = 40, between: float = 0.0, **shown: float) -> SelfTestRun:
    """Sessions whose windows scatter by ``noise``, and whose sides by ``between``; ``shown`` are
    the slow-downs that the machine shows instead of the planted ones."""
    random = np.random.default_rng(3)
    sessions = []
    for number in range(1, 2 * comparisons + 1):
        own = {name: np.exp(between * random.normal()) for name in PLANTED}
        rounds = []
        for _ in range(8):
            drift = np.exp(0.2 * random.normal())
            rates = {"reference": drift * np.exp(noise * random.normal())}
            for name, share in (PLANTED | shown).items():
                rates[name] = drift * own[name] / (1 + share) * np.exp(noise * random.normal())
            rounds.append(Round(windows=[window(name, float(r)) for name, r in rates.items()]))
        sides = [side("reference"), *(side(n, planted=share) for n, share in PLANTED.items())]
        sessions.append(session(1.0, number, sides=sides, rounds=rounds))
    return SelfTestRun(
        reference="reference",
        sessions_each=2,
        comparing=Comparing(),
        sessions=sessions,
        seconds=900.0,
        provenance=provenance(),
    )


def reported(sessions: SelfTestRun) -> tuple[SelfTestReport, dict[float, SelfTestKind]]:
    """The report, and its kinds by planted share."""
    report = self_test_report.report(sessions, together=13, margin=0.02)
    return report, {kind.planted: kind for kind in report.kinds}


def test_a_quiet_machine_passes():
    report, kinds = reported(run(noise=0.008))
    assert report.holds, report.reason
    assert list(kinds) == [0.0, 0.03, 0.05, 0.1]
    assert [kind.called_different.total for kind in report.kinds] == [80, 40, 40, 40]
    assert kinds[0.0].called_different.count == 0
    assert kinds[0.05].verdicts == {"SLOWER": 40}
    assert kinds[0.1].called_different.low > 0.9
    assert kinds[0.1].ratio == pytest.approx(1 / 1.1, abs=0.01)
    assert kinds[0.03].required == ""
    assert all(kind.wrong == 0 and kind.covered.count >= 38 for kind in report.kinds)
    assert report.error_within == pytest.approx(0.008 * np.sqrt(2 / 8), rel=0.5)


def test_a_single_session_finds_nothing_as_in_a_study():
    report, kinds = reported(run(noise=0.008).model_copy(update={"sessions_each": 1}))
    assert not report.holds
    assert kinds[0.1].verdicts == {"UNDECIDED": 80}


def test_a_noisy_machine_is_undecided_not_wrong():
    report, kinds = reported(run(noise=0.3))
    assert not report.holds
    assert "at least 90 % of 5 % called SLOWER" in report.reason
    assert kinds[0.05].verdicts["UNDECIDED"] > 35
    assert sum(kind.wrong for kind in report.kinds) <= 2


def test_differences_between_processes_are_seen():
    report, kinds = reported(run(noise=0.01, between=0.03))
    assert report.deviation_between == pytest.approx(0.03, rel=0.3)
    assert kinds[0.0].called_different.count <= 2


def test_a_missed_slow_down_fails():
    report, kinds = reported(run(noise=0.005, **dict.fromkeys(PLANTED, 0.0)))
    assert not report.holds
    assert kinds[0.0].holds
    # A planted slow-down that has no effect is called SAME: wrong if it exceeds the margin.
    assert kinds[0.1].wrong == kinds[0.1].verdicts["SAME"] > 30


def test_false_alarms_fail():
    report, kinds = reported(run(noise=0.001, equal=0.05, equal_too=0.05))
    equal = kinds[0.0]
    assert (equal.holds, equal.called_different.count, equal.wrong) == (False, 80, 80)
    assert "at most 1 of 80 equal sides" in report.reason


@pytest.mark.parametrize(("alarms", "of", "holds"), [(1, 40, True), (2, 40, False), (4, 400, True)])
def test_one_in_a_hundred_equal_sides_may_be_called_different(alarms, of, holds):
    """5 % of comparisons would be a false alarm in every second study of 16."""
    found = [Interval(median=1.1, low=1.05, high=1.15, samples=8)] * alarms
    found += [Interval(median=1, low=0.9, high=1.1, samples=8)] * (of - alarms)
    assert self_test_report._kind(0.0, found, 0.02, sessions=2).holds == holds


@pytest.mark.parametrize(("groups", "size"), [(40, 3), (40, 4), (2, 4), (7, 3), (1, 1)])
def test_every_group_is_in_one_part(groups, size):
    numbered = [{str(number): []} for number in range(groups)]
    parts = self_test_report._parts(numbered, size)
    assert [group for part in parts for group in part] == numbered
    assert all(len(part) >= min(size, groups) for part in parts)


def test_job(tmp_path):
    sessions = tmp_path / "sessions.json"
    sessions.write_text(run(noise=0.01, comparisons=4).model_dump_json())
    output = tmp_path / "report.json"
    asked = {"sessions": sessions, "together": 4, "margin": 0.02, "output": output}
    assert run_job("self_test_report", **asked) == 0
    assert SelfTestReport.model_validate_json(output.read_text()).sessions_each == 2


@pytest.mark.parametrize(
    ("code", "cpu", "sessions"),
    [("same", "here", [2]), ("newer", "here", [1, 2]), ("same", "there", [1, 2])],
)
def test_sessions_before_a_side_failed_count_for_the_same_code_and_machine(
    tmp_path, monkeypatch, code, cpu, sessions
):
    ran: list[int] = []

    def run(sessions: Sessions, number: int, enough: object) -> Session:
        ran.append(number)
        if ran == [1, 2]:
            raise SessionEndedError("reference", Outcome(status="failed", reason="lost"))
        return session(1.0, number)

    monkeypatch.setattr(Sessions, "run", run)
    monkeypatch.setattr(self_test, "collect", lambda *_: provenance())
    (tmp_path / "spec.json").write_text(RunSpec(variant="single").canonical_json())
    files = {name: tmp_path / f"{name}.json" for name in ("spec", "output", "target")}
    asked = {"data": tmp_path, "self_test": SelfTest(comparisons=2), **files}
    asked["comparing"] = Comparing(sessions_least=1)
    hardware = provenance().hardware
    for said, where, ended in (("same", "here", 1), (code, cpu, 0)):
        found = hardware.model_copy(update={"cpu": where})
        monkeypatch.setattr(self_test, "read_hardware", lambda found=found: found)
        forget_all()  # a job has its own process
        assert run_job("self_test", **asked, code=said) == ended
    assert ran == [1, 2, *sessions]
    assert not (tmp_path / "output").exists(), "complete sessions are in the result"
