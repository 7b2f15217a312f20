"""The sections on the reasons for differences and on layers."""

import pytest

from transformer_core.report.sections import layers
from transformer_core.report.sections.why import reasons, why_context
from transformer_core.report.tables import rows_of


def test_every_comparison_of_profiled_variants_has_its_reason(results):
    found = {(r.comparison.variant, r.comparison.reference): r.difference for r in reasons(results)}
    profiled = {name for name, found in results.breakdowns.items() if found.devices}
    expected = {
        (item.variant, item.reference)
        for item in results.all_comparisons
        if {item.variant, item.reference} <= profiled
    }
    assert found.keys() == expected
    other = found["accum4_sync", results.study.baseline]
    assert (other.first, other.second) == (results.study.baseline, "accum4_sync")
    assert sum(part.difference_ms for part in other.parts) == pytest.approx(
        other.step.difference_ms
    )
    assert [change.name for change in other.collectives] == ["all_reduce"]
    rows = [row for row in rows_of("differences", results) if row["variant"] == "accum4_sync"]
    (step,) = [row for row in rows if row["kind"] == "step"]
    parts = [row["difference_ms"] for row in rows if row["kind"] == "parts"]
    assert sum(parts) == pytest.approx(step["difference_ms"])


def test_differences_agree_with_the_ratios_of_the_turns(results):
    baseline = results.study.baseline
    found = [r for r in reasons(results) if r.comparison.reference == baseline and r.timed]
    assert found
    for reason in found:
        step = reason.timed.step
        assert step.first_ms / step.second_ms == pytest.approx(reason.comparison.speedup.median)
        parts = [part.difference_ms for part in reason.timed.parts]
        assert sum(parts) == pytest.approx(step.difference_ms)


def test_causes_of_waiting_and_critical_paths(results):
    found = why_context(results)
    bound = {bound.name: bound for bound in found["bounds"]}["accum4_sync"]
    parts = ("device", "link", "copies", "input", "host", "other")
    assert sum(bound.share(part) for part in parts) == pytest.approx(1)
    assert bound.share("link") == pytest.approx(bound.parts.link_ns / bound.parts.window_ns)
    assert (bound.delay_ms, bound.queue) == (None, None), "a CPU launches nothing"
    path = next(path for path in found["paths"] if path.name == "accum4_sync")
    assert sum(part.time_ns for part in path.parts) == path.window_ns
    if best := found["best"]:
        assert best.comparison.verdict == "FASTER"


def test_the_tree_of_layers(results):
    found = layers.layers_context(results)
    tree = found["trees"][0]
    assert tree.name == results.study.baseline
    assert [layer.path for layer in tree.layers] == [
        *("model", "model/encoder", "model/encoder/linear", "model/encoder/norm")
    ]
    model, encoder, linear, norm = tree.layers
    assert [layers.depth(layer) for layer in tree.layers] == [0, 1, 2, 2]
    assert model.time_ns == encoder.time_ns == linear.time_ns + norm.time_ns
    assert tree.share(model) == 1.0
    assert found["largest"].path == "model/encoder"
    assert tree.per_step(model.held_bytes) == 4096
    (use, share), *_ = tree.shapes
    assert (use.operator, use.number_format) == ("aten::mm", "fp32")
    assert share is None or share > 0
    rows = [row for row in rows_of("layers", results) if row["variant"] == tree.name]
    assert [row["path"] for row in rows] == [layer.path for layer in tree.layers]
    assert {row["operator"] for row in rows_of("shapes", results)} == {"aten::mm"}
