"""Single sections: certificates, corpus, the limits of a step, quality, techniques, collectives."""

import json
import re
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest
from drawn import description, section, words
from jinja2 import Environment, FileSystemLoader
from pair_builders import session, side
from report_builders import changed

from schemas.config.data import GrammarTexts
from schemas.config.run_spec import LanguageModel
from schemas.errors import ConfigError
from schemas.results import QualityLook, Side, TextRows
from schemas.results.certificates import Deviation, DeviationOf
from schemas.results.common import BASELINE, BEST
from transformer_core.certify.bounds import WORDS, in_short, nearest
from transformer_core.decide.study_results import StudyResults, throughputs
from transformer_core.measure.evaluation import alone
from transformer_core.report.kit.language import korean
from transformer_core.report.page import draw
from transformer_core.report.sections.machine import headroom_context
from transformer_core.report.sections.quality import draw_quality, from_kernel_to_quality, reaching
from transformer_core.report.sections.variants import (
    techniques,
    techniques_context,
    variants_context,
)
from transformer_core.study.variants import read_variants

ROOT = Path(__file__).resolve().parents[3]
HANGUL = re.compile("[가-힣]")
TRANSLATION = {"source": "A dog.", "reference": "Ein Hund.", "hypothesis": "Ein Hund."}
FINDING = {"where": "train.py:7", "sure": False, "cause": "A < cause", "remedy": "A remedy"}


def test_a_certificate_names_the_quantity_nearest_to_its_bound_or_its_reason(results):
    certificates = results.certificates.values()
    held = [each for each in certificates if each.status == "equivalent" and each.deviations]
    others = [each for each in certificates if each.status != "equivalent"]
    assert held
    for certificate in held:
        found = nearest(certificate)
        most = found.measured / found.bound
        assert all(each.measured <= most * each.bound for each in certificate.deviations)
    assert others
    assert [in_short(each) for each in others] == [each.reason for each in others]
    assert set(WORDS) == set(get_args(DeviationOf)), "every quantity has its words"


def test_equal_modes_and_shares_say_what_was_compared(results):
    """A certificate compares several things of dropout and validation: a row must tell which."""
    told = "0 modules in the wrong mode"
    equal = Deviation(quantity="validation", measured=0.0, bound=0.0, where=told)
    certificates = {
        name: one.model_copy(update={"deviations": [*one.deviations, equal]})
        for name, one in results.certificates.items()
    }
    assert told in words("equivalence", changed(results, certificates=certificates))


@pytest.mark.parametrize(
    ("audit", "shown"),
    [
        ({"status": "failed", "reason": "No <b>\nmore"}, "not be audited: No &lt;b&gt; more"),
        ({"status": "failed", "reason": ""}, "not be audited: no reason was given"),
        ({"status": "clean"}, "found nothing wrong. Relations tested: 1."),
        (
            {"status": "wrong", "findings": [FINDING]},
            "found something wrong: train.py:7 ( worth a look ): A &lt; cause. A remedy.",
        ),
    ],
)
def test_the_audit_of_the_baseline(copied, audit, shown):
    found = {"relations": {"a": {"status": "holds"}, "b": {"status": "untested"}}, "findings": []}
    (copied / "audit.json").write_text(json.dumps(found | audit))
    assert shown in words("equivalence", StudyResults(copied))
    (copied / "audit.json").write_text("{")
    with pytest.raises(ConfigError, match=r"audit\.json"):
        words("equivalence", StudyResults(copied))


def test_the_requested_vocabulary_is_shown_with_the_actual_one(results):
    """A small corpus has fewer tokens than a study may ask for."""
    made = results.tokenizer.model_copy(update={"vocabulary": 1_234})
    asked = results.study.tokenizer.vocabulary
    assert asked != 1_234
    said = words("corpus", changed(results, tokenizer=made))
    assert f"1,234 of the {asked:,} requested tokens" in said
    assert "embeddings have 1,234 rows" in said
    all_made = results.tokenizer.model_copy(update={"vocabulary": asked})
    assert "embeddings have" not in words("corpus", changed(results, tokenizer=all_made))


def test_variants_that_were_trained_but_not_evaluated_are_named(results):
    failed = {"status": "failed", "reason": "A reason", "bleu": None}
    others = {n: one.model_copy(update=failed) for n, one in results.evaluations.items()}
    trained = [name for name, result in results.variants.items() if result.status == "ok"]
    without = changed(results, evaluations=others)
    assert 0 < len(trained) < len(others)
    assert [evaluation.variant for evaluation in without.not_evaluated] == trained
    assert words("limits", without).count("A reason") == len(trained)
    assert not results.not_evaluated


def test_variants_that_look_alike_share_the_best_place(results):
    alike = [name for name, evaluation in results.evaluations.items() if evaluation.bleu]
    assert len(alike) > 2
    said = words("translations", results).replace(" ,", ",")
    assert f"Best translations: {', '.join(alike)}, with 31.4 BLEU." in said


def test_the_reason_for_showing_no_translations_is_true(results):
    found = results.evaluations.items()
    few = {"samples": []}
    for more, said in (
        ({}, "Best translations: single"),
        ({"bleu": 2.0}, "the best model reaches 2 BLEU, and below 5"),
        ({"bleu": None}, "No model was judged."),
    ):
        changed_ones = {name: one.model_copy(update=few | more) for name, one in found}
        text = words("translations", changed(results, evaluations=changed_ones))
        assert said in text
        assert "Sentences of the test split" not in text


def test_a_pair_that_occurs_twice_names_each_variant_once(results):
    twice = {
        name: one.model_copy(update={"samples": 2 * one.samples})
        for name, one in results.evaluations.items()
    }
    assert section("translations", changed(results, evaluations=twice)) == section(
        "translations", results
    )


def test_models_may_write_any_character(results):
    sample = results.evaluations["single"].samples[0]
    written = sample.model_copy(update={"hypothesis": "a\0b\x1b[2J"})
    own = results.evaluations["single"].model_copy(update={"samples": [written]})
    others = results.evaluations | {"single": own}
    shown = section("translations", changed(results, evaluations=others))
    assert ">a\ufffdb\ufffd[2J<" in shown


def test_many_combinations_are_written_with_commas(results):
    search = results.search.model_copy(update={"considered": 13_823})
    assert "of at least 13,823 compatible ones" in words("tried", changed(results, search=search))


def test_the_baseline_may_be_the_fastest_that_trains_the_same_model(results):
    assert "amp_bf16 has the highest value" in words("variants", results)
    certificates = {
        name: found if name == "single" else found.model_copy(update={"status": "failed"})
        for name, found in results.certificates.items()
    }
    said = words("variants", changed(results, certificates=certificates))
    assert "no other variant that trains the same model processes more." in said


def test_the_throughput_of_a_variant_has_the_interval_of_its_ratio_alone(results):
    found, ratio = throughputs(results), results.comparisons["amp_bf16"].speedup
    middle, fast = found["single"].median, found["amp_bf16"]
    assert (fast.low, fast.high) == (middle * ratio.low, middle * ratio.high)
    assert "the interval of the ratio alone" in words("variants", results)


def test_a_variant_that_was_timed_otherwise_than_certified_is_not_certified(results):
    """Whatever its certificate says: the ratio is that of another training."""
    assert results.certificates["amp_bf16"].status == "equivalent"
    otherwise = {"certificate": "inconclusive", "counts": False}
    compared = [
        one.model_copy(update=otherwise if one.variant == "amp_bf16" else {})
        for one in results.all_comparisons
    ]
    found = changed(results, all_comparisons=compared)
    for name in ("techniques", "variants"):
        assert "no speed-up: timed differently than certified" in words(name, found)
        assert "is not certified" not in words(name, found)
    assert variants_context(results)["fastest"] == "amp_bf16"
    assert variants_context(found)["fastest"] != "amp_bf16"


def test_a_baseline_that_was_timed_otherwise_than_certified_is_not_called_uncertified(results):
    """Its badge says that it is certified."""
    assert results.certificates["single"].status == "equivalent"
    compared = [one.model_copy(update={"counts": False}) for one in results.all_comparisons]
    found = changed(results, all_comparisons=compared)
    for name in ("techniques", "variants"):
        assert "no speed-up: timed differently than certified" in words(name, found)
        assert "is not certified" not in words(name, found)
    assert "Not certified as timed, or the baseline is not: amp_bf16" in words("tried", found)


def test_a_reference_without_a_certificate_is_not_called_the_baseline(results):
    compared = results.comparisons["qkv_separate"]
    uncounted = compared.model_copy(update={"reference": "sgd", "counts": False})
    found = changed(results, all_comparisons=[*results.all_comparisons, uncounted])
    said = words("variants", found)
    assert "no speed-up: the reference is not certified" in said
    assert "the baseline is not certified" not in said


@pytest.mark.parametrize("name", ["variants", "families"])
def test_a_variant_is_not_compared_with_a_reference_translation(results, name):
    assert korean()["Reference"] == "참조 번역"
    assert korean()["Reference"] not in section(name, results)
    assert korean()["Against"] in section(name, results)


def test_the_variance_between_sessions_is_that_of_a_reference(results):
    assert "is estimated from all sessions with the same reference" in words("method", results)


def test_an_existing_tokenizer_of_texts_was_not_trained_on_them(results):
    task, corpus = (
        LanguageModel(kind="language_model"),
        GrammarTexts(name=results.study.corpus.name),
    )
    study = results.study.model_copy(update={"task": task, "corpus": corpus})
    rows = TextRows(context=256, texts=10, bytes=1_000)
    manifests = {
        name: manifest.model_copy(update={"texts": rows})
        for name, manifest in results.manifests.items()
    }
    taken = {"source": "gpt2.json", "sample_pairs": 900, "different": 2, "inexact": 3}
    tokenizer = results.tokenizer.model_copy(update=taken)
    said = words("corpus", changed(results, study=study, manifests=manifests, tokenizer=tokenizer))
    assert "The tokenizer is gpt2.json" in said
    assert "trained on" not in said
    assert "2 of 900 sentences differently" in said
    assert "3 of 900 sentences are not restored exactly from their tokens." in said


def on_gpu(name: str) -> Side:
    found = side(name)
    device = {"device": "cuda", "threads_per_rank": 1}
    topology = found.topology and found.topology.model_copy(update=device)
    return found.model_copy(update={"topology": topology})


def test_headroom_of_the_recommendation_and_the_baseline(results):
    assert headroom_context(results) == {"rooms": []}, "the search of this folder has no sessions"
    assert "Only steps of the search are compared" in words("headroom", results)
    sides = [on_gpu(BASELINE), on_gpu(BEST)]
    timed = session(1.6, reference=BASELINE, variant=BEST, sides=sides)
    profile = results.breakdowns["amp_bf16"]
    search = results.search.model_copy(update={"sessions": [timed], "profile": profile})
    rooms = headroom_context(changed(results, search=search))["rooms"]
    assert [room.name for room in rooms] == ["amp_bf16", results.study.baseline]
    assert rooms[0].seconds < rooms[1].seconds
    # The recommendation is not always the combination that the search thought best.
    other = search.model_copy(update={"side": BASELINE})
    rooms = headroom_context(changed(results, search=other))["rooms"]
    assert rooms[0].seconds == rooms[1].seconds
    for room in rooms:
        assert room.parts[0].name == "contraction"
        assert 0 < room.products < room.seconds


def test_the_method_has_the_settings_of_turns_on_the_devices_that_took_them(results):
    asked = results.study.comparison
    assert f"After {asked.warmup_steps} warm-up steps" in words("method", results)
    there = [session(1.0, sides=[on_gpu("single"), on_gpu("fast")])]
    run = results.paired_runs[0].model_copy(update={"sessions": there})
    said = words("method", changed(results, paired_runs=[run]))
    assert "After 30 warm-up steps" in said
    assert "trains for at least 1.0 s " in said


@pytest.mark.parametrize(
    ("emptied", "said"),
    [
        (lambda race: race["sides"].clear(), "needs first the side baseline, then best"),
        (lambda race: race["sides"].pop(), "needs first the side baseline, then best"),
        (lambda race: race["sides"][1]["parts"].clear(), r"sides\[1\]\.parts"),
        (lambda race: race["sides"][0]["samples"].extend(2 * [TRANSLATION]), "as many samples"),
    ],
)
def test_a_race_with_parts_missing_is_named(copied, emptied, said):
    file = copied / "quality.json"
    race = json.loads(file.read_text())
    emptied(race)
    file.write_text(json.dumps(race))
    with pytest.raises(ConfigError, match=rf"quality\.json(?s:.*){said}(?s:.*)make it again"):
        section("quality", StudyResults(copied))


def test_no_two_trainings_of_a_race_look_alike(results):
    more = [results.quality.sides[0].model_copy(update={"name": name}) for name in results.variants]
    race = results.quality.model_copy(update={"sides": [*results.quality.sides, *more]})
    figure = draw_quality(changed(results, quality=race)).figure
    lines = [line for line in figure.axes[0].lines if line.get_marker() != "None"]
    looks = {f"{line.get_color()} {line._dash_pattern} {line.get_marker()}" for line in lines}
    assert len(looks) == len(lines) == 9


def test_only_single_processes_need_no_collective_operations(copied):
    (copied / "machine/collectives.parquet").unlink()
    with pytest.raises(ConfigError, match=r"collectives\.parquet"):
        _ = StudyResults(copied).collectives
    specs = {name: alone(spec) for name, spec in StudyResults(copied).specs.items()}
    results = changed(StudyResults(copied), specs=specs)
    assert results.collectives is None
    reason = "Not measured: no variant has several processes."
    assert description(draw("collective_bandwidth", results)) == reason
    assert reason in words("machine", results)


def test_the_time_to_a_loss_is_interpolated_between_evaluations():
    looks = [
        QualityLook(step=10 * k, seconds=5.0 * k, loss=6.0 - k, bleu=0.0) for k in (1, 2, 3, 4)
    ]
    assert reaching(looks, 3.5) == pytest.approx((25.0, 12.5))
    assert reaching(looks, 3.0) == pytest.approx((30.0, 15.0))
    assert reaching(looks, 5.5) is None  # passed before the first evaluation
    assert reaching([looks[1], looks[0], looks[1]], 4.5) is None, "also if it rises again"
    assert reaching(looks, 1.0) is None  # never reached


def test_gains_are_those_of_the_race(results):
    """The recommendation takes half as long for a step, and as many steps."""
    (gain,) = from_kernel_to_quality(results)
    assert (gain.name, gain.kernels) == ("amp_bf16", None)
    assert gain.step is None  # two turns are too few for an interval
    assert (gain.steps, gain.time) == (pytest.approx(1.0), pytest.approx(2.0))


def test_the_first_turn_of_a_race_says_nothing_about_a_step(results):
    """It includes compilation: 60 seconds here, in turns of 20 and 10 seconds."""
    raced = results.quality
    sides = []
    for runner, seconds, compiling in zip(raced.sides, (20.0, 10.0), (0.0, 60.0), strict=True):
        looks = [
            QualityLook(step=100 * k, seconds=compiling + k * seconds, loss=5.0 - k, bleu=0.0)
            for k in (1, 2, 3, 4)
        ]
        sides.append(runner.model_copy(update={"looks": looks}))
    found = raced.model_copy(update={"sides": sides})
    (gain,) = from_kernel_to_quality(changed(results, quality=found))
    assert (gain.step.median, gain.step.low, gain.step.high) == pytest.approx((2.0, 2.0, 2.0))
    assert gain.step.samples == 3


def test_every_technique_is_described_in_both_languages_and_variants_name_no_others():
    assert list(techniques()) == [f"A{number}" for number in range(1, 20)]
    for technique in techniques().values():
        assert not HANGUL.search(technique["title"]["en"] + technique["text"]["en"])
        assert HANGUL.search(technique["text"]["ko"])
    variants = read_variants(ROOT / "config/variants.yaml").variants
    named = {test for variant in variants.values() for test in variant.tests}
    assert {name for name in named if name.startswith("A")} <= set(techniques())


@pytest.mark.parametrize("name", sorted({t["diagram"] for t in techniques().values()}))
def test_diagrams_are_svg_within_their_box(name):
    environment = Environment(
        loader=FileSystemLoader(ROOT / "transformer_core/report"), autoescape=True
    )
    body = environment.get_template(f"sections/diagrams/{name}.html").render()
    shapes = list(ElementTree.fromstring(f"<svg>{body}</svg>"))
    assert shapes
    for rect in (shape for shape in shapes if shape.tag == "rect"):
        x, y, width, height = (float(rect.get(k, "nan")) for k in ("x", "y", "width", "height"))
        assert 0 <= x <= x + width <= 361
        assert 0 <= y <= y + height <= 136


def test_techniques_have_their_variants(results):
    context = techniques_context(results)
    shown = {item["id"]: item["variants"] for item in context["techniques"]}
    assert shown["A6"] == ["amp_bf16"]
    assert not set(shown) & {item["id"] for item in context["absent"]}
