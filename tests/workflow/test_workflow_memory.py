"""Memory as targets: predicted before runs, measured by variant, the largest batch, the report."""

import json
from pathlib import Path

import pytest
from project import TINY, Project

from schemas.results import LargestBatchResult, MemoryResult, PredictedMemory
from schemas.results.memory import PARTS
from transformer_core.common.digests import NAME

LIMIT = 800 * 2**20
STUDY = TINY | {
    "variants": ["single", "ddp"],
    "projection": None,
    "memory": {"largest_batch": {"variants": ["single"], "limit": LIMIT, "resolution": 0.5}},
}
PREDICTED = "results/memory/predicted.json"
MEASURED = [f"results/memory/{variant}.json" for variant in STUDY["variants"]]
LARGEST = "results/memory/largest_batch/single.json"
RUN = "results/runs/single/repeat-1/metrics.json"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project.with_data(tmp_path_factory.mktemp("project"), STUDY)
    made.make(PREDICTED, *MEASURED, LARGEST, RUN)
    return made


def measured(project: Project, variant: str) -> MemoryResult:
    text = (project.folder / f"results/memory/{variant}.json").read_text()
    return MemoryResult.model_validate_json(text)


def test_every_variant_is_measured_and_predicted(project: Project) -> None:
    text = (project.folder / PREDICTED).read_text()
    predictions = PredictedMemory.model_validate_json(text).predictions
    assert [prediction.variant for prediction in predictions] == STUDY["variants"]
    for prediction in predictions:
        result = measured(project, prediction.variant)
        assert (result.status, prediction.status) == ("ok", "ok"), result.reason
        assert prediction.fits is True
        fullest = max(rank.peak_tensor_bytes for rank in result.ranks)
        assert prediction.ranks[0].training_bytes == pytest.approx(fullest, rel=0.1)
        for rank in result.ranks:
            assert rank.at_peak is not None
            parts = sum(getattr(rank.at_peak, part) for part in PARTS)
            assert parts + (rank.residual_bytes or 0) == rank.peak_tensor_bytes
    assert [rank.rank for rank in measured(project, "ddp").ranks] == [0, 1]


def test_another_prediction_is_no_reason_to_train_again(project: Project) -> None:
    (project.folder / PREDICTED).touch()
    assert project.planned(RUN) == {}
    kept = (project.folder / PREDICTED).rename(project.folder / "kept.json")
    assert "train" not in project.planned(RUN)
    kept.rename(project.folder / PREDICTED)


def test_the_largest_batch_has_a_target_and_a_limit(project: Project) -> None:
    result = LargestBatchResult.model_validate_json((project.folder / LARGEST).read_text())
    assert (result.status, result.limit_bytes) == ("ok", LIMIT)
    last = [trial for trial in result.trials if trial.purpose == "confirmation"][-1]
    more = result.trials[-1]
    assert result.largest_pairs is not None
    assert result.step_pairs is not None
    assert (last.purpose, last.status, last.pairs) == ("confirmation", "ok", result.largest_pairs)
    assert (more.purpose, more.status) == ("one_step_more", "oom")
    assert more.pairs == result.largest_pairs + result.step_pairs
    assert more.reason is not None
    assert result.confirmed


def test_a_target_of_a_variant_that_is_not_searched_is_refused(project: Project) -> None:
    code, output = project.snakemake("-n", "results/memory/largest_batch/ddp.json")
    assert code != 0
    assert "did you mean results/memory/largest_batch/single.json" in output


def test_a_search_names_variants_of_the_study(project: Project) -> None:
    search = {"largest_batch": {"variants": ["dpp"]}}
    project.write_study(STUDY | {"memory": search})
    try:
        code, output = project.snakemake("-n", PREDICTED)
    finally:
        project.write_study(STUDY)
    assert code != 0
    assert "did you mean ddp" in output


def test_a_run_that_cannot_fit_is_warned_of_on_the_terminal(project: Project) -> None:
    """The prediction in the file is made a thousand times larger: the job of the run says so."""
    path: Path = project.folder / PREDICTED
    kept = path.read_text()
    larger = json.loads(kept)
    for prediction in larger["predictions"]:
        prediction["context_bytes"] = 2**50
    path.write_text(json.dumps(larger))
    # With its digest, it would be refused.
    digests = path.with_name(NAME)
    before = digests.read_bytes()
    digests.unlink()
    try:
        code, output = project.snakemake(RUN, "--forcerun", "train")
    finally:
        path.write_text(kept)
        digests.write_bytes(before)
    assert code == 0, output
    warning = "WARNING: single will probably run out of memory: 1048576"
    assert warning in output
    assert warning in (project.folder / RUN).with_name("run.log").read_text()


def test_a_study_may_leave_it_out(project: Project) -> None:
    project.write_study(STUDY | {"memory": None})
    try:
        code, output = project.snakemake("-n", "results/runs/single/repeat-1/metrics.json")
        refused, said = project.snakemake("-n", PREDICTED)
    finally:
        project.write_study(STUDY)
    assert code == 0, output
    assert "predict_memory" not in output
    assert refused != 0
    assert "is not known" in said
