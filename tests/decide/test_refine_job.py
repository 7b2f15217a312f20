"""The refine job from its command line: files of a study in, records and refinement.json out."""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis_builders import certificate
from pair_builders import compared

from schemas.config.measurement import Comparing
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.results import PairedRun, Refinement
from tests.orders import run_job
from tests.records import provenance
from transformer_core.common.digests import forget_all, write_result
from transformer_core.common.records import read_record
from transformer_core.common.study_clock import Clock
from transformer_core.decide import refine as job
from transformer_core.decide.next_sessions import Plan
from transformer_core.measure import comparison
from transformer_core.measure.sessions import Side, TurnsOrder

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
FAST = {"warmup_steps": 3, "window_seconds": 0.025, "pairs": 5, "budget": 0.1}
COMPARING = Comparing(**FAST, sessions_least=2, sessions_most=2, together=3)
VARIANTS = ("fast", "noisy")


@pytest.fixture
def results(monkeypatch, tmp_path):
    """Results of a study after the first round of its comparisons; sides without torch."""
    paths = [str(HERE.parents[1]), *(str(HERE.parent / name) for name in ("measure", "decide"))]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "turns.log"))
    monkeypatch.setattr(TurnsOrder, "worker", "fake_side")
    monkeypatch.setattr(comparison, "collect", lambda spec, command, started: provenance())
    monkeypatch.chdir(tmp_path)
    folder = Path("results")
    sides = []
    for name in ("single", *VARIANTS):
        spec = RunSpec(variant=name)
        write_result(folder / f"runs/{name}/spec.json", spec.canonical_json())
        write_result(folder / f"equivalence/{name}.json", certificate(name).model_dump_json())
        sides.append(Side(name, spec))
    runs = compared(sides, COMPARING, folder, tmp_path / "first")
    for name, run in runs.items():
        write_result(folder / f"turns/single/1/{name}/single.json", run.model_dump_json())
    return folder


def refine(results: Path, spent: float) -> tuple[Refinement, dict[str, PairedRun]]:
    """Run the job in a study of 1000 s, after so many seconds; returns its output."""
    names = ("single", *VARIANTS)
    study = Study(name="timed", variants=names, time="1000 s", comparison=COMPARING, search=None)
    forget_all()  # a real job has its own process
    clock = Clock(worked=spent, seen=time.time(), running=True)
    (results / ".clock.json").write_text(clock.model_dump_json())
    shutil.rmtree(results / "refined", ignore_errors=True)
    assert not run_job(
        "refine",
        study=study,
        data=results,
        specs=[results / f"runs/{name}/spec.json" for name in names],
        pairs=[results / f"turns/single/1/{name}/single.json" for name in VARIANTS],
        certificates=[results / f"equivalence/{name}.json" for name in names],
        claimed=[["fast", "single"]],
        of_turns="some",
        clock=results / ".clock.json",
        sessions=results / "refined.sessions",
        records=results / "refined",
        output=results / "refinement.json",
    )
    found = read_record(results / "refinement.json", Refinement)
    return found, {
        name: read_record(results / f"refined/{name}/single.json", PairedRun) for name in VARIANTS
    }


def short(plan: Callable[..., Plan] | None, *asked: Any) -> Plan | None:
    return plan and replace(plan(*asked), sessions=1, rounds=COMPARING.pairs)


def test_more_time_adds_sessions_and_keeps_earlier_ones(monkeypatch, results):
    monkeypatch.setattr(job, "kept_for_the_rest", lambda study, jobs: 1.0)
    none, first = refine(results, spent=999.5)
    assert none.stints == []
    assert {len(run.sessions) for run in first.values()} == {2}
    assert none.kept_seconds == 1.0
    plans = iter([job.next_plan])  # one short stint, however long the machine takes for it
    monkeypatch.setattr(job, "next_plan", lambda *asked: short(next(plans, None), *asked))
    more, second = refine(results, spent=0.0)
    assert [stint.variants for stint in more.stints] == [["noisy"]]
    added = second["noisy"].sessions
    assert added[:2] == first["noisy"].sessions
    assert len(added) == 2 + sum(stint.sessions for stint in more.stints)
    assert second["noisy"].looks == 1 + len(more.stints)
    assert second["fast"].model_dump() == first["fast"].model_dump()
    again, third = refine(results, spent=2000.0)
    assert again.stints == []
    assert third == second, "what was added stays when there is no more time"
    assert not [path for path in (results / "refined.sessions").iterdir() if path.is_dir()]


@pytest.mark.parametrize(("status", "named"), [("equivalent", ["noisy"]), ("inconclusive", [])])
def test_an_undecided_comparison_is_named_if_it_counts(monkeypatch, results, status, named):
    monkeypatch.setattr(job, "kept_for_the_rest", lambda study, jobs: 1.0)
    text = certificate("noisy", status).model_dump_json()
    write_result(results / "equivalence/noisy.json", text)
    found, _ = refine(results, spent=2000.0)
    assert [one.variant for one in found.unsettled] == named


def test_time_passes_although_the_clock_of_the_study_goes_back(monkeypatch, results):
    monkeypatch.setattr(job, "kept_for_the_rest", lambda study, jobs: 1.0)
    left: list[float] = []

    def spend(*given: Any, again: Any) -> list[Any]:
        for _ in range(2):
            left.append(given[-1]())
            (results / ".clock.json").unlink(missing_ok=True)
            time.sleep(0.01)
        return []

    monkeypatch.setattr(job, "spend", spend)
    refine(results, spent=500.0)
    assert 400 < left[1] < left[0] < 500
