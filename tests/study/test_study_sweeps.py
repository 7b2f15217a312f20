"""Sweeps: one entry yields variants and families; mistakes are named."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.config.study import Study
from schemas.errors import ConfigError
from tests.refusals import problems_of
from transformer_core.study.resolve import resolve
from transformer_core.study.variants import Declared, main, read_variants

CURVE = {"title": "Bucket", "unit": "MiB", "summary": "How large?", "reference": "ddp"}
BUCKETS: dict[str, Any] = {
    "parents": ["ddp"],
    "names": "ddp_{value}",
    "field": "parallel.bucket_mb",
    "values": [{"value": 0.25, "name": "256kb", "text": "a quarter"}, 5],
    "summary": "Buckets of {value}.",
    "curves": {"bucket": CURVE | {"others": [{"value": 25, "variant": "ddp"}]}},
}
LINKS: dict[str, Any] = {
    "parents": ["ddp_5", "ddp_256kb"],
    "names": "{parent}_{value}",
    "field": "machine.link.bandwidth",
    "values": [
        {"value": "100Mbit/s", "name": "100mbit", "at": 100},
        {"value": "1Gbit/s", "name": "1gbit", "at": 1000},
    ],
    "change": {"machine": {"nodes": 2}},
    "equivalence": "statistical",
    "tests": ["C4"],
    "summary": "{parent} Over {value}.",
    "curves": {"link": CURVE | {"parent": "ddp_256kb", "reference": "ddp_5_{value}"}},
}
DDP = {
    "change": {"parallel": {"kind": "ddp"}},
    "equivalence": "tolerance",
    "tests": ["A4"],
    "summary": "Replicas.",
}


def read(folder: Path, **entries: Any) -> Declared:
    path = folder / "variants.yaml"
    # A sweep may come before the sweeps that yield its parents.
    path.write_text(yaml.safe_dump({"links": LINKS, "buckets": BUCKETS, "ddp": DDP} | entries))
    return read_variants(path)


def test_values_become_variants_and_their_run_specs(tmp_path):
    variants = read(tmp_path).variants
    swept = ["ddp_256kb", "ddp_5", "ddp_5_100mbit", "ddp_5_1gbit", "ddp_256kb_100mbit"]
    assert set(variants) == {"ddp", *swept, "ddp_256kb_1gbit"}
    small, link = variants["ddp_256kb"], variants["ddp_5_1gbit"]
    assert (small.parent, small.change) == ("ddp", {"parallel": {"bucket_mb": 0.25}})
    assert (small.equivalence.kind, small.tests) == ("tolerance", ["A4"])
    assert small.summary == "Buckets of a quarter."
    assert link.parent == "ddp_5"
    assert link.change == {"machine": {"nodes": 2, "link": {"bandwidth": "1Gbit/s"}}}
    assert (link.equivalence.kind, link.tests) == ("statistical", ["C4"])
    assert link.summary == "Buckets of 5. Over 1Gbit/s."
    spec = resolve(Study(name="s", variants=["ddp"]), "ddp_256kb_100mbit", variants)
    assert (spec.parallel.bucket_mb, spec.machine.link.bandwidth) == (0.25, 1e8)


def test_curves_become_families(tmp_path):
    families = read(tmp_path).families
    bucket, link = families["bucket"], families["link"]
    members = [(m.value, m.variant, bucket.reference_of(m)) for m in bucket.members]
    assert members == [(0.25, "ddp_256kb", "ddp"), (5, "ddp_5", "ddp"), (25, "ddp", "ddp")]
    assert (bucket.title, bucket.unit, bucket.scale) == ("Bucket", "MiB", "log")
    members = [(m.value, m.variant, link.reference_of(m)) for m in link.members]
    assert members == [
        (100, "ddp_256kb_100mbit", "ddp_5_100mbit"),
        (1000, "ddp_256kb_1gbit", "ddp_5_1gbit"),
    ]


def buckets(**changes: Any) -> dict[str, Any]:
    return {"buckets": BUCKETS | changes}


def curve(**changes: Any) -> dict[str, Any]:
    return buckets(curves={"bucket": CURVE | changes})


OTHERS = [{"value": 1, "variant": "ddp"}]
WRONG: list[tuple[dict[str, Any], str, str]] = [
    (buckets(parents=["dpp"]), "buckets.parents[0] = 'dpp'", "did you mean ddp"),
    (buckets(field="parallel.bucket_bm"), "buckets.field", "did you mean parallel.bucket_mb"),
    (buckets(field="corpus.seed"), "buckets.field = 'corpus.seed'", "did you mean "),
    (buckets(names="ddp_bucket"), "buckets.names", "write {value} where they differ"),
    (buckets(parents=["ddp", "dp"]), "buckets.names", "write {parent} where they differ"),
    (buckets(names="ddp_{values}"), "buckets.names", "did you mean value"),
    (buckets(names="ddp_{value"), "buckets.names", "write {parent} or {value}"),
    (buckets(names="DDP_{value}"), "buckets.values[0] = 0.25", "makes the name DDP_256kb"),
    (buckets(values=[0.5, 5]), "buckets.values[0] = 0.5", "makes the name ddp_0.5"),
    (buckets(values=[5, 5]), "buckets.values", "holds the value 5 twice"),
    (buckets(values=[]), "buckets.values = []", "at least 1"),
    (buckets(values=[{"value": 5, "nmae": "5mb"}]), "buckets.values[0]", "did you mean name"),
    (buckets(summry="s"), "buckets.summry", "did you mean summary"),
    (buckets(change={"modle": {}}), "buckets.change", "did you mean model"),
    ({"more": BUCKETS | {"curves": {}}}, "more.names", "made by buckets already"),
    ({"ddp_5": DDP}, "buckets.names", "makes ddp_5, which is another entry already"),
    ({"more": BUCKETS | {"names": "d_{value}"}}, "more.curves.bucket", "a curve of buckets"),
    (buckets(parents=["ddp_5"]), "buckets.parents[0] = 'ddp_5'", "-> ddp_5 -> ddp_5"),
    (buckets(summary="{value:d}"), "the placeholder {value:d}", "did you mean value"),
    (curve(reference="dpp"), "buckets.curves.bucket.reference = 'dpp'", "did you mean ddp"),
    (curve(reference="ddb_{value}"), "buckets.curves.bucket.reference = 'ddb_256kb'", "ddp_256kb"),
    (curve(parent="dpp"), "buckets.curves.bucket.parent = 'dpp'", "did you mean ddp"),
    (curve(others=[{"value": 1, "variant": "dpp"}]), "others[0].variant = 'dpp'", "mean ddp"),
    (curve(reference="ddp_{value}", others=OTHERS), "others[0].reference", "name a variant"),
    (buckets(values=[0, 5]), "buckets.values[0].at = 0", "numbers above 0"),
    (
        buckets(values=[{"value": 1, "at": 5}, 5]),
        "buckets.values[1].at = 5",
        "place of another value",
    ),
]


@pytest.mark.parametrize(("entries", "place", "words"), WRONG)
def test_mistakes_are_named(tmp_path, entries, place, words):
    alone: dict[str, Any] = {"links": DDP} if "parents" not in str(entries.get("links")) else {}
    found = problems_of(read, tmp_path, **(alone | entries))
    assert any(place in str(one) and words in str(one) for one in found), found


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"values": [5, {"value": -5, "name": "less"}]}, "buckets.values[1] = -5"),
        ({"change": {"parallel": {"overlp": True}}}, "buckets.change.parallel.overlp = True"),
    ],
)
def test_a_value_that_no_run_can_have_is_named(tmp_path, change, place):
    study = Study(name="s", variants=["ddp"])
    variants = read(tmp_path, links=DDP, **buckets(curves={}, **change)).variants
    name = next(name for name in ("ddp_less", "ddp_5") if name in variants)
    with pytest.raises(ConfigError) as caught:
        resolve(study, name, variants, "study.yaml")
    assert str(caught.value).startswith(f"config/variants.yaml: {place}")


def test_the_table_lists_every_variant(tmp_path, capsys):
    read(tmp_path)
    assert main([str(tmp_path / "variants.yaml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 7
    (small,) = [line for line in lines if line.startswith("ddp_256kb ")]
    assert " ".join(small.split()) == "ddp_256kb ddp {parallel: {bucket_mb: 0.25}} tolerance bucket"
    assert main([str(tmp_path / "none.yaml")]) == 1
    assert "check the path" in capsys.readouterr().err
