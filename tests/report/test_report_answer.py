"""The answer on one page of Markdown and for programs; the page says the same."""

import re
from dataclasses import replace

import pytest
from claim_builders import comparison
from drawn import words
from pair_builders import session
from report_builders import SPEED, ask, changed

from schemas.results import (
    Answer,
    AnswerQuality,
    AnswerTraining,
    Effect,
    Interval,
    Stage,
    Unsettled,
    Verdict,
)
from tests.records import refinement
from transformer_core.common.digests import write_result
from transformer_core.common.study_clock import Clock, JobTimes
from transformer_core.decide.study_results import StudyResults
from transformer_core.report import page
from transformer_core.report.kit.formats import exact
from transformer_core.report.page import brief
from transformer_core.report.sections.answer import (
    choose,
    draw_waterfall,
    read_answer,
    training_command,
)
from transformer_core.report.sections.variants import changes

RATIO = re.compile(r"(\d+\.\d+)× \[(\d+\.\d+), (\d+\.\d+)\]")


@pytest.fixture(scope="module")
def answer(quick_folder):
    return Answer.model_validate_json((quick_folder / "summary.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def text(quick_folder):
    return (quick_folder / "report.md").read_text(encoding="utf-8")


def test_headings_and_tables_of_the_brief_follow_a_blank_line(text):
    assert "so its drift cancels.\n\n| step by step |" in text
    assert not re.search(r"[^\n]\n#", text)


def test_summary_has_the_result(answer):
    assert (answer.status, answer.recommended) == ("found", ["amp_bf16"])
    assert (answer.verdict, answer.certificate) == ("FASTER", "equivalent")
    by_name = {variant.variant: variant for variant in answer.variants}
    assert next(iter(by_name)) == answer.baseline == "single"
    fast, ddp = by_name["amp_bf16"], by_name["ddp"]
    assert fast.speedup.median == pytest.approx(SPEED["amp_bf16"] / SPEED["single"], rel=1e-2)
    assert (fast.counts, by_name["forgetful"].counts) == (True, False)
    assert (ddp.status, ddp.speedup) == ("unsupported", None)
    assert (answer.undecided, answer.undecided_claims) == ([], ["open"])
    assert (answer.commit, answer.time) == ("abc1234", None)


def test_page_brief_and_summary_say_the_same_numbers(answer, html, text):
    shown = set(re.findall(r'<data value="([^"]+)"', html))
    assert exact(answer.speedup.median) in shown
    table = text.partition("## Every variant")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    said = {name[1]: line for line in lines if (name := re.match(r"\| `(\w+)`", line))}
    assert set(said) == {variant.variant for variant in answer.variants}
    for variant in answer.variants:
        for interval in (variant.speedup, variant.tokens_per_second):
            assert interval is None or exact(interval.median) in shown, variant.variant
        found, speedup = RATIO.search(said[variant.variant]), variant.speedup
        assert (found is None) == (speedup is None)
        if speedup:
            ends = (speedup.median, speedup.low, speedup.high)
            assert [float(part) for part in found.groups()] == pytest.approx(ends, abs=0.006)
    assert "| not counted | not equivalent |" in said["forgetful"]
    assert "| FASTER | equivalent |" in said["amp_bf16"]
    assert "| unsupported |" in said["ddp"]


def test_trainings_towards_a_quality_or_a_loss_are_in_the_brief(answer):
    trainings = [
        AnswerTraining(name="single", bleu=20.1, loss=2.1, steps=400, time_ratio=1.0),
        AnswerTraining(name="amp_bf16", bleu=20.4, loss=2.0, steps=420, time_ratio=0.625),
        AnswerTraining(name="sgd", bleu=20.2, loss=2.2, steps=500, time_ratio=None),
        AnswerTraining(name="<ddp>", bleu=18.04, loss=2.4, steps=None, time_ratio=None),
    ]
    raced = AnswerQuality(bleu=20.0, loss=None, time_ratio=None, trainings=trainings)
    text = brief(answer.model_copy(update={"quality": raced}))
    table = text.partition("## Time to 20 BLEU")[2].partition("\n## ")[0]
    assert "those of the first evaluation that reached it." in table
    assert "| `amp_bf16` | 62.5 % | 420 | 20.4 |" in table
    assert "| `sgd` | – | 500 | 20.2 |" in table
    assert r"| \<ddp\> | did not arrive | – | 18.0 |" in table
    assert "the recommendation reaches 20 BLEU" not in text

    trainings = [one.model_copy(update={"bleu": None}) for one in trainings[:2]]
    raced = AnswerQuality(bleu=None, loss=3.875, time_ratio=0.625, trainings=trainings)
    text = brief(answer.model_copy(update={"quality": raced}))
    goal = "a validation loss of 3.875"
    assert f"the recommendation reaches {goal} in 62.5 % of the time of `single`" in text
    table = text.partition(f"## Time to {goal}")[2]
    assert "interpolated between two evaluations; a training ends at the later one." in table
    assert "| `amp_bf16` | 62.5 % | 420 | 2.000 |" in table


def test_brief_is_one_page_and_escapes_foreign_texts(text):
    assert len(text.splitlines()) < 70
    assert "The time limit" not in text, "it has none"
    assert "**Training is 1.62× [1.59, 1.65] as fast as `single`** (FASTER) with `amp_bf16`" in text
    assert "<script>" not in text
    assert "1 confirmed here: true" in text
    assert "undecided: open" in text
    assert "open. More time settles those that rest on certified comparisons" in text
    assert "python -m transformer_core.training --spec results/recommended.yaml" in text
    assert r"- `ddp` did not finish (unsupported): needs 2 GPUs, found 1 \<script\>" in text
    assert text.count("did not finish") == 1
    assert "so do those of the search's last comparison" in text
    assert "that of `single`, unless its column says otherwise, with its interval" in text


def test_several_ranks_start_with_torchrun(results):
    spec = results.specs["ddp"]
    for devices in (1, 2):
        machine = spec.machine.model_copy(update={"devices_per_node": devices})
        command = training_command(spec.model_copy(update={"machine": machine}))
        assert command.startswith(f"torchrun --standalone --nproc-per-node={devices} -m")


@pytest.fixture
def searched(results):
    """The results of the study if its search had found something else."""

    def results_of(**found: object) -> StudyResults:
        return changed(results, search=results.search.model_copy(update=found))

    return results_of


NOTHING_FOUND = {"status": "baseline", "parts": [], "certificate": None, "waterfall": []}


def stage(part: str, ratio: float, verdict: Verdict, wide: float = 0.1) -> Stage:
    interval = Interval(median=ratio, low=ratio - wide, high=ratio + wide, samples=24)
    effect = Effect(quantity="throughput", ratio=interval, verdict=verdict)
    return Stage(parts=[part], changes=[part], effect=effect)


@pytest.mark.parametrize(
    "found",
    [
        NOTHING_FOUND,
        NOTHING_FOUND | {"status": "not_searched"},
        {"parts": ["qkv_separate"], "waterfall": [stage("qkv_separate", 1.1, "FASTER")]},
    ],
)
def test_no_certified_row_is_faster_than_the_answer(searched, found):
    answer = read_answer(searched(**found))
    row = next(v for v in answer.variants if v.variant == "amp_bf16")
    assert (answer.status, answer.recommended, answer.searched) == ("found", ["amp_bf16"], False)
    assert (answer.speedup, answer.certificate) == (row.speedup, "equivalent")
    assert answer.settings == {"training": {"precision": {"kind": "bf16"}}}
    assert "--spec results/runs/amp_bf16/spec.json" in brief(answer)
    assert "step by step" not in brief(answer)
    assert "all intervals hold together" in brief(answer)


def test_a_technique_alone_may_be_a_variant_of_another_name(results):
    definitions = results.definitions | {"precision": results.definitions["amp_bf16"]}
    effect = results.comparisons["amp_bf16"].speedup
    search = results.search.model_copy(update={"beside": {"precision": effect}})
    answer = read_answer(changed(results, search=search, definitions=definitions))
    found = {one.technique: one.alone for one in answer.techniques}
    assert found["precision"] == effect


def test_without_a_recommendation_a_copy_of_the_baseline_is_not_recommended(searched, results):
    spec, lost = results.specs["forgetful"], stage("amp_bf16", 1.02, "SAME")
    answer = read_answer(searched(beyond=[lost], spec=spec, **NOTHING_FOUND))
    assert not any(variant.recommended for variant in answer.variants)
    assert "This is the variant" not in brief(answer)


@pytest.mark.parametrize("status", ["baseline", "not_searched"])
def test_a_baseline_that_did_not_run_is_not_recommended(empty_report, status):
    empty = StudyResults(empty_report)
    found = empty.search.model_copy(update=NOTHING_FOUND | {"status": status})
    results = changed(empty, search=found)
    answer = read_answer(results)
    assert answer.searched == (status == "baseline")
    assert answer.commands.train is None
    assert "The baseline `single` did not run to the end" in brief(answer)
    assert "recommended.yaml" not in brief(answer)
    assert "None; no comparison counts." in brief(answer)
    assert "took turns" not in brief(answer)
    assert ".\n\n## Every variant" in brief(answer)
    for name, said in (
        ("answer", "nothing is recommended"),
        ("todo", "Find out first why"),
        ("answer", "none; no comparison counts."),
        ("quality", "No training was run up to"),
    ):
        assert said in words(name, results)
        assert "recommended.yaml" not in words(name, results)


def test_the_brief_says_why_a_variant_that_ran_has_no_ratio(results):
    ours = results.comparisons["forgetful"]
    throughput = ours.effects[0].model_copy(update={"ratio": None, "verdict": None})
    ended = {"effects": [throughput, *ours.effects[1:]], "note": "forgetful ended diverged"}
    others = [each for each in results.all_comparisons if each is not ours]
    comparisons = [*others, ours.model_copy(update=ended)]
    answer = read_answer(changed(results, all_comparisons=comparisons))
    row = next(variant for variant in answer.variants if variant.variant == "forgetful")
    assert (row.status, row.speedup, row.reason) == ("ok", None, "forgetful ended diverged")
    assert "- `forgetful` has no ratio: forgetful ended diverged" in brief(answer)


@pytest.mark.parametrize("place", ["beyond", "rivals"])
def test_a_variant_that_lost_a_direct_comparison_is_shown_with_it(searched, place):
    beside = stage("amp_bf16", 1.02, "SAME")
    answer = read_answer(searched(**{place: [beside]}, **NOTHING_FOUND))
    assert (answer.status, answer.recommended) == ("baseline", [])
    (rival,) = answer.rivals
    assert (rival.variant, rival.against) == ("amp_bf16", "single")
    assert rival.direct == beside.effect.ratio
    assert "`amp_bf16` seems faster, 1.62×" in brief(answer)
    assert "in the search's last comparison, it ran 1.02×" in brief(answer)


def test_a_change_that_only_its_own_turns_show_to_be_faster_contradicts_no_answer(searched):
    results = searched(beyond=[stage("amp_bf16", 1.02, "SAME")], **NOTHING_FOUND)
    assert read_answer(results).fastest_change.variant == "amp_bf16"
    for said in (words("answer", results), brief(read_answer(results))):
        assert "shown, both in its own turns and in the search's last comparison, to train" in said
    assert "faster both in its own turns and" in words("todo", results)
    both = searched(beyond=[stage("amp_bf16", 1.2, "FASTER")], **NOTHING_FOUND)
    assert read_answer(both).recommended == ["amp_bf16"]


def test_a_variant_that_turns_too_few_could_not_confirm_is_recommended(searched):
    beside = stage("amp_bf16", 1.3, "UNDECIDED", wide=0.5)
    answer = read_answer(searched(beyond=[beside], **NOTHING_FOUND))
    assert (answer.recommended, answer.rivals) == (["amp_bf16"], [])
    contradicted = stage("amp_bf16", 1.2, "UNDECIDED", wide=0.3)
    answer = read_answer(searched(beyond=[contradicted], **NOTHING_FOUND))
    assert (answer.recommended, len(answer.rivals)) == ([], 1)


def test_a_rival_of_a_recommendation_was_not_faster_in_the_same_turns(searched):
    winner, beside = stage("qkv_separate", 1.1, "FASTER"), stage("amp_bf16", 1.02, "UNDECIDED")
    found = {"parts": ["qkv_separate"], "waterfall": [winner], "beyond": [beside]}
    answer = read_answer(searched(**found))
    assert [rival.variant for rival in answer.rivals] == ["amp_bf16"]
    assert "it ran 1.02× [0.92, 1.12] as fast as `single`, not faster than the" in brief(answer)


@pytest.mark.parametrize("names", [("amp_bf16", "qkv_separate"), ("qkv_separate", "amp_bf16")])
def test_a_rival_may_have_lost_a_comparison_with_the_recommendation(results, names):
    """Whichever of the two is the reference of their comparison."""
    found = {"parts": ["qkv_separate"], "waterfall": [stage("qkv_separate", 1.1, "FASTER")]}
    search = results.search.model_copy(update=found | {"left_out": [], "rivals": []})
    ends = (0.75, 0.85) if names[0] == "amp_bf16" else (1 / 0.85, 1 / 0.75)
    compared = [*results.all_comparisons, comparison(*names, *ends)]
    (rival,) = read_answer(changed(results, search=search, all_comparisons=compared)).rivals
    assert (rival.variant, rival.against) == ("amp_bf16", "qkv_separate")
    assert (rival.direct.low, rival.direct.high) == pytest.approx((0.75, 0.85))


def test_another_combination_is_built_up_from_the_baseline_also_if_nothing_is_recommended(searched):
    winner, beside = stage("qkv_separate", 1.02, "UNDECIDED"), stage("amp_bf16", 1.01, "UNDECIDED")
    found = searched(**NOTHING_FOUND | {"waterfall": [winner], "beyond": [beside]})
    assert "another combination is built up from the baseline" in draw_waterfall(found).description
    more = beside.model_copy(update={"parts": ["amp_bf16", "qkv_separate"]})
    found = searched(**NOTHING_FOUND | {"waterfall": [winner], "beyond": [more]})
    assert "another combination" not in draw_waterfall(found).description


def test_many_rivals_are_named_in_one_sentence(searched):
    answer = read_answer(searched(beyond=[stage("amp_bf16", 1.02, "SAME")], **NOTHING_FOUND))
    (rival,) = answer.rivals
    many = answer.model_copy(update={"rivals": [rival] * 5})
    said = brief(many)
    assert said.count("seems faster") == 3
    assert "These seem faster, too, and are not recommended either: `amp_bf16` 1.62×" in said


def test_a_race_to_a_loss_has_no_bleu(results):
    raced = results.quality
    sides = [
        side.model_copy(
            update={"looks": [look.model_copy(update={"bleu": None}) for look in side.looks]}
        )
        for side in raced.sides
    ]
    found = raced.model_copy(update={"bleu": None, "loss": 2.0, "sides": sides})
    trainings = read_answer(changed(results, quality=found)).quality.trainings
    assert [(each.bleu, each.loss) for each in trainings] == [(None, 2.0)] * 2


def test_the_page_names_the_other_variants_of_a_race_in_full(results):
    raced, best = results.quality, results.quality.sides[1]
    others = [
        best.model_copy(update={"name": name, "parts": [name], "time_ratio": ratio})
        for name, ratio in (("single_with_sgd", 0.8), ("sgd", 0.7))
    ]
    best = best.model_copy(update={"time_ratio": 0.5})
    found = raced.model_copy(update={"sides": [raced.sides[0], best, *others]})
    results = changed(results, quality=found)
    names = [one.name for one in read_answer(results).quality.trainings]
    assert names == ["single", "amp_bf16", "single_with_sgd", "sgd"]
    said = words("answer", results)
    assert "with other variants: sgd 70.0 % , single_with_sgd 80.0 % of the baseline" in said
    assert "The same quality, sooner: 50 BLEU in 50.0 % of the time" in said


def test_a_recommendation_that_takes_longer_is_not_called_sooner(results):
    later = results.quality.model_copy(update={"time_ratio": 1.25})
    said = words("answer", changed(results, quality=later))
    assert "The same quality, not sooner: 50 BLEU in 125.0 % of the time" in said
    assert "other variants" not in said


@pytest.mark.parametrize("seconds", [None, 0.04, 0.57])
def test_the_answer_says_if_other_processes_took_much_of_the_cpus(results, seconds):
    """The share of the worst session counts: one disturbed session widens an interval."""
    cpus = results.search.provenance.hardware.logical_cpus
    calm, worst = (
        session(1.2).model_copy(update={"foreign_cpu_seconds": each, "rounds_seconds": 1 / cpus})
        for each in (0.0, seconds)
    )
    found = results.search.model_copy(update={"sessions": [worst, calm]})
    busy = changed(results, search=found, paired_runs=[])
    said = "Other processes took up to 57.0 % of the CPUs while ratios were measured."
    for text in (brief(read_answer(busy)), words("answer", busy)):
        assert (said in " ".join(text.split())) == (seconds == 0.57)


@pytest.fixture
def unsure(results):
    """All comparisons of the study, that of amp_bf16 undecided."""
    ours = results.comparisons["amp_bf16"]
    effects = [e.model_copy(update={"verdict": "UNDECIDED"}) for e in ours.effects]
    others = [each for each in results.all_comparisons if each is not ours]
    return [*others, ours.model_copy(update={"effects": effects})]


def test_an_undecided_ratio_is_no_rival_of_the_baseline(results, unsure):
    """Also if the search compared it with the baseline and could not tell either."""
    found = NOTHING_FOUND | {"waterfall": [stage("amp_bf16", 1.02, "UNDECIDED")]}
    search = results.search.model_copy(update=found)
    answer = read_answer(changed(results, search=search, all_comparisons=unsure))
    assert "amp_bf16" in answer.undecided
    assert not answer.rivals
    assert answer.commands.train, "the baseline can be trained"


def test_undecided_are_the_variants_whose_row_says_so(results, unsure):
    """Also if the search's last comparison, of other turns, has a verdict on the same change."""
    results = changed(results, all_comparisons=unsure)
    assert results.search.waterfall[0].effect.verdict == "FASTER"
    answer = read_answer(results)
    rows = [v.variant for v in answer.variants if v.counts and v.verdict == "UNDECIDED"]
    assert answer.undecided == rows == ["amp_bf16"]
    assert "every comparison with" not in brief(answer)
    assert "\n`amp_bf16`; claims open. More time settles" in brief(answer)
    assert "Undecided: amp_bf16" in words("answer", results)


def test_techniques_are_measured_alone_and_in_combination(searched):
    without = {
        name: Interval(median=ratio, low=ratio - 0.02, high=ratio + 0.02, samples=4)
        for name, ratio in {"amp_bf16": 0.7, "qkv_separate": 1.0, "accum4_sync": 0.9}.items()
    }
    results = searched(beside=without)
    answer = read_answer(results)
    found = {one.technique: one for one in answer.techniques}
    assert [*found] == ["amp_bf16", "qkv_separate", "accum4_sync"]
    assert [one.taken for one in found.values()] == [True, False, False]
    assert {name: one.beside for name, one in found.items()} == without
    rows = {variant.variant: variant.speedup for variant in answer.variants}
    assert found["amp_bf16"].alone == rows["amp_bf16"]
    # Its row is a bundle: two devices, and what they do.
    assert found["accum4_sync"].alone is None
    assert "| not taken: `accum4_sync` | – | 0.90× [0.88, 0.92] |" in brief(answer)
    assert "In the recommendation" in words("why", results)

    # If a variant is faster than what the search found, nothing was measured over the recommendation.
    slower = {"parts": ["qkv_separate"], "waterfall": [stage("qkv_separate", 1.1, "FASTER")]}
    results = searched(beside=without, **slower)
    assert not read_answer(results).techniques
    assert "In the recommendation" not in words("why", results)


def test_the_fastest_change_is_a_single_one(answer, results):
    assert answer.fastest_change.variant == "amp_bf16"
    assert answer.fastest_change.changes == ["training.precision"]
    assert changes(results, "accum4_sync", "single") == ["parallel", "training.accumulation"]
    bundle = answer.fastest_change.model_copy(update={"changes": ["model.qkv", "parallel"]})
    text = brief(answer.model_copy(update={"fastest_change": bundle}))
    assert "The fastest bundle of changes is `amp_bf16`" in text


def test_a_bundle_is_called_a_bundle(searched):
    """A recommended variant stands for all that it inherits and is not a technique."""
    won = stage("accum4_sync", 9.0, "FASTER").model_copy(update={"bundle": True})
    found = searched(parts=["accum4_sync"], bundle=True, waterfall=[won])
    answer = read_answer(found)
    assert answer.bundle == ["parallel", "training.accumulation"]
    assert "with the bundle `accum4_sync` (2 changes)" in brief(answer)
    assert answer.fastest_change.variant != "accum4_sync"
    assert answer.techniques == []
    # So is a variant that is faster than what the search found.
    choice = replace(choose(found)[0], searched=False)
    assert choice.bundle(searched()) == answer.bundle


def test_the_log_of_the_page_names_variants_that_did_not_finish(written, monkeypatch):
    """On a terminal, nothing said so at the end."""
    said = []
    monkeypatch.setattr(page, "render", lambda *_: "")
    monkeypatch.setattr(page.log, "warning", lambda text, *values: said.append(text % values))
    page.write_page(StudyResults(written))
    (line,) = said
    assert line.startswith("ddp did not finish (unsupported): needs 2 GPUs, found 1 <script>")


def test_a_study_with_a_time_limit_reports_its_use(written):
    """The limit left two comparisons undecided."""
    results = ask(written, time="10 min")
    found = refinement(
        Unsettled(variant="qkv_separate", reference="single", seconds=200.0),
        Unsettled(variant="ddp", reference="single", seconds=None, reason="<no> memory"),
    )
    write_result(written / "refinement.json", found.model_dump_json() + "\n")
    jobs = {"train": JobTimes(count=4, seconds=30.0), "page": JobTimes(count=1, seconds=10.0)}
    clock = Clock(worked=590.0, jobs=jobs)
    (written / ".clock.json").write_text(clock.model_dump_json())
    page.write_page(results)
    answer = Answer.model_validate_json((written / "summary.json").read_text())
    assert (answer.time.asked_seconds, answer.time.taken_seconds) == (600.0, 590.0)
    # 590 s, 30 s kept for the report and 200 s more, in whole minutes.
    assert answer.time.next_seconds == 840.0
    text = (written / "report.md").read_text()
    assert "The time limit was 10.0 min; the study took 9.8 min." in text
    assert "| `qkv_separate` | `single` | 3.3 min |" in text
    assert "| `ddp` | `single` | \\<no\\> memory |" in text
    html = (written / "report.html").read_text()
    assert "--config time=14min" in html
    assert "이 연구에 주어진 시간은" in html
    assert "&lt;no&gt; memory" in html
    table = html[html.index('id="jobs-caption"') :]
    train, page_job = table.index("<code>train</code>"), table.index("<code>page</code>")
    assert train < page_job, "the longest comes first"
    assert "75.0 %" in table[train:page_job]
