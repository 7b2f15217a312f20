"""The search, with sessions whose truth is known."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from math import log, prod
from pathlib import Path
from typing import Any

import pytest
import yaml
from analysis_builders import certificate
from claim_builders import comparison
from kernels_seen import KERNELS
from pair_builders import session, side, window

from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.results import Certificate, Comparison, Effect, Round, SearchResult, Session
from schemas.results.common import BASELINE
from schemas.results.runs import StepKernels
from transformer_core.certify.kernels import uncertified
from transformer_core.decide import search as search_job
from transformer_core.decide import search_final, search_trials
from transformer_core.decide.search import recommended_yaml, search
from transformer_core.decide.search_moves import considered, own_effects, space_of
from transformer_core.decide.search_trials import Trial
from transformer_core.machine.provenance import collect
from transformer_core.measure.sessions import SessionEndedError
from transformer_core.run.statuses import Outcome
from transformer_core.study.resolve import combine, resolve


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
    search={"budget": 1000, "candidates": 8, "largest": 3},
)


def speed(spec: RunSpec) -> float:
    """The truth: bfloat16 pays, and pays double beside two devices, which alone do not pay."""
    bf16, ddp = spec.training.precision.kind == "bf16", spec.parallel.kind == "ddp"
    factors = [1.3 if bf16 else 1.0, 0.9 if ddp else 1.0, 1.6 if bf16 and ddp else 1.0]
    factors.append(0.97 if spec.training.log_every == 50 else 1.0)
    return prod(factors)


def views(spec: RunSpec) -> bool:
    """Whether gradients are views of buckets."""
    return getattr(spec.parallel, "bucket_view", False)


class Bench:
    """Stands for the sessions: what they were asked for, and who cannot run."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.asked: list[list[str]] = []
        self.broken: set[str] = set()
        self.speed = self.final_speed = speed
        self.allocators: dict[str, str] = {}
        """Of sides, where it is not that of the certificates."""
        self.odd: Callable[[RunSpec], bool] = lambda spec: False
        """Whether a run spec takes turns with another one."""

    def allocator(self, asked: Any) -> str | None:
        return "another" if self.odd(asked.spec) else self.allocators.get(asked.name)

    def run(
        self,
        study: Study = STUDY,
        certified: Mapping[str, str] | None = None,
        combined: Mapping[tuple[str, ...], str] | None = None,
        wide: float = 1.0,
    ) -> SearchResult:
        statuses = dict.fromkeys(VARIANTS, "equivalent") | dict(certified or {})
        verdicts = {tuple(sorted(k)): v for k, v in (combined or {}).items()}

        def certify(bench: Any, trial: Any) -> Certificate:
            status = verdicts.get(tuple(sorted(trial.parts)), "equivalent")
            return certificate_of(trial.spec, "recommended", status)

        self.patch.setattr(search_final, "_certificate", certify)
        self.patch.setattr(search_job, "profile_of", lambda bench, spec: None)
        return search(
            study,
            VARIANTS,
            comparisons(statuses, wide),
            {
                name: certificate_of(resolve(study, name, VARIANTS), name, status)
                for name, status in statuses.items()
            },
            *(self.folder / name for name in ("reference", "data", "search")),
            "snakemake results/search.json",
        )


def kernels(spec: RunSpec, allocator: str | None = None) -> StepKernels:
    """What computes a run spec."""
    operators = [f"mm {spec.training.precision.kind}"]
    operators += ["all_reduce"] * (spec.parallel.kind == "ddp")
    seen = {"operators": operators, "allocator": allocator or "usual"}
    return KERNELS.model_copy(update=seen)


def certificate_of(spec: RunSpec, name: str, status: str) -> Certificate:
    """One that says what it was computed by."""
    origin = collect(spec, "snakemake", datetime.now(UTC))
    return certificate(name, status).model_copy(
        update={"kernels": kernels(spec), "provenance": origin}
    )


@contextmanager
def bench_in(folder: Path) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        made = Bench(folder, patch)

        class Fake:
            def __init__(
                self, sides: Sequence[Any], comparing: Any, data: Path, folder: Path, *_: Any
            ) -> None:
                self.sides, self.comparing = sides, comparing
                self.speed = made.final_speed if folder.name == "final" else made.speed

            def run(self, number: int, enough: Any) -> Session:
                made.asked.append([one.name for one in self.sides])
                for one in self.sides:
                    if one.spec.parallel.kind in made.broken and one.name != BASELINE:
                        raise SessionEndedError(one.name, Outcome(status="oom", reason="no memory"))
                windows = [window(one.name, 1000 * self.speed(one.spec)) for one in self.sides]
                sides = [
                    side(s.name).model_copy(update={"kernels": kernels(s.spec, made.allocator(s))})
                    for s in self.sides
                ]
                return session(1.0, number, sides=sides, rounds=[Round(windows=windows)] * 8)

        patch.setattr(search_trials, "Sessions", Fake)
        yield made


@pytest.fixture
def bench(tmp_path):
    with bench_in(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """A search where all is as it should be, and what its sessions were asked for."""
    with bench_in(tmp_path_factory.mktemp("usual")) as made:
        yield made.run(), made.asked


def comparisons(certified: Mapping[str, str], wide: float = 1.0) -> list[Comparison]:
    """Ratios of every variant from turns, with intervals that are ``wide``."""
    known = {"bf16": 1.3, "ddp": 0.9, "view": 0.9, "rare": 0.97}
    return [
        comparison(name, "single", r / wide, r * wide).model_copy(
            update={"certificate": certified[name], "counts": certified[name] == "equivalent"}
        )
        for name, r in known.items()
    ]


def test_it_finds_what_pays_only_together(usual):
    found, asked = usual
    assert (found.status, {*found.parts} - {"view"}) == ("found", {"bf16", "ddp"})
    assert found.spec.training.precision.kind == "bf16"
    assert found.waterfall[0].changes == ["bf16"]
    final = found.waterfall[-1].effect
    assert final.ratio.median == pytest.approx(1.3 * 0.9 * 1.6)
    assert final.verdict == "FASTER"
    without = {stage.changes[0]: stage.effect.ratio for stage in found.left_out}
    assert without["bf16"].median == pytest.approx(0.9)
    # It starts from all at once, and from what pays alone.
    tried = [set(item.parts) for item in found.contenders]
    assert {"bf16"} in tried
    assert 3 in map(len, tried)
    assert all(names[0] == BASELINE for names in asked)


def test_the_recommended_spec_can_be_read_and_says_what_anything_else_could_gain(usual):
    found, _ = usual
    assert 1.0 <= found.regret.low <= found.regret.median <= found.regret.high
    assert found.regret.high < 1.01, "every step was tried, none of which gains, without noise"
    text = recommended_yaml(found)
    assert "Any other combination is at most" in text
    assert RunSpec.model_validate(yaml.safe_load(text)) == found.spec
    assert "Certificate: equivalent" in text


@pytest.mark.parametrize("fastest", ["bf16", "ddp", "view", "rare"])
def test_no_certified_variant_is_faster_than_what_is_recommended(bench, monkeypatch, fastest):
    """A search with no time to move, where turns left open which variant is the fastest: the last
    comparison holds each of them as a whole."""
    monkeypatch.setattr(search_trials.Bench, "more", lambda self: False)
    monkeypatch.setattr(search_job, "starts", lambda *_: [frozenset({"ddp", "bf16"})])
    truth = resolve(STUDY, fastest, VARIANTS).model_copy(update={"variant": "recommended"})
    bench.speed = lambda spec: 1.1
    bench.final_speed = lambda spec: 1.6 if spec == truth else 1.0
    found = bench.run(wide=2.0)
    assert found.status == "found"
    assert found.spec == truth
    assert found.waterfall[-1].effect.ratio.median == pytest.approx(1.6)
    assert not found.bundle, "a variant is the sum of its techniques"


def test_a_variant_that_seems_faster_than_the_winner_is_measured_too(bench, monkeypatch):
    """The search's best looks much faster than any variant, and is not."""
    monkeypatch.setattr(search_trials.Bench, "more", lambda self: False)
    monkeypatch.setattr(search_job, "starts", lambda *_: [frozenset({"ddp", "bf16"})])
    bench.final_speed = lambda spec: (
        1.35 if spec.training.precision.kind == "bf16" and spec.parallel.kind == "single" else 1.0
    )
    found = bench.run()
    assert (found.parts, found.waterfall[-1].effect.ratio.median) == (["bf16"], pytest.approx(1.35))


def test_a_winner_without_certificate_is_passed_over(bench, usual):
    first = usual[0]
    second = bench.run(combined={tuple(first.parts): "not_equivalent"})
    assert second.status == "found"
    assert set(second.parts) != set(first.parts)
    passed = next(c for c in second.contenders if c.parts == first.parts)
    assert passed.certificate == "not_equivalent"


def test_what_pays_alone_and_costs_beside_others_is_left_out(bench, monkeypatch):
    """Whatever the rounds chose among, two parts that hinder the third are taken out."""
    monkeypatch.setattr(search_job, "own_effects", lambda *_: dict.fromkeys(VARIANTS, (0.2, 0.01)))
    few = STUDY.search.model_copy(update={"candidates": 2, "largest": 3})
    study = STUDY.model_copy(update={"search": few, "variants": ["single", "bf16", "ddp", "rare"]})

    def hindered(spec: RunSpec) -> float:
        others = (spec.parallel.kind == "ddp") + (spec.training.log_every == 50)
        return (1.5 if spec.training.precision.kind == "bf16" else 1.0) * 0.9**others

    bench.speed = bench.final_speed = hindered
    found = bench.run(study)
    tried = [set(item.parts) for item in found.contenders]
    assert {"bf16", "ddp", "rare"} in tried, "what promises most by single effects"
    assert found.parts == ["bf16"]


def test_what_shows_nothing_alone_and_pays_beside_others_is_added(bench, monkeypatch):
    """A part with a single effect below 1, whose interval reaches above it."""

    def alone(*_: Any) -> dict[str, tuple[float, float]]:
        return {"bf16": (0.3, 0.01), "ddp": (-0.5, 0.01), "rare": (-0.05, 0.05)}

    monkeypatch.setattr(search_job, "own_effects", alone)
    few = STUDY.search.model_copy(update={"candidates": 1, "largest": 3})
    study = STUDY.model_copy(update={"search": few, "variants": ["single", "bf16", "ddp", "rare"]})

    def helped(spec: RunSpec) -> float:
        both = spec.training.precision.kind == "bf16" and spec.training.log_every == 50
        return 1.5 if both else 1.2 if spec.training.precision.kind == "bf16" else 0.95

    bench.speed = bench.final_speed = helped
    found = bench.run(study)
    assert set(found.parts) == {"bf16", "rare"}


def test_what_is_recommended_is_the_fastest_stage_that_is_shown(bench):
    """The search chose a bucket view as well, which the final comparison finds to cost."""
    bench.speed = lambda spec: speed(spec) * (1.05 if views(spec) else 1.0)
    bench.final_speed = lambda spec: speed(spec) * (0.95 if views(spec) else 1.0)
    found = bench.run()
    assert (found.status, found.parts) == ("found", ["bf16", "ddp"])
    assert found.certificate is not None
    assert [stage.changes for stage in found.waterfall] == [["bf16"], ["ddp"]]
    assert [stage.changes for stage in found.beyond] == [["view"]]
    assert "Throughput 1.872 x" in recommended_yaml(found)
    unlike = bench.run(combined={("bf16", "ddp"): "not_equivalent"})
    assert set(unlike.parts) == {"bf16", "ddp", "view"}, "a stage needs its own certificate"
    assert unlike.beyond == []


def test_turns_of_other_kernels_than_certified_win_nothing(bench):
    bench.odd = lambda spec: spec.parallel.kind == "ddp" and not spec.parallel.bucket_view
    found = bench.run()
    passed = [c for c in found.contenders if c.certificate == "inconclusive"]
    assert (found.status, found.parts) == ("found", ["bf16", "ddp", "view"])
    assert ["bf16", "ddp"] in [c.parts for c in passed]
    assert all("view" not in c.parts for c in passed)


@pytest.mark.parametrize("side", ["best", BASELINE])
def test_a_final_comparison_of_other_kernels_than_certified_shows_nothing(bench, side):
    bench.allocators = {side: "another"}
    found = bench.run()
    assert (found.status, found.parts) == ("baseline", [])
    said = f"{side} was timed differently than certified (the allocator: another where timed"
    assert found.reason.startswith(said)


def test_a_stage_names_what_no_certificate_does(bench, monkeypatch):
    bench.speed = bench.final_speed = lambda spec: speed(spec) * (1.05 if views(spec) else 1.0)
    found = bench.run()
    assert all(not stage.uncertified for stage in (*found.waterfall, *found.left_out))
    monkeypatch.setattr(
        search_final, "uncertified", lambda s, side, known: uncertified(s, side, known[:1])
    )
    found = bench.run()
    stages = {tuple(stage.parts): stage.uncertified for stage in found.waterfall}
    assert stages["bf16",] == [], "a certified variant of the study"
    assert stages["bf16", "ddp"] == ["all_reduce", "mm bf16"]


def test_variants_without_certificate_take_no_part(bench):
    found = bench.run(certified={"bf16": "not_equivalent"})
    assert "bf16" not in found.eligible
    assert found.status == "baseline"
    assert found.parts == []
    assert found.spec.training.precision.kind == "fp32"


def test_who_cannot_run_loses_with_its_status(bench):
    bench.broken = {"ddp"}
    found = bench.run()
    assert found.parts == ["bf16"]
    ended = [item for item in found.contenders if "ddp" in item.parts]
    assert ended
    assert {(item.status, item.reason) for item in ended} == {("oom", "no memory")}


def test_no_more_trainings_at_once_than_allowed(bench):
    few = STUDY.model_copy(update={"search": STUDY.search.model_copy(update={"together": 3})})
    bench.run(few)
    assert max(map(len, bench.asked)) == 3


def test_a_variant_without_parent_changes_the_study_not_the_baseline():
    slow = variant({"training": {"optimizer": {"kind": "adam"}}})
    adam, names = {**VARIANTS, "slow": slow}, ["slow", "single", "ddp", "bf16"]
    study = STUDY.model_copy(update={"baseline": "slow", "variants": names})
    # Twice as fast as the baseline is the study itself, and no faster are two devices.
    ratios = {"single": 2.0, "ddp": 1.8, "bf16": 2.2}
    measured = [comparison(name, "slow", ratio, ratio) for name, ratio in ratios.items()]
    effects = {name: effect for name, (effect, _) in own_effects(study, adam, measured).items()}
    assert effects["ddp"] == pytest.approx(log(0.9))
    assert effects["bf16"] == pytest.approx(log(1.1))
    space = space_of(study, adam, ["single", "ddp", "bf16"], effects)
    # What only says that there is one process stands in no combination.
    assert space.parts == ("bf16", "ddp")
    assert considered(space) == 3


def test_the_winner_is_compared_even_where_its_stages_find_no_room(bench):
    few = {"together": 3, "candidates": 2, "largest": 5}
    study = STUDY.model_copy(update={"search": STUDY.search.model_copy(update=few)})
    found = bench.run(study)
    final = {tuple(sorted(s.parts)) for s in found.waterfall}
    assert found.status == "found"
    assert tuple(sorted(found.parts)) in final


def test_without_a_budget_nothing_is_searched(bench):
    none = STUDY.model_copy(update={"search": None})
    found = bench.run(none)
    assert (found.status, bench.asked) == ("not_searched", [])


PADDING = {"kind": "fixed_size", "pairs": 8}


@pytest.mark.parametrize(
    ("change", "padded"),
    [
        ({"batching": PADDING}, True),
        (
            {"batching": PADDING, "model": {"kind": "transformer", "tokens": {"kind": "unpadded"}}},
            False,
        ),
        ({"batching": PADDING | {"rows": {"kind": "packed"}}}, False),
        ({}, False),
    ],
)
def test_a_recommendation_says_where_it_computes_much_padding(usual, change, padded):
    """Batches are part of what the study trains: they stay, and the file tells what they cost."""
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
        [], sides, dict.fromkeys(sides, faster), {steps["bf16"].key: faster}, steps, {}, []
    )
    shown = final.shown_for(steps["view"])
    assert [stage.changes for stage in shown["waterfall"]] == [["bf16"], ["ddp", "view"]]
    assert [stage.changes for stage in shown["beyond"]] == [["rare"]]
