"""Results without what Snakemake knew of them do not pass for those of another study."""

import base64
import json
from pathlib import Path

import pytest

from schemas.errors import ConfigError
from transformer_core.study.checks.foreign_results import check_foreign

PLACE = "results/study.json"
MADE = '{"name":"it\'s {mine}","training":{"steps":60}}'
PLANNED = '{"name":"it\'s {mine}","training":{"steps":80}}'


@pytest.fixture(autouse=True)
def _study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    Path(PLACE).write_text(f"{MADE}\n")


def known(kind: str, text: str = "", place: str = PLACE) -> None:
    """What Snakemake keeps of a file."""
    name = base64.b64encode(place.encode()).decode()
    path = Path(".snakemake", kind, name)
    path.parent.mkdir(parents=True)
    path.write_text(text)


def check(planned: str = PLANNED) -> None:
    check_foreign({PLACE: planned}, "config/config.yaml", Path(".snakemake"))


def test_results_of_another_study_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        check()
    (problem,) = caught.value.problems
    assert (problem.file, problem.field, problem.value) == (PLACE, "training.steps", 60)
    assert "config/config.yaml, where this is 80" in problem.message
    assert "--forceall" in problem.remedy


def test_those_of_this_study_are_taken() -> None:
    check(MADE)


def test_what_snakemake_knows_it_makes_again() -> None:
    known("metadata", json.dumps({"params": ["'other'", repr(MADE)]}))
    check()


@pytest.mark.parametrize(
    "record",
    ["", "{", "{}", "[]", '{"params": [7, "x("]}', json.dumps({"params": [repr(PLANNED)]})],
)
def test_what_it_knows_of_another_file_does_not_count(record: str) -> None:
    known("metadata", record)
    with pytest.raises(ConfigError):
        check()


def test_what_it_was_not_done_with_it_makes_again() -> None:
    known("incomplete")
    check()


def test_no_results_and_damaged_ones_are_for_others_to_say() -> None:
    Path(PLACE).unlink()
    check()
    Path(PLACE).write_text("{")
    with pytest.raises(
        ConfigError, match=r"are of another study than config/config\.yaml; and what"
    ):
        check()
