"""An evaluation always ends in a status."""

from pathlib import Path

import pytest
from analysis_builders import repeat

from schemas.config.run_spec import RunSpec
from schemas.config.training import Evaluation
from schemas.results import EvaluationResult
from transformer_core.common.endings import failures
from transformer_core.common.records import read_record
from transformer_core.measure import evaluation as job
from transformer_core.measure.evaluation import RESULT, EvaluationOrder
from transformer_core.run import supervisor
from transformer_core.run.statuses import Outcome

SPEC = RunSpec.model_validate({"variant": "small", "machine": {"threads": 3}})
FOUND = Outcome(status="ok", reason=None).result(
    EvaluationResult, variant="small", bleu=3.5, pairs=3
)


@pytest.fixture
def orders(monkeypatch):
    """The orders given to workers, which report :data:`FOUND`."""
    given: list[EvaluationOrder] = []

    def work(order: EvaluationOrder, result: Path, target: Path) -> None:
        given.append(order)
        result.parent.mkdir(exist_ok=True)
        (order.output / RESULT).write_text(FOUND.model_dump_json())

    monkeypatch.setattr(job, "attempt", work)
    return given


def evaluated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, status: str = "ok"
) -> EvaluationResult:
    (folder / "spec.json").write_text(SPEC.canonical_json())
    reason = None if status == "ok" else "the device is full"
    run = repeat(1, [1.0], "small").model_copy(update={"status": status, "reason": reason})
    (folder / "run.json").write_text(run.model_dump_json())
    for file in ("weights", "tokenizer.json", "shards/test/manifest.json"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("")
    order = job.Evaluation(
        spec=folder / "spec.json",
        data=folder,
        output=folder / "output.json",
        settings=Evaluation(),
        metrics=folder / "run.json",
        weights=folder / "weights",
    )
    order.run(None)
    return read_record(folder / "output.json", EvaluationResult)


def test_the_job_writes_its_result(tmp_path, monkeypatch, orders):
    assert evaluated(tmp_path, monkeypatch) == FOUND
    (order,) = orders
    # One process, with as many threads as the job has cores.
    assert (order.spec.world_size, order.spec.machine.threads) == (1, 0)


def test_the_status_of_a_run_without_a_model_is_passed_on(tmp_path, monkeypatch, orders):
    found = evaluated(tmp_path, monkeypatch, "oom")
    assert (found.status, found.reason) == ("oom", "the device is full")
    assert (found.bleu, found.pairs, found.samples, orders) == (None, 0, [], [])


def test_a_worker_that_ends_early_gives_a_status(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "run_workers", lambda _: 1)
    found = evaluated(tmp_path, monkeypatch)
    assert (found.status, found.bleu) == ("failed", None)
    assert "exit code 1" in str(found.reason)
    assert failures(tmp_path / "output.json") == 1
