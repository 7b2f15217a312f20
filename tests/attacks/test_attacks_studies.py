"""Bad study files: some hundred of those that `python -m tests.attacks studies` makes."""

import json
from pathlib import Path

import pytest

from tests.attacks import __main__, bad_studies
from tests.attacks.tally import FAULTS, Tally

CONFIG = Path(__file__).resolve().parents[2] / "config"


def test_every_bad_file_is_refused_clearly_or_taken_as_it_is() -> None:
    tally = bad_studies.run(360, 7, CONFIG)
    assert tally.failures == []
    assert tally.total.total() == 360
    assert all(counts["refused"] for counts in tally.counts.values())
    assert tally.total["same"] > 10


def verdicts(tally: Tally) -> set[str]:
    return {case["verdict"] for case in tally.failures}


def test_faults_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign must see what it looks for."""
    monkeypatch.setattr(bad_studies, "_use", lambda planned: 1 / 0)
    assert verdicts(bad_studies.run(60, 1, CONFIG)) == {"traceback"}
    monkeypatch.undo()
    read = bad_studies.study_settings
    monkeypatch.setattr(bad_studies, "study_settings", lambda *a: read(*a) | {"title": "another"})
    assert "silent" in verdicts(bad_studies.run(60, 1, CONFIG))


def test_a_campaign_fails_with_any_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally("studies", 1)
    tally.add("bomb", 0, "refused", "")
    monkeypatch.setattr(__main__.bad_studies, "run", lambda *_: tally)
    command = ["studies", "--cases", "1", "--output", str(tmp_path / "studies.json")]
    assert __main__.main(command) == 0
    for number, verdict in enumerate(FAULTS):
        tally.add("bomb", number, verdict, "not done")
        assert __main__.main(command) == 1
    assert json.loads((tmp_path / "studies.json").read_text())["faults"] == len(FAULTS)
