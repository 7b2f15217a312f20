"""The search, on sessions with known true speeds."""

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from math import hypot, log, prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from analysis_builders import certificate
from claim_builders import comparison
from kernels_seen import KERNELS
from pair_builders import session, side, window

from schemas.config.measurement import Statistical
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.results import (
    Certificate,
    Comparison,
    Effect,
    Provenance,
    Round,
    SearchResult,
    Session,
)
from schemas.results.common import BASELINE, BEST
from schemas.results.runs import StepKernels
from tests.records import provenance
from transformer_core.certify.kernels import uncertified
from transformer_core.decide import search as search_job
from transformer_core.decide import search_final, search_trials
from transformer_core.decide.intervals import exact
from transformer_core.decide.search import recommended_yaml, search
from transformer_core.decide.search_moves import (
    Exploration,
    considered,
    own_effects,
    space_of,
)
from transformer_core.decide.search_trials import Trial
from transformer_core.machine.provenance import package_versions
from transformer_core.measure.sessions import SessionEndedError
from transformer_core.run.statuses import Outcome
from transformer_core.study.resolve import combine, spec_of


def variant(change: dict[str, Any], parent: str | None = "single") -> Variant:
    return Variant.model_validate(
        {"parent": parent, "change": change, "equivalence": "tolerance", "summary": "A test."}
    )


VARIANTS = {
    "single": variant({"parallel": {"kind": "single"}}, None),
    "bf16": variant({"training": {"precision": {"kind": "bf16"}}}),
    "ddp": variant({"parallel": {"kind": "ddp"}}, None),
    "view": variant({"parallel": {"bucket_view": True}}, "ddp"),
    "rare": variant({"training": {"log_every": 50}}),
}
STUDY = Study(
    name="test",
    variants=list(VARIANTS),
    baseline="single",
    training={"steps": 100},
    search={"budget": 1000, "largest": 3},
)


def parts_in(spec: RunSpec) -> set[str]:
    """The variants whose changes a run spec has."""
    has = {
        "bf16": spec.training.precision.kind == "bf16",
        "ddp": spec.parallel.kind == "ddp",
        "view": getattr(spec.parallel, "bucket_view", False),
        "rare": spec.training.log_every == 50,
    }
    return {name for name, there in has.items() if there}


def speed(parts: set[str]) -> float:
    """True speeds: bfloat16 helps, and more so with two devices, which do not help alone."""
    alone = {"bf16": 1.3, "ddp": 0.9, "rare": 0.97, "view": 1.0}
    return prod(alone[part] for part in parts) * (1.6 if {"bf16", "ddp"} <= parts else 1.0)


MOST_SESSIONS = 20


class Bench:
    """Stands in for the sessions; records their requests."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.asked: list[list[str]] = []
        self.numbers: list[int] = []  # of the sessions, which give each its seed
        self.breaks: Callable[[bool, set[str]], bool] = lambda final, parts: False
        """Whether a combination cannot run, in the search or in the final comparison."""
        self.ending = Outcome(status="oom", reason="no memory")
        """How that ends."""
        self.again = 0  # failures that may be temporary
        self.speed = self.final_speed = speed
        self.odd: Callable[[str, set[str]], bool] = lambda side, parts: False
        """Whether a side is timed with another allocator than the certified one."""
        self.verdicts: dict[frozenset[str], str] = {}
        """Certificate statuses of combinations, if not equivalent."""

        def certify(bench: Any, trial: Any) -> Certificate:
            status = self.verdicts.get(trial.parts, "equivalent")
            return certificate_of(trial.spec, "recommended", status)

        patch.setattr(search_final, "_certificate", certify)
        more = search_trials.Bench.more
        patch.setattr(
            search_trials.Bench, "more", lambda b: more(b) and len(self.asked) < MOST_SESSIONS
        )
        patch.setattr(search_job, "profile_of", lambda bench, spec: None)
        patch.setattr(search_job, "collect", lambda *_: measured_here())
        patch.setattr(search_job, "count_failure", self.count_failure)
        patch.setattr(
            search_trials.Sessions, "opened", lambda *asked: nullcontext(Turns(self, *asked))
        )

    def run(self, study: Study = STUDY, wide: float = 1.0, **certified: str) -> SearchResult:
        """A search; variants are equivalent unless given, and their intervals are ``wide``."""
        self.asked.clear()
        certificates = {
            name: certificate_of(
                spec_of(study, name, VARIANTS), name, certified.get(name, "equivalent")
            )
            for name in VARIANTS
        }
        measured = comparisons(certified, wide)
        place = self.folder
        job = search_job.SearchJob(
            study=study,
            variants=VARIANTS,
            comparisons=place / "comparisons.json",
            certificates=[],
            reference=place / "reference",
            data=place / "data",
            output=place / "search.json",
            recommended=place / "recommended.yaml",
        )
        return search(job, measured, certificates)

    def count_failure(self, _: Path) -> None:
        self.again += 1


class Turns:
    """Sessions of a search, whose sides have known speeds."""

    def __init__(self, bench: Bench, sides: Any, comparing: Any, data: Path, folder: Path, *_: Any):
        self.bench, self.sides, self.final = bench, sides, folder.name == "final"
        self.speed = bench.final_speed if self.final else bench.speed

    def run(self, number: int, enough: Any) -> Session:
        self.bench.asked.append([one.name for one in self.sides])
        self.bench.numbers.append(number)
        windows, sides = [], []
        for one in self.sides:
            parts = parts_in(one.spec)
            if self.bench.breaks(self.final, parts):
                raise SessionEndedError(one.name, self.bench.ending)
            used = kernels(one.spec, "another" if self.bench.odd(one.name, parts) else "usual")
            sides.append(side(one.name).model_copy(update={"kernels": used}))
            windows.append(window(one.name, 1000 * self.speed(parts)))
        return session(1.0, number, sides=sides, rounds=[Round(windows=windows)] * 8)


@cache
def measured_here() -> Provenance:
    return provenance(packages=package_versions())


def kernels(spec: RunSpec, allocator: str = "usual") -> StepKernels:
    """The kernels that compute a run spec."""
    operators = [f"mm {spec.training.precision.kind}"]
    operators += ["all_reduce"] * ("ddp" in parts_in(spec))
    return KERNELS.model_copy(update={"operators": operators, "allocator": allocator})


def certificate_of(spec: RunSpec, name: str, status: str) -> Certificate:
    """A certificate that names its kernels."""
    known = {"reason": "a reason", "kernels": kernels(spec), "provenance": measured_here()}
    return certificate(name, status).model_copy(update=known)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return Bench(tmp_path, monkeypatch)


@pytest.fixture
def hurried(bench, monkeypatch):
    """The sessions of a search with time for its first combination only."""
    monkeypatch.setattr(search_trials.Bench, "more", lambda self: False)
    monkeypatch.setattr(Exploration, "_promising", lambda self: [frozenset({"ddp", "bf16"})])
    monkeypatch.setattr(Exploration, "_may_help", lambda self, part: False)
    return bench


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """A search without faults, and the requests of its sessions."""
    with pytest.MonkeyPatch.context() as patch:
        made = Bench(tmp_path_factory.mktemp("usual"), patch)
        return made.run(), made.asked


def searching(**settings: int) -> Study:
    """The study with these settings of its search."""
    return STUDY.model_copy(update={"search": STUDY.search.model_copy(update=settings)})


def comparisons(certified: Mapping[str, str], wide: float) -> list[Comparison]:
    """Ratios of every variant from turns, with intervals that are ``wide``."""
    found = []
    for name, ratio in {"bf16": 1.3, "ddp": 0.9, "view": 0.9, "rare": 0.97}.items():
        status = certified.get(name, "equivalent")
        counting = {"certificate": status, "counts": status == "equivalent"}
        one = comparison(name, "single", ratio / wide, ratio * wide)
        found.append(one.model_copy(update=counting))
    return found


def test_it_finds_techniques_that_pay_only_together(usual):
    found, asked = usual
    assert (found.status, {*found.parts} - {"view"}) == ("found", {"bf16", "ddp"})
    assert found.spec.training.precision.kind == "bf16"
    assert found.waterfall[0].changes == ["bf16"]
    final = found.waterfall[-1].effect
    assert final.ratio.median == pytest.approx(1.3 * 0.9 * 1.6)
    assert final.verdict == "FASTER"
    without = {stage.changes[0]: stage.effect.ratio for stage in found.left_out}
    assert without["bf16"].median == pytest.approx(0.9)
    assert 3 in [len(item.parts) for item in found.contenders], "it starts from all that fit"
    assert all(names[0] == BASELINE for names in asked)


def test_the_recommended_spec_is_readable_and_states_the_possible_further_gain(usual):
    found, _ = usual
    assert 1.0 <= found.regret.low <= found.regret.median <= found.regret.high
    assert found.regret.high < 1.01, "every step was tried, none of which gains, without noise"
    text = recommended_yaml(found)
    assert "Any other combination is at most" in text
    assert RunSpec.model_validate(yaml.safe_load(text)) == found.spec
    assert "Certificate: equivalent" in text


@pytest.mark.parametrize("fastest", ["bf16", "view"])
def test_no_certified_variant_is_faster_than_the_recommendation(hurried, fastest):
    """If the turns left open which variant is the fastest, the final comparison includes each of
    them as a whole."""
    truth = spec_of(STUDY, fastest, VARIANTS).model_copy(update={"variant": "recommended"})
    hurried.speed = lambda parts: 1.1
    hurried.final_speed = lambda parts: 1.6 if parts == parts_in(truth) else 1.0
    found = hurried.run(wide=2.0)
    assert (found.status, found.spec) == ("found", truth)
    assert found.waterfall[-1].effect.ratio.median == pytest.approx(1.6)
    assert not found.bundle, "a variant is the sum of its techniques"
    shown = [*found.waterfall, *found.beyond, *found.left_out, *found.rivals]
    assert "rare" in [part for stage in found.rivals for part in stage.parts]
    assert len({tuple(stage.parts) for stage in shown}) == len(found.sessions[0].sides) - 1


def test_variants_that_may_be_the_fastest_take_the_time_of_stages(hurried, monkeypatch):
    three = frozenset({"ddp", "bf16", "rare"})
    monkeypatch.setattr(Exploration, "_promising", lambda self: [three])
    sides = {}
    for wide in (1.0, 2.0):
        for affordable in (1, 2):
            monkeypatch.setattr(search_trials.Bench, "affordable", lambda self, n=affordable: n)
            sides[wide, affordable] = len(hurried.run(wide=wide).sessions[0].sides)
    assert sides[1.0, 1] < sides[1.0, 2] < sides[2.0, 1] == sides[2.0, 2]


def test_a_variant_that_seems_faster_than_the_winner_is_measured_too(hurried):
    """The search's best looks much faster than any variant, and is not."""
    hurried.final_speed = lambda parts: 1.35 if {"bf16"} == parts - {"rare"} else 1.0
    found = hurried.run()
    assert (found.parts, found.waterfall[-1].effect.ratio.median) == (["bf16"], pytest.approx(1.35))
    numbers = [session.number for session in found.sessions]
    assert len({*hurried.numbers}) == 1 + len(numbers), "each session has its own seed"
    hurried.run()
    assert not hurried.asked, "complete sessions count"


def test_a_variant_measured_later_is_no_stage_measured_before(hurried, monkeypatch):
    """A stage cannot run; then a variant is measured in further sessions, beside other stages."""
    monkeypatch.setattr(
        Exploration, "_promising", lambda self: [frozenset({"ddp", "bf16", "rare"})]
    )
    hurried.final_speed = lambda parts: {"bf16": 1.25, "bf16 ddp": 0.5}.get(
        " ".join(sorted(parts)), 1.0
    )
    hurried.breaks = lambda final, parts: final and parts == {"bf16", "rare"}
    found = hurried.run()
    assert found.parts == ["bf16"]
    assert found.stage.effect.ratio.median == pytest.approx(1.25)
    without = {tuple(stage.parts): stage.effect.ratio.median for stage in found.beyond}
    assert without.get(("bf16", "ddp"), 0.5) == pytest.approx(0.5)


def test_the_result_says_which_side_of_the_sessions_is_recommended(bench):
    bench.speed = lambda parts: speed(parts) * (1.05 if "view" in parts else 1.0)
    bench.final_speed = lambda parts: speed(parts) * (0.95 if "view" in parts else 1.0)
    found = bench.run()
    assert found.parts == ["bf16", "ddp"]
    took = {window.side: window for window in found.sessions[0].rounds[0].windows}
    rate = took[found.side].tokens / took[found.side].seconds
    assert rate == pytest.approx(1000 * bench.final_speed({"bf16", "ddp"}))


def test_a_winner_without_certificate_is_passed_over(bench, usual):
    first = usual[0]
    bench.verdicts = {frozenset(first.parts): "not_equivalent"}
    second = bench.run()
    assert second.status == "found"
    assert set(second.parts) != set(first.parts)
    passed = next(c for c in second.contenders if c.parts == first.parts)
    assert passed.certificate == "not_equivalent"


@pytest.mark.parametrize(
    ("alone", "truth", "parts"),
    [
        # All promise much alone but hinder one another: two are removed.
        (
            {"bf16": (0.4, 0.01), "ddp": (0.2, 0.01), "rare": (0.2, 0.01)},
            lambda parts: (1.5 if "bf16" in parts else 1.0) * 0.9 ** len(parts & {"ddp", "rare"}),
            {"bf16"},
        ),
        # A single effect below 1, whose interval reaches above 1, pays together with another.
        (
            {"bf16": (0.3, 0.01), "ddp": (-0.5, 0.01), "rare": (-0.05, 0.05)},
            lambda parts: (1.5 if "rare" in parts else 1.2) if "bf16" in parts else 0.95,
            {"bf16", "rare"},
        ),
    ],
    ids=["left out", "added"],
)
def test_effects_with_others_count_more_than_those_alone(bench, monkeypatch, alone, truth, parts):
    monkeypatch.setattr(search_job, "own_effects", lambda *_: alone)
    bench.speed = bench.final_speed = truth
    study = STUDY.model_copy(update={"variants": ["single", "bf16", "ddp", "rare"]})
    found = bench.run(study)
    assert set(found.parts) == parts


def test_the_recommendation_is_the_fastest_stage_shown(bench):
    """The search also chose a bucket view, which the final comparison finds to be slower."""
    bench.speed = lambda parts: speed(parts) * (1.05 if "view" in parts else 1.0)
    bench.final_speed = lambda parts: speed(parts) * (0.95 if "view" in parts else 1.0)
    found = bench.run()
    assert (found.status, found.parts) == ("found", ["bf16", "ddp"])
    assert found.certificate is not None
    assert [stage.changes for stage in found.waterfall] == [["bf16"], ["ddp"]]
    assert [stage.changes for stage in found.beyond] == [["view"]]
    assert "Throughput 1.872 x" in recommended_yaml(found)
    bench.verdicts = {frozenset({"bf16", "ddp"}): "not_equivalent"}
    unlike = bench.run()
    assert set(unlike.parts) == {"bf16", "ddp", "view"}, "a stage needs its own certificate"
    assert unlike.beyond == []
    (seen,) = [c for c in unlike.contenders if c.parts == ["bf16", "ddp"]]
    assert seen.certificate == "not_equivalent"


def test_turns_with_uncertified_kernels_win_nothing(bench):
    bench.speed = lambda parts: speed(parts) * (1.05 if "view" in parts else 1.0)
    bench.odd = lambda side, parts: "view" in parts
    found = bench.run()
    passed = [c for c in found.contenders if c.certificate == "inconclusive"]
    assert (found.status, found.parts) == ("found", ["bf16", "ddp"])
    assert ["bf16", "ddp", "view"] in [c.parts for c in passed]
    assert all("view" in c.parts for c in passed)


@pytest.mark.parametrize("name", ["best", BASELINE])
def test_a_final_comparison_with_uncertified_kernels_shows_nothing(bench, name):
    bench.odd = lambda side, parts: side == name
    found = bench.run()
    assert (found.status, found.parts) == ("baseline", [])
    said = f"{name} was timed differently than certified (the allocator: another where timed"
    assert found.reason.startswith(said)


def test_a_stage_names_its_uncertified_kernels(bench, monkeypatch):
    bench.speed = bench.final_speed = lambda parts: speed(parts) * (1.05 if "view" in parts else 1)
    found = bench.run()
    assert all(not stage.uncertified for stage in (*found.waterfall, *found.left_out))
    monkeypatch.setattr(
        search_final, "uncertified", lambda s, side, known: uncertified(s, side, known[:1])
    )
    found = bench.run()
    stages = {tuple(stage.parts): stage.uncertified for stage in found.waterfall}
    assert stages["bf16",] == [], "a certified variant of the study"
    assert stages["bf16", "ddp"] == ["all_reduce", "mm bf16"]


def test_the_certificate_of_a_stage_that_wins_covers_its_operators(bench, monkeypatch):
    """It runs one that neither a variant of the study nor the best combination of the search runs."""
    real = kernels

    def joint(spec, *allocator):
        found = real(spec, *allocator)
        both = ["joint"] * (parts_in(spec) == {"bf16", "ddp"})
        return found.model_copy(update={"operators": [*found.operators, *both]})

    monkeypatch.setitem(globals(), "kernels", joint)
    bench.speed = lambda parts: speed(parts) * (1.05 if "view" in parts else 1.0)
    bench.final_speed = lambda parts: speed(parts) * (0.95 if "view" in parts else 1.0)
    found = bench.run()
    assert found.parts == ["bf16", "ddp"]
    assert [stage.uncertified for stage in found.waterfall] == [[], []]


def test_a_combination_gets_a_certificate_like_a_variant(tmp_path, monkeypatch):
    """However long the names of its techniques are; more seeds are trained if the first decide nothing."""
    names = [f"a_technique_with_a_rather_long_name_{number}" for number in range(9)]
    fewer_bits = VARIANTS["bf16"].model_copy(
        update={"equivalence": Statistical(kind="statistical", seeds=2, loss=0.01)}
    )
    place = {"folder": tmp_path, "reference": tmp_path / "reference", "data": tmp_path / "data"}
    bench = SimpleNamespace(
        study=STUDY, variants=VARIANTS | dict.fromkeys(names, fewer_bits), **place
    )
    asked: list[Any] = []

    def run(command, **_):
        asked.append(json.loads(command[-1]))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(search_final.subprocess, "run", run)
    monkeypatch.setattr(search_final, "certify_files", lambda *given: given)
    trial = Trial(frozenset(names), spec_of(STUDY, "bf16", VARIANTS), 1.5)
    _, record, reference = search_final._certificate(bench, trial)
    looks = {"seeds": 4, "first_look": 2, "margin": 0.01, "reference": str(reference)}
    (order,) = asked
    assert order | looks | {"output": str(record.parent)} == order
    assert order["budget"] == STUDY.certificate.budget > 0


def test_variants_without_certificate_take_no_part(bench):
    found = bench.run(bf16="not_equivalent")
    assert (found.status, found.parts) == ("baseline", [])
    assert found.spec.training.precision.kind == "fp32"


def test_a_variant_that_means_nothing_for_the_task_takes_no_part(bench, monkeypatch):
    monkeypatch.setitem(VARIANTS, "liger", variant({"model": {"kernels": "liger"}}))
    found = bench.run(Study(**STUDY.model_dump() | {"variants": [*VARIANTS]}), liger="unsupported")
    assert found.status == "found"
    assert not any("liger" in parts for parts in bench.asked)


def test_a_combination_that_cannot_run_loses_with_its_status(bench):
    bench.breaks = lambda final, parts: "ddp" in parts
    found = bench.run()
    assert found.parts == ["bf16"]
    ended = [item for item in found.contenders if "ddp" in item.parts]
    assert {(item.status, item.reason) for item in ended} == {("oom", "no memory")}
    bench.breaks = lambda final, parts: bool(parts)
    found = bench.run()
    assert (found.status, {item.status for item in found.contenders}) == ("baseline", {"oom"})
    assert re.fullmatch(
        r"no combination that was tried could run: .* oom, no memory; and \d more", found.reason
    )


KILLED = Outcome(status="failed", reason="a process\nwas killed", again=True)


@pytest.mark.parametrize("in_final", [False, True])
def test_a_baseline_that_ends_ends_the_search(bench, in_final):
    bench.breaks = lambda final, parts: not parts and final == in_final
    found = bench.run()
    assert (found.status, found.parts, bench.again) == ("not_searched", [], 0)
    assert found.reason == "the search ended early: baseline: oom, no memory"
    bench.ending = KILLED
    found = bench.run()
    assert (found.status, bench.again) == ("not_searched", 1), "the same command tries again"
    assert RunSpec.model_validate(yaml.safe_load(recommended_yaml(found))) == found.spec


def test_a_killed_combination_is_measured_again_by_the_same_command(bench):
    bench.breaks = lambda final, parts: parts == {"ddp", "bf16"}
    bench.ending = KILLED
    assert bench.run().status == "found"
    assert bench.again == 1


def test_every_session_of_a_search_has_its_own_seed(bench):
    """Also those of a search that resumes."""
    bench.run()
    ended = bench.asked.index(next(asked for asked in bench.asked if BEST in asked))
    assert ended > 2
    assert bench.numbers[:ended] == [*range(1, ended + 1)]
    assert len({*bench.numbers}) == len(bench.numbers)
    shutil.rmtree(bench.folder / "search")
    bench.numbers.clear()
    bench.ending = KILLED
    bench.breaks = lambda final, parts: not parts and len(bench.asked) == 2
    assert bench.run().status == "not_searched"
    bench.breaks = lambda final, parts: False
    bench.run()
    assert bench.numbers[:3] == [1, 2, 2]


@pytest.mark.parametrize("in_final", [False, True])
def test_a_search_that_lost_a_side_keeps_its_sessions(bench, in_final):
    bench.run()
    whole = [*bench.asked]
    shutil.rmtree(bench.folder / "search")
    lost = len(whole) if in_final else 2
    bench.ending = KILLED
    bench.breaks = lambda final, parts: not parts and len(bench.asked) == lost
    assert bench.run().status == "not_searched"
    bench.breaks = lambda final, parts: False
    found = bench.run()
    assert found.parts == ["bf16", "ddp"]
    assert len(bench.asked) == len(whole) - (lost - 1), "complete sessions count"
    bench.run(searching(largest=2))
    assert len(bench.asked) >= len(whole) - 1, "another search starts from the beginning"


def test_the_final_comparison_goes_on_without_what_cannot_run(bench):
    """A stage may need more memory than the combination itself."""
    bench.speed = bench.final_speed = lambda parts: speed(parts) * (1.05 if "view" in parts else 1)
    bench.breaks = lambda final, parts: final and parts == {"bf16", "ddp"}
    found = bench.run()
    assert set(found.parts) == {"bf16", "ddp", "view"}
    assert [stage.changes for stage in found.waterfall] == [["bf16"], ["ddp", "view"]]
    bench.breaks = lambda final, parts: final and "view" in parts and "bf16" in parts
    second = bench.run()
    assert second.parts == ["bf16", "ddp"]
    (first,) = [c for c in second.contenders if c.parts == found.parts]
    assert (first.status, first.reason) == ("oom", "no memory")


def test_no_more_trainings_at_once_than_allowed_including_the_winner(bench):
    """Whether or not the final comparison has room for its stages."""
    found = bench.run(searching(together=3, largest=5))
    assert max(map(len, bench.asked)) == 3
    assert found.status == "found"
    assert set(found.parts) in [set(stage.parts) for stage in found.waterfall]


def test_a_variant_without_parent_changes_the_study_not_the_baseline():
    slow = variant({"training": {"optimizer": {"kind": "adam"}}})
    adam, names = {**VARIANTS, "slow": slow}, ["slow", "single", "ddp", "bf16"]
    study = STUDY.model_copy(update={"baseline": "slow", "variants": names})
    # The study itself is twice as fast as the baseline; two devices are no faster than it.
    ratios = {"single": 2.0, "ddp": 1.8, "bf16": 2.2}
    measured = [comparison(name, "slow", ratio, ratio) for name, ratio in ratios.items()]
    effects = {name: effect for name, (effect, _) in own_effects(study, adam, measured).items()}
    assert effects["ddp"] == pytest.approx(log(0.9))
    assert effects["bf16"] == pytest.approx(log(1.1))
    # Beside a parent that was measured too, both have an error.
    wide = [comparison("single", "slow", 1.6, 2.5), comparison("ddp", "slow", 1.7, 1.9)]
    errors = {name: error for name, (_, error) in own_effects(study, adam, wide).items()}
    assert errors["ddp"] == pytest.approx(hypot(log(2.5 / 1.6), log(1.9 / 1.7)) / 6)
    space = space_of(study, adam, ["single", "ddp", "bf16"], effects)
    # A technique that only sets a single process is in no combination.
    assert space.parts == ("bf16", "ddp")
    assert considered(space) == 3


def test_a_search_without_certificates_names_the_first_reasons(bench):
    found = bench.run(**dict.fromkeys(VARIANTS, "failed"))
    assert found.status == "not_searched"
    assert found.reason == "the baseline has no certificate: single failed, a reason"
    others = dict.fromkeys(VARIANTS, "unsupported") | {"single": "equivalent"}
    said = "bf16 unsupported, a reason; ddp unsupported, a reason; and 2 more"
    assert bench.run(**others).reason.endswith(f"but the baseline has a certificate: {said}")
    alone = STUDY.model_copy(update={"variants": ["single"]})
    assert bench.run(alone).reason == "the study has no variant but the baseline"


def test_without_a_budget_nothing_is_searched(bench):
    found = bench.run(STUDY.model_copy(update={"search": None}))
    assert (found.status, bench.asked) == ("not_searched", [])


FIXED = {"kind": "fixed_size", "pairs": 8}
UNPADDED = {"kind": "transformer", "tokens": {"kind": "unpadded"}}


@pytest.mark.parametrize(
    ("change", "padded"),
    [
        ({"batching": FIXED}, True),
        ({"batching": FIXED, "model": UNPADDED}, False),
        ({"batching": FIXED | {"rows": {"kind": "packed"}}}, False),
        ({}, False),
    ],
)
def test_a_recommendation_warns_of_much_padding(usual, change, padded):
    """Batches belong to the study and stay unchanged; the file says that padding costs time."""
    spec = RunSpec.model_validate({"variant": "recommended"} | change)
    text = recommended_yaml(usual[0].model_copy(update={"spec": spec}))
    assert ("kind: token_budget} pads little" in text) == padded
    assert RunSpec.model_validate(yaml.safe_load(text)) == spec


def test_a_stage_after_a_gap_stands_for_all_its_changes_and_in_one_list():
    """The stage with ddp alone was not measured, the one beyond the winner was."""

    def trial(*parts: str) -> Trial:
        spec = combine(STUDY, VARIANTS, list(parts), "recommended")
        assert spec is not None
        return Trial(frozenset(parts), spec, 1.0)

    names = ["bf16", "ddp", "view", "rare"]
    steps = {name: trial(*names[: n + 1]) for n, name in enumerate(names)}
    sides = {"best": steps["view"], "stage_1": steps["rare"]}
    faster = Effect(quantity="throughput", ratio=None, verdict="FASTER")
    final = search_final.FinalComparison(
        [], sides, defaultdict(lambda: faster), {steps["bf16"].key: faster}, steps, {}, []
    )
    shown = final.shown_for(steps["view"])
    assert [stage.changes for stage in shown["waterfall"]] == [["bf16"], ["ddp", "view"]]
    assert [stage.changes for stage in shown["beyond"]] == [["rare"]]
    # Another winner: the stages lead from the baseline to a combination that it is no part of.
    sides["stage_2"] = trial("rare")
    shown = final.shown_for(sides["stage_2"])
    assert [stage.changes for stage in shown["waterfall"]] == [["rare"]]
    assert [stage.changes for stage in shown["beyond"]] == [["bf16"], ["ddp", "view"], ["rare"]]


def test_certificates_that_are_already_there_are_no_tries(monkeypatch):
    """Three combinations that train another model do not hide a certified variant."""
    sides = {}
    for name in ("bf16+rare", "rare", "bf16+ddp", "ddp", "bf16"):
        spec = combine(STUDY, VARIANTS, name.split("+"), "recommended")
        assert spec is not None
        sides[name] = Trial(frozenset(name.split("+")), spec, 1.5)
    sides["ddp"].certificate = certificate("ddp", "equivalent")
    asked = []
    monkeypatch.setattr(
        search_final, "holds", lambda bench, t: asked.append(t) or t.certificate is not None
    )
    effects = {
        name: Effect(quantity="throughput", ratio=exact(2 - place / 10), verdict="FASTER")
        for place, name in enumerate(sides)
    }
    final = search_final.FinalComparison([], sides, effects, {}, {}, {}, [])
    assert final.fastest(None, sides["bf16"]) is sides["ddp"]
    assert search_final.certified(None, [*sides.values()]) is sides["ddp"]
    sides["ddp"].certificate = None
    assert final.fastest(None, sides["bf16"]) is sides["bf16"]
    assert len(asked) == 4 + 4 + 3
    # A wide interval that contains 1 does not hide a trial that is shown to be faster.
    effects["ddp"] = effects["ddp"].model_copy(update={"verdict": "UNDECIDED"})
    sides["ddp"].certificate = sides["bf16"].certificate = certificate("ddp", "equivalent")
    assert final.fastest(None, sides["ddp"]) is sides["bf16"]
