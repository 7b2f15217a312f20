"""Bad study files: some hundred of those that results/faults/configs.json counts."""

from pathlib import Path

import pytest

from schemas.results.faults import FAULTS, FaultRecord
from transformer_core.common.files import write_text
from transformer_core.faults import job
from transformer_core.faults.configs import judging
from transformer_core.faults.configs.job import run
from transformer_core.faults.tally import Tally

CONFIG = Path(__file__).resolve().parents[2] / "config"


def test_every_bad_file_is_refused_clearly_or_taken_as_it_is() -> None:
    record = run(360, 7, CONFIG)
    assert record.failures == []
    assert sum(count.refused + count.same for count in record.counts) == 360
    assert all(count.refused for count in record.counts)
    assert sum(count.same for count in record.counts) > 10


def test_faults_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness must see what it looks for."""
    monkeypatch.setattr(judging, "_use", lambda planned: 1 / 0)
    assert {case.verdict for case in run(60, 1, CONFIG).failures} == {"traceback"}
    monkeypatch.undo()
    read = judging.study_settings
    monkeypatch.setattr(judging, "study_settings", lambda *a: read(*a) | {"title": "another"})
    assert "silent" in {case.verdict for case in run(60, 1, CONFIG).failures}


def test_records_are_joined(tmp_path: Path) -> None:
    tally = Tally("configs", 1)
    tally.add("bomb", 0, "refused", "")
    tally.add("bomb", 1, "hung", "not done")
    record = tally.record()
    assert [case.number for case in record.failures] == [1]
    path = tmp_path / "configs.json"
    write_text(path, record.model_dump_json())
    assert job.main([str(path), str(path), "--output", str(tmp_path / "report.json")]) == 0
    report = job.joined([record, record])
    assert (report.cases, report.refused, report.same, report.faults) == (4, 2, 0, 2)
    assert set(FAULTS) < set(FaultRecord.model_json_schema()["$defs"]["FaultCounts"]["properties"])
