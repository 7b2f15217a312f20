"""The sections on claims and on families of variants."""

import json
import re

import pytest
from drawn import description, texts
from report_builders import EVIL
from test_report_page import Page, page_of, words
from test_report_tables import rows

from schemas.errors import ConfigError
from transformer_core.decide.study_results import StudyResults
from transformer_core.report import tables
from transformer_core.report.page import draw, write_page


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def row_of(page: Page, claim: str) -> list[str]:
    return next(row for row in page.rows if row[0] == claim and len(row) == 4)


def test_the_claims_have_a_table_and_can_be_tested_again(page):
    head = next(row for row in page.rows if row[0] == "Id")
    assert head == ["Id", "Claim", "Verdict", "Evidence"]
    assert re.search(r"snakemake --cores all \S*claims.json", page.texts["claims"])


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("true", "holds here"),
        ("large", "partly"),
        ("false", "does not hold here"),
        ("open", "undecided"),
        ("elsewhere", "not testable here"),
    ],
)
def test_every_verdict_is_said_in_words(page, claim, verdict):
    row = [words(cell) for cell in row_of(page, claim)]
    assert row[2].startswith(verdict)
    assert "A book, page 3" in row[1]


def test_evidence_has_numbers_files_and_variants(page):
    evidence = words(row_of(page, "true")[3])
    assert re.search(
        r"agrees Throughput of amp_bf16 over single: 1\.62× \[1\.\d+, 1\.\d+\]", evidence
    )
    assert "Claimed: more, at most 3. Found: " in evidence
    assert "results/turns/single/1/amp_bf16/single.json" in evidence
    assert "1 test that is not possible here" in evidence
    assert "ddp ended unsupported: needs 2 GPUs" in evidence
    assert "a different size" in row_of(page, "large")[3]
    assert "contradicts" in row_of(page, "false")[3]
    assert "does not train the same model" in row_of(page, "open")[3]


def test_texts_of_claims_and_families_are_escaped(html, page):
    assert EVIL in page.texts["claims"]
    assert EVIL in page.texts["families"]
    assert "alert(1)</script>" not in html


def test_a_family_has_a_row_for_each_value(page):
    rows = [[words(cell) for cell in row] for row in page.rows if "accum4_sync" in row[1:2]]
    (row,) = [row for row in rows if row[0] == "4"]
    assert row[2] == "single"
    assert row[3].startswith("0.730× [")
    (knee,) = [row for row in page.rows if "knee" in row[0]]
    assert words(knee[0]) == "16 knee"
    assert "only single of this family" in words(page.texts["families"])


def test_figure_of_families(results):
    drawing = draw("families", results)
    shown = set(texts(drawing))
    assert {"bits", "1", "4", "16", "64", "throughput over the reference"} <= shown
    assert "bits: 16 MiB is the best value" in description(drawing)
    assert "alone" not in description(drawing)


def test_tables_of_claims_and_families(study_folder, tmp_path):
    tables.write_tables(StudyResults(study_folder), tmp_path)
    claims = {row["claim"]: row for row in rows(tmp_path / "claims.csv")}
    assert claims["large"]["verdict"] == "PARTLY"
    assert float(claims["large"]["number_median"]) == pytest.approx(1.62, abs=0.02)
    assert claims["elsewhere"]["number_median"] == ""
    members = rows(tmp_path / "families.csv")
    assert [row["value"] for row in members if row["is_knee"] == "True"] == ["16.0"]
    assert [row["throughput_median"] == "" for row in members][-1]


def test_a_page_without_claims_says_so(written):
    for name in ("claims", "families"):
        (written / f"{name}.json").write_text(json.dumps([]))
    tables.write_tables(StudyResults(written), written / "tables")
    page = Page(page_of(written))
    assert page.unbalanced == []
    assert "config/claims.yaml lists no claims" in page.texts["claims"]
    assert "runs no two variants of a family" in page.texts["families"]
    (written / "claims.json").unlink()
    with pytest.raises(ConfigError, match="snakemake --cores all"):
        write_page(StudyResults(written))
