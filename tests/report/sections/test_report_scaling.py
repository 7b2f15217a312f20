"""The section on slow links and more devices, and its figures."""

import pytest
from drawn import description, section, texts, words
from hostile import EVIL
from report_builders import ask, changed

from schemas.config.parallel import Link
from schemas.results import LinkUse
from transformer_core.common.percent import percent
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit.formats import exact
from transformer_core.report.page import draw
from transformer_core.report.sections.scaling import (
    MOST_ERROR,
    STRATEGIES,
    dropped,
    errors,
    linked_runs,
    scaling_context,
    shown_curves,
)

EMULATED = '<span class="badge"><span lang="en">emulated<'


def over_a_link(
    results: StudyResults, variant: str, kind: str, emulate: bool = False
) -> StudyResults:
    """The results as if ``variant`` had run on two hosts."""
    spec, result = results.specs[variant], results.variants[variant]
    link = Link(bandwidth=1e8, emulate=emulate)
    machine = spec.machine.model_copy(update={"nodes": 2, "devices_per_node": 1, "link": link})
    use = LinkUse(kind=kind, bandwidth=1e8)
    repeats = []
    for repeat in result.repeats:
        found = repeat.topology and repeat.topology.model_copy(update={"link": use})
        repeats.append(repeat.model_copy(update={"topology": found}))
    return changed(
        results,
        specs=results.specs | {variant: spec.model_copy(update={"machine": machine})},
        variants=results.variants | {variant: result.model_copy(update={"repeats": repeats})},
    )


def test_a_run_over_a_link_shows_how_the_link_was_made(results):
    assert linked_runs(results) == []
    assert "links-caption" not in section("scaling", results)
    (run,) = linked_runs(over_a_link(results, "accum4_sync", "namespaces"))
    found = (run.result.variant, run.bandwidth, run.kind)
    assert found == ("accum4_sync", "100 Mbit/s", "namespaces")
    # A window is 10 steps of 30,000 to 30,800 tokens at 7,300 tokens per second.
    assert run.step_seconds == pytest.approx(0.417, rel=0.03)
    assert EMULATED not in section("scaling", over_a_link(results, "accum4_sync", "namespaces"))
    html = section("scaling", over_a_link(results, "accum4_sync", "emulated"))
    assert EMULATED in html
    assert "100 Mbit/s" in html

    # A run that is not ok has its status, and no numbers.
    (run,) = linked_runs(over_a_link(results, "ddp", "namespaces"))
    assert (run.step_seconds, run.hosts, run.kind) == (None, [], None)
    assert "unsupported" in section("scaling", over_a_link(results, "ddp", "namespaces"))


def test_errors_of_the_emulated_link(results, drawing):
    html = section("scaling", results)
    assert 'value="0.04"' in html, "median of 2, 4 and 7 %"
    assert 'value="0.07"' in html, "worst"
    assert "<script>" not in html
    assert html.count("&lt;script&gt;") == 1, "the reason of the trial that did not run"
    shown = texts(drawing("link_error"))
    assert shown.count("ddp") == 2
    assert shown.count("small buckets") == 1, "the one at 1 Gbit/s was not measured"
    assert {"100 Mbit/s", "1 Gbit/s"} <= set(shown)


def test_links_of_any_number_are_drawn(results):
    trials = [trial for trial in results.link_error.trials if trial.error is not None]
    many = [trials[0].model_copy(update={"bandwidth": 1e8 * n}) for n in range(1, 13)]
    other = changed(results, link_error=results.link_error.model_copy(update={"trials": many}))
    assert {"100 Mbit/s", "1.2 Gbit/s"} <= set(texts(draw("link_error", other)))


def test_links_without_a_knee_share_a_sentence(results):
    links = "measured , ethernet_1gbit , ethernet_25gbit , infiniband_400gbit"
    assert f"less than half of a DDP step over {links} ." in words("scaling", results)
    points = [
        curve.model_copy(update={"points": curve.points[:1]}) for curve in results.projection.curves
    ]
    alone = results.projection.model_copy(update={"curves": points})
    assert "one device does not communicate." in words(
        "scaling", changed(results, projection=alone)
    )


def test_the_caption_has_the_error_of_the_curves(results, drawing):
    projection = scaling_context(results)["projection"]
    (check,) = [check for check in projection.checks if check.error is not None]
    assert check.variant == "accum4_sync"
    said = f"off by {percent(abs(check.error))} in the median"
    assert said in description(drawing("scaling"))
    assert not any(said in text for text in texts(drawing("scaling"))), "a legend that wide is cut"


def test_a_strategy_with_a_large_error_has_no_curve(results, drawing):
    projection = scaling_context(results)["projection"]
    ((wrong, error),) = dropped(projection).items()
    assert wrong == "accumulation_sync"
    assert error > MOST_ERROR
    curves = shown_curves(projection)
    links = {curve.link for curve in curves}
    assert {curve.strategy for curve in curves} == {*STRATEGIES} - {wrong}
    assert len(curves) == len(links) * (len(STRATEGIES) - 1)
    drawn, html = set(texts(drawing("scaling"))), section("scaling", results)
    for strategy, said in STRATEGIES.items():
        # Once per link in the table, or once in the reason why there is no curve.
        assert html.count(f">{said}<") == (1 if strategy == wrong else len(links))
        assert (said in drawn) == (strategy != wrong)
    assert f'value="{exact(error)}"' in html


def test_one_disturbed_run_does_not_drop_a_curve(results):
    projection = scaling_context(results)["projection"]
    (check,) = [check for check in projection.checks if check.error is not None]
    runs = [check.model_copy(update={"error": error}) for error in (-0.4, 0.0, 0.12)]
    others = projection.model_copy(update={"checks": runs})
    assert errors(others) == {"accumulation_sync": 0.12}
    assert dropped(others) == {}


def test_bucket_sizes_are_drawn_for_each_number_of_devices(drawing):
    shown = texts(drawing("bucket_sizes"))
    assert {"2 devices", "8 devices", "64 devices", "512 devices"} <= set(shown)
    assert "bucket size (MiB)" in shown


def test_checks_show_why_there_is_no_prediction(results):
    none = {"predicted_seconds": None, "error": None, "note": f"the model does not cover {EVIL}"}
    checks = [check.model_copy(update=none) for check in results.projection.checks]
    unchecked = {"checks": checks, "median_error": None, "worst_error": None}
    other = changed(results, projection=results.projection.model_copy(update=unchecked))
    html = section("scaling", other)
    assert "the model does not cover" in html
    assert "<script>" not in html
    assert texts(draw("projection_check", other)) == ["No variant to show"]
    assert "Not checked against any run" in draw("scaling", other)


def test_the_bandwidth_of_the_measured_link_has_three_digits(results):
    link = results.projection.measured_link.model_copy(update={"bandwidth": 17_946_312_345.6})
    projection = results.projection.model_copy(update={"measured_link": link})
    text = section("scaling", changed(results, projection=projection))
    assert "fit a link of 17.9 Gbit/s" in text
    assert '.</span><span lang="en">' not in text, "sentences without a space"


def test_a_study_may_ask_for_neither(study_folder):
    html = section("scaling", ask(study_folder, projection=None, link_check=None))
    assert "The study asks for neither links nor projections." in html
    assert "<table>" not in html
    assert texts(draw("scaling", ask(study_folder, projection=None))) == ["Nothing to project"]


def test_a_projection_without_curves_gives_the_reason(empty_report):
    results = StudyResults(empty_report)
    html = section("scaling", results)
    assert "No projection:" in html
    assert "could not be timed: unsupported" in html
    assert "knees-caption" not in html
    assert "original-caption" in html, "the worked example needs no measurement"
