"""Claims and families in the DAG: what they ask for is made, and mistakes in them are refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from project import TINY, Project, put_back

CLAIMS = "results/claims.json"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    study = TINY | {"variants": ["single", "ddp", "central"]}
    return Project(tmp_path_factory.mktemp("project"), study)


@pytest.fixture
def claims(project):
    """The claims file, put back after the test."""
    file = project.folder / "config/claims.yaml"
    with put_back(file):
        yield file


def write(file: Path, *tests: dict[str, Any]) -> None:
    claim = {"statement": "It is so.", "source": "A book", "tests": list(tests)}
    file.write_text(yaml.safe_dump({"mine": claim}))


def compared(variant: str, reference: str) -> dict[str, Any]:
    names = {"variant": variant, "reference": reference}
    return {"kind": "comparison", "direction": "more"} | names


def test_what_a_claim_compares_is_timed(project, claims):
    write(claims, compared("ddp", "single"))
    assert project.planned(CLAIMS)["turns"] == 2
    write(claims, compared("ddp", "central"), compared("tf32", "single"))
    planned, said = project.dry_run(CLAIMS)
    assert planned["turns"] == 3
    assert "Time central/1 in turns" in said


def test_a_number_of_a_job_asks_for_the_job_and_another_asks_for_nothing(project, claims):
    number = {"file": "results/nowhere.json", "value": "x"}
    unknown = {"kind": "measurement", "what": "x", "number": number, "at_least": 1}
    write(claims, unknown)
    assert "roofline" not in project.planned(CLAIMS)
    write(claims, unknown | {"number": number | {"file": "results/machine/roofline.json"}})
    assert project.planned(CLAIMS)["roofline"] == 1


def test_a_mistyped_variant_is_refused_with_near_names(project, claims):
    write(claims, compared("dpp", "single"))
    output = project.refused("-n", CLAIMS)
    for word in ("claims.yaml: mine.tests[0].variant", "'dpp'", "did you mean ddp"):
        assert word in output


def test_a_mistyped_family_is_refused(project, claims):
    write(claims, {"kind": "trend", "family": "bucket_sise", "direction": "rises"})
    assert "did you mean bucket_size" in project.refused("-n", CLAIMS)
