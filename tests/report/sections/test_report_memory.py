"""The section on memory, its figures and tables."""

import re
import shutil

import pytest
from drawn import description, rows_of, texts, words
from memory_builders import CONTEXT, MIB
from pair_builders import session, side
from report_builders import ask, changed

from schemas.results import Parts
from schemas.results.common import BASELINE, BEST
from transformer_core.report.contents import SECTIONS
from transformer_core.report.page import draw
from transformer_core.report.sections import memory
from transformer_core.report.sections.memory import (
    Check,
    errors,
    memory_context,
    of_recommendation,
    run_checks,
    schemes,
    telling,
    tensor_checks,
)

SECTION = next(section for section in SECTIONS if section.name == "memory")


def test_errors_are_relative_to_the_measured_peak(results):
    checks = tensor_checks(results)
    by_variant = {check.variant: check for check in checks}
    assert [*by_variant] == ["single", "amp_bf16", "accum4_sync", "sgd", "forgetful"]
    assert len(checks) == len(by_variant)
    # Predicted 61 MiB, measured 58 on the first rank and 38 on the others.
    assert by_variant["single"].error == pytest.approx(61 / 58 - 1)
    # Two ranks of equal work: the prediction is for the fullest.
    both = by_variant["accum4_sync"]
    assert (both.place, both.error) == ("fullest, rank 0", pytest.approx(61 / 58 - 1))
    assert errors([]) is None
    assert errors([Check("a", "rank 0", 80, 100)]) == pytest.approx((0.2, 0.2))


def test_predictions_of_timed_runs_include_the_context(results):
    checks = run_checks(results)
    single = [check for check in checks if check.variant == "single"]
    assert [check.place for check in single] == ["repeat 1, rank 0", "repeat 2, rank 0"]
    assert single[0].predicted == CONTEXT + 61 * MIB
    assert single[0].measured == 345 * MIB


def test_every_device_of_a_process_is_checked_against_its_prediction(results):
    """DataParallel: the first device does other work than the rest, in the same process."""
    single, found = results.variants["single"], results.predicted_memory
    (first,) = memory.predictions(results)["single"].ranks
    other = first.model_copy(update={"rank": 1, "training_bytes": 30 * MIB, "validation_bytes": 0})
    predicted = [
        prediction.model_copy(update={"ranks": [first, other]})
        for prediction in found.predictions
        if prediction.variant == "single"
    ]
    (rank,) = single.repeats[0].memory
    devices = [
        rank.model_copy(update={"device": f"cuda:{number}", "allocated_bytes": size * MIB})
        for number, size in enumerate((61, 30, 30))
    ]
    repeat = single.repeats[0].model_copy(update={"memory": devices})
    several = changed(
        results,
        predicted_memory=found.model_copy(update={"predictions": predicted}),
        variants={"single": single.model_copy(update={"repeats": [repeat]})},
    )
    checks = run_checks(several)
    assert [check.place for check in checks] == [f"repeat 1, cuda:{n}" for n in range(3)]
    assert [check.error for check in checks] == [first.peak_bytes / (61 * MIB) - 1, 0, 0]


def test_variants_shown_in_detail(results):
    assert telling(results) == ["single", "accum4_sync"]
    assert list(schemes(results)) == ["accum4_sync"]
    found = memory_context(results)
    (peaks,) = found["schemes"].values()
    assert found["imbalance"](peaks) == pytest.approx(58 / 38)


def test_the_section_shows_numbers_and_reasons(results):
    text = words("memory", results)
    assert "off by 5.2 % in the median and 5.2 % at worst" in text
    assert "16 [ 16 ]" in text
    assert "needs 2 GPUs, found 1 &lt;script&gt;" in text  # of ddp, whose runs are unsupported
    assert re.search(r"qkv_separate *, *not predicted *: *failed", text)
    assert "yes 64 ok, 66 oom" in text
    assert "cuda:0, &lt;script&gt;" in text
    assert "1.53×" in text


def test_variants_with_the_same_memory_are_named_together(results):
    found = memory_context(results)
    peaks = {one.result.variant: one.rank.peak_tensor_bytes for one in found["measured"]}
    for end, size in (("fullest", max(peaks.values())), ("leanest", min(peaks.values()))):
        assert [one.result.variant for one in found[end]] == [n for n in peaks if peaks[n] == size]
    assert len(found["fullest"]) + len(found["leanest"]) > 2, "or this tests nothing"


def test_variants_that_recompute_are_compared_with_the_baseline(results):
    spec, own = results.specs["amp_bf16"], results.memory["amp_bf16"]
    model = spec.model.model_copy(update={"checkpoint": "layers"})
    specs = results.specs | {"amp_bf16": spec.model_copy(update={"model": model})}
    half = own.ranks[0].peak_tensor_bytes / 2
    rank = own.ranks[0].model_copy(update={"peak_tensor_bytes": half})
    memory = results.memory | {"amp_bf16": own.model_copy(update={"ranks": [rank]})}
    (found,) = memory_context(changed(results, specs=specs, memory=memory))["cheaper"]
    assert (found["variant"], found["of_baseline"]) == ("amp_bf16", 0.5)


def test_the_memory_of_the_recommendation_is_that_of_its_own_processes(results):
    sides = [side(BASELINE, 400), side(BEST, 900), side("stage_1", 300)]
    found = {"sessions": [session(1.6, sides=sides)], "side": "stage_1"}
    search = results.search.model_copy(update=found)
    assert of_recommendation(changed(results, search=search)) == (300, 400)
    # No combination that took turns is shown to be faster than the baseline.
    search = search.model_copy(update={"status": "baseline", "parts": [], "certificate": None})
    assert of_recommendation(changed(results, search=search)) is None


def test_equal_memory_is_that_of_measured_variants(results, monkeypatch):
    single = {"single": memory.followed(results)["single"]}
    monkeypatch.setattr(memory, "followed", lambda _: single)
    assert "at their peak in every measured variant." in words("memory", results)


def test_a_study_without_memory_says_so(copied):
    shutil.rmtree(copied / "memory")
    without = ask(copied, memory=None)
    assert words("memory", without).startswith("The study does not measure memory.")
    for table in ("memory", "memory_milestones", "largest_batch"):
        assert rows_of(table, without) == []
    for name in set(SECTION.figures) - {"memory"}:  # that is of the timed runs
        assert "variant to show" in " ".join(texts(draw(name, without)))


def test_a_study_may_only_predict_memory(copied):
    for path in (copied / "memory").glob("[!p]*.json"):
        path.unlink()
    asked = {"anatomy": False, "largest_batch": {"variants": ["single"]}}
    text = words("memory", ask(copied, memory=asked))
    assert "Bytes per parameter" not in text
    assert "Prediction and timed runs" in text
    assert "Largest batch" in text


def test_figures_show_parts_and_ranks(drawing):
    anatomy = texts(drawing("memory_anatomy"))
    assert {"activations", "state by the formulas", "predicted peak", "single"} <= set(anatomy)
    assert not {"master weights", "ddp"} & set(anatomy)
    step = texts(drawing("memory_step"))
    assert step.count("forward") == 2
    assert "accum4_sync, rank 0" in step
    milestones = texts(drawing("memory_milestones"))
    assert "process (resident set)" in milestones
    assert "device (NVML)" not in milestones
    assert {"0", "1", "accum4_sync"} <= set(texts(drawing("memory_imbalance")))
    axis = "predicted over measured peak of tensors, minus 1"
    assert axis in texts(drawing("memory_prediction"))


def test_without_several_devices_there_is_no_memory_by_rank(results):
    single = changed(results, memory={"single": results.memory["single"]})
    assert "on several devices" in description(draw("memory_imbalance", single))


def test_every_device_has_its_label(results, monkeypatch):
    both = schemes(results)["accum4_sync"]
    few = both.model_copy(update={"ranks": both.ranks[:1]})
    monkeypatch.setattr(memory, "schemes", lambda _: {"central": few, "ddp": both})
    assert {"0", "1"} <= set(texts(draw("memory_imbalance", results)))


def test_tables(results):
    rows = rows_of("memory", results)
    by_place = {(row["variant"], row["rank"]): row for row in rows}
    assert by_place["ddp", None]["peak_tensor_bytes"] is None
    assert by_place["ddp", None]["status"] == "unsupported"
    single = by_place["single", 0]
    assert (
        sum(single[part] for part in Parts.model_fields) + single["residual_bytes"]
        == single["peak_tensor_bytes"]
        == 58 * MIB
    )
    assert single["model_state_per_parameter"] == 16
    assert by_place["amp_bf16", 0]["formula_model_state_per_parameter"] == 18
    assert by_place["accum4_sync", 0]["formula_buckets_per_parameter"] == 4
    moments = rows_of("memory_milestones", results)
    own = [row["milestone"] for row in moments if row["variant"] == "single"]
    assert (own[0], own[-1]) == ("start", "peak")
    trials = rows_of("largest_batch", results)
    assert [row["pairs"] for row in trials] == [64, 66, 64, 66]
    assert {row["largest_tokens"] for row in trials} == {64 * 60}
