"""The sections on claims and on families of variants."""

import re

import pytest
from drawn import description, rows_of, section, texts, words
from hostile import EVIL
from page_reader import Page
from report_builders import changed

from schemas.errors import ConfigError
from transformer_core.decide.study_results import StudyResults


def row_of(page: Page, claim: str) -> list[str]:
    return next(row for row in page.rows if row[0] == claim and len(row) == 4)


@pytest.mark.parametrize(
    ("claim", "verdict", "evidence"),
    [
        ("true", "holds here", "1 test that cannot be run here"),
        ("large", "partly", "a different size"),
        ("false", "does not hold here", "contradicts"),
        ("open", "undecided", "does not train the same model"),
        ("elsewhere", "not testable here", "ddp ended unsupported: needs 2 GPUs"),
    ],
)
def test_every_verdict_is_in_words_with_its_evidence(page, claim, verdict, evidence):
    row = row_of(page, claim)
    assert row[2].startswith(verdict)
    assert "A book, page 3" in row[1]
    assert evidence in row[3]


def test_evidence_has_numbers_files_and_variants(page):
    assert ["Id", "Claim", "Verdict", "Evidence"] in page.rows
    assert re.search(r"snakemake --cores all \S*claims.json", page.texts["claims"])
    evidence = row_of(page, "true")[3]
    assert re.search(
        r"agrees Throughput of amp_bf16 over single: 1\.62× \[1\.\d+, 1\.\d+\]", evidence
    )
    assert "Claimed: more, at most 3. Found: " in evidence
    assert "results/turns/single/1/amp_bf16/single.json" in evidence
    assert "ddp ended unsupported: needs 2 GPUs" in evidence
    assert all(EVIL in page.texts[name] for name in ("claims", "families")), "escaped"


def test_families_are_in_the_page_the_figure_and_the_tables(page, drawing, table):
    (row,) = [row for row in page.rows if row[:2] == ["4", "accum4_sync"]]
    assert row[2] == "single"
    assert row[3].startswith("0.730× [")
    assert [row[0] for row in page.rows if "knee" in row[0]] == ["16 knee"]
    assert "only single of this family" in page.texts["families"]
    shown = set(texts(drawing("families")))
    assert {"bits", "1", "4", "16", "64", "throughput over the reference"} <= shown
    said = description(drawing("families"))
    assert "bits: 16 MiB is the best value" in said
    assert "alone" not in said
    claims = {row["claim"]: row for row in table("claims")}
    assert claims["large"]["verdict"] == "PARTLY"
    assert float(claims["large"]["number_median"]) == pytest.approx(1.62, abs=0.02)
    assert claims["elsewhere"]["number_median"] == ""
    members = table("families")
    assert [row["value"] for row in members if row["is_knee"] == "True"] == ["16.0"]
    assert members[-1]["throughput_median"] == ""


def test_a_sweep_that_could_not_be_compared_shows_nothing(results):
    curves = []
    for curve in results.curves:
        others = [point.model_copy(update={"throughput": None}) for point in curve.points[1:]]
        points = [*curve.points[:1], *others]
        curves.append(curve.model_copy(update={"knee": None, "points": points}))
    said = words("families", changed(results, curves=curves))
    assert "No sweep has two values that could be compared." in said
    assert "to be slower than the best." not in said


def test_a_page_without_claims_says_so(results, copied):
    none = changed(results, claims=[], curves=[])
    assert rows_of("claims", none) == rows_of("families", none) == []
    assert "config/claims.yaml lists no claims" in words("claims", none)
    assert "runs no two variants of a family" in words("families", none)
    (copied / "claims.json").unlink()
    with pytest.raises(ConfigError, match="snakemake --cores all"):
        section("claims", StudyResults(copied))
