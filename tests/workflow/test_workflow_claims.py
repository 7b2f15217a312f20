"""Claims and families in the DAG: Snakemake makes their results, and mistakes are refused."""

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


def of_number(file: str) -> dict[str, Any]:
    number = {"file": file, "value": "x"}
    return {"kind": "measurement", "what": "x", "number": number, "at_least": 1}


def test_what_a_claim_needs_is_measured_and_unknown_files_are_ignored(project, claims):
    pairs = [("ddp", "single"), ("ddp", "central"), ("tf32", "single")]
    numbers = [of_number("results/nowhere.json"), of_number("results/machine/roofline.json")]
    write(claims, *(compared(*pair) for pair in pairs), *numbers)
    planned, said = project.dry_run(CLAIMS)
    # The two groups of the study, which include the first pair, and one for the second pair.
    assert planned["turns"] == 3
    assert "Time central/ddp in turns" in said
    assert planned["roofline"] == 1
    assert "utilisation" not in planned


def test_mistyped_names_are_refused_with_the_nearest_ones(project, claims):
    trend = {"kind": "trend", "family": "bucket_sise", "direction": "rises"}
    write(claims, compared("dpp", "single"), trend)
    output = project.refused("-n", CLAIMS)
    for word in (
        "claims.yaml: mine.tests[0].variant",
        "'dpp'",
        "did you mean ddp",
        "did you mean bucket_size",
    ):
        assert word in output
