"""Claims and families: their files, and the remedies for mistakes."""

import re
from pathlib import Path
from typing import Any

import jmespath
import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from schemas.config.claims import Claims, Number, numbers_of, variants_of
from schemas.config.study import Study
from schemas.config.variants import Family, Variant
from schemas.results import Breakdown, MemoryResult, Repeat, Roofline
from tests.refusals import problem_of
from transformer_core.study.compared_pairs import family_pairs, members_in
from transformer_core.study.study_files import claim_files, claim_pairs, read_claims
from transformer_core.study.variants import read_variants

ROOT = Path(__file__).resolve().parents[2]
DECLARED = read_variants(ROOT / "config/variants.yaml")
VARIANTS = {
    name: Variant(equivalence="tolerance", summary=name)
    for name in ("single", "ddp", "ddp_bucket_1mb", "ddp_bucket_5mb")
}
COMPARISON = {"kind": "comparison", "variant": "ddp", "reference": "single", "direction": "more"}
NUMBER = {"file": "results/memory/{variant}.json", "variant": "ddp", "value": "ranks[0].bytes"}
MEASUREMENT = {"kind": "measurement", "what": "Bytes", "number": NUMBER, "at_least": 1}
RATIO = {"kind": "ratio", "what": "r", "numerator": NUMBER, "denominator": NUMBER}
TREND = {"kind": "trend", "direction": "rises"}
FAMILY = {
    "title": "Bucket",
    "summary": "How large?",
    "reference": "ddp",
    "members": [
        {"value": 25, "variant": "ddp"},
        {"value": 1, "variant": "ddp_bucket_1mb"},
        {"value": 5, "variant": "ddp_bucket_5mb"},
    ],
}


def in_file(path: str) -> dict[str, Any]:
    return MEASUREMENT | {"number": NUMBER | {"file": path}}


def claims(tmp_path: Path, *tests: Any, **more: Any) -> dict[str, Any]:
    content = {"C1": {"statement": "It is so.", "source": "A book", "tests": list(tests)} | more}
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump(content))
    families = {"buckets": Family.model_validate(FAMILY)}
    return read_claims(path, VARIANTS, families)


@pytest.mark.parametrize(
    ("test", "field", "words"),
    [
        (COMPARISON | {"variant": "dpp"}, "variant", "did you mean ddp"),
        (COMPARISON | {"reference": "singel"}, "reference", "did you mean single"),
        (COMPARISON | {"reference": "ddp"}, "reference", "compared with itself"),
        (COMPARISON | {"direction": "faster"}, "direction", "more"),
        (COMPARISON | {"quantity": "speed"}, "quantity", "throughput"),
        (COMPARISON | {"kind": "comparision"}, "", "did you mean comparison"),
        (COMPARISON | {"varaint": "ddp"}, "varaint", "did you mean variant"),
        (COMPARISON | {"at_least": 3, "at_most": 2}, "", "at least 3.0 and at most 2.0"),
        (COMPARISON | {"needs": {"devices": 0}}, "needs.devices", "at least 1"),
        (COMPARISON | {"needs": {"device": "gpu"}}, "needs.device", "cuda"),
        (MEASUREMENT | {"at_least": None}, "", "nothing could refute it"),
        (MEASUREMENT | {"direction": "more"}, "", "add than"),
        (MEASUREMENT | {"than": 3}, "", "add direction"),
        (MEASUREMENT | {"number": NUMBER | {"value": "a["}}, "number.value", "JMESPath"),
        (MEASUREMENT | {"number": NUMBER | {"variant": "dpp"}}, "number.variant", "ddp"),
        (MEASUREMENT | {"number": NUMBER | {"variant": None}}, "number", "add variant"),
        (in_file("results/x.json"), "number", "write {variant} in the file"),
        (in_file("/etc/{variant}.json"), "number.file", "results"),
        (in_file("results/../{variant}.json"), "number.file", "results"),
        (RATIO, "", "nothing could refute it"),
        (TREND | {"family": "bucket"}, "family", "did you mean buckets"),
        ({"kind": "certificate", "variant": "dpp"}, "variant", "did you mean ddp"),
    ],
)
def test_a_wrong_test_is_named_with_a_remedy(tmp_path, test, field, words):
    problem = problem_of(claims, tmp_path, COMPARISON, test)
    place = "C1.tests[1]" + (f".{field}" if field else "")
    assert problem.field in (place, f"{place}.kind")
    assert words in f"{problem.message} {problem.remedy}"


def test_pairs_and_files_of_claims(tmp_path):
    back = COMPARISON | {"variant": "single", "reference": "ddp"}
    found = claims(tmp_path, COMPARISON, back, COMPARISON, MEASUREMENT, MEASUREMENT)
    both = Study(name="mine", variants=["single", "ddp"])
    assert claim_pairs(found, both) == [("ddp", "single"), ("single", "ddp")]
    assert claim_pairs(found, Study(name="mine", variants=["single"])) == []
    assert claim_files(found) == ["results/memory/ddp.json"]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([*FAMILY["members"], {"value": 5, "variant": "single"}], "holds the value 5 twice"),
        (FAMILY["members"][:1], "at least 2"),
        ([*FAMILY["members"], {"value": 0, "variant": "single"}], "greater than 0"),
    ],
)
def test_a_wrong_family(members, words):
    with pytest.raises(ValidationError, match=words):
        Family.model_validate(FAMILY | {"members": members})


def test_members_and_pairs_of_a_study():
    found = Family.model_validate(FAMILY)
    study = Study(name="mine", variants=["single", "ddp_bucket_5mb", "ddp", "ddp_bucket_1mb"])
    assert [member.value for member in members_in(found, study)] == [1, 5, 25]
    pairs = [("ddp_bucket_1mb", "ddp"), ("ddp_bucket_5mb", "ddp")]
    assert family_pairs({"one": found, "same": found}, study) == pairs
    few = Study(name="mine", variants=["single", "ddp", "ddp_bucket_1mb"])
    two = Family.model_validate(FAMILY | {"members": FAMILY["members"][1:]})
    assert family_pairs({"one": two}, few) == []
    for variants in (["single", "ddp"], ["single", "ddp_bucket_1mb", "ddp_bucket_5mb"]):
        assert family_pairs({"one": found}, Study(name="mine", variants=variants)) == []


def test_the_original_claims_are_complete_and_known_to_their_variants():
    found = read_claims(ROOT / "config/claims.yaml", *DECLARED)
    assert [name for name in found if name.startswith("C")] == [f"C{n}" for n in range(1, 17)]
    named = {row for variant in DECLARED.variants.values() for row in variant.tests}
    assert {row for row in named if row.startswith("C")} <= set(found)
    for name, claim in found.items():
        used = {variant for test in claim.tests for variant in variants_of(test).values()}
        for test in claim.tests:
            if test.kind == "trend":
                used |= {member.variant for member in DECLARED.families[test.family].members}
        assert used, name


def test_the_examples_of_the_document_are_valid(tmp_path):
    text = (ROOT / "docs/adding-a-claim.md").read_text(encoding="utf-8")
    claims, number, sweeps = re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S)
    assert TypeAdapter(Claims).validate_python(yaml.safe_load(claims))
    assert Number.model_validate(yaml.safe_load(number)["number"])
    (tmp_path / "variants.yaml").write_text(
        f"ddp: {{equivalence: tolerance, summary: s}}\n{sweeps}"
    )
    assert list(read_variants(tmp_path / "variants.yaml").families) == ["my_bucket_size"]


RECORDS = {"memory": MemoryResult, "profiles": Breakdown, "machine": Roofline, "runs": Repeat}


def fields_of(model: Any) -> set[str]:
    """Names of all fields of a schema and of what it holds."""
    schema = TypeAdapter(model).json_schema()
    parts = [schema, *schema.get("$defs", {}).values()]
    return {name for part in parts for name in part.get("properties", {})}


def fields_in(node: Any) -> set[str]:
    """Names of all fields that a parsed expression of JMESPath looks up."""
    if not isinstance(node, dict):  # the ends of a slice
        return set()
    own = {node["value"]} if node["type"] == "field" else set()
    return own.union(*(fields_in(child) for child in node["children"]))


def test_the_original_claims_look_up_fields_that_results_have():
    found = read_claims(ROOT / "config/claims.yaml", *DECLARED)
    numbers = [n for claim in found.values() for test in claim.tests for n in numbers_of(test)]
    known = {folder: fields_of(schema) for folder, schema in RECORDS.items()}
    assert {number.file.split("/")[1] for number in numbers} == set(known)
    for number in numbers:
        asked = fields_in(jmespath.compile(number.value).parsed)
        assert asked, number.value
        assert asked <= known[number.file.split("/")[1]], number.value
