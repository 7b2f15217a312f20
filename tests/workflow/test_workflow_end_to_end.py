"""A tiny study from start to report; then nothing is left to do; then only changed parts run."""

import json
from datetime import datetime, timedelta

import pandas as pd
import pytest
import torch
import yaml
from project import TINY, Project, put_back

from schemas.results import (
    Capture,
    Certificate,
    EvaluationResult,
    LargestBatchResult,
    MemoryResult,
    PairedRun,
    PredictedMemory,
    Repeat,
    Roofline,
    Utilisation,
    VariantResult,
)
from schemas.results.memory import PARTS
from tests.attacks import failing_calls
from transformer_core.common.digests import NAME

REPORT = "results/report.html"
# torch alone fills 360 MiB; that for CUDA fills most of 800 MiB.
LIMIT = (600 if torch.version.cuda is None else 1600) * 2**20
STUDY = TINY | {
    # With dropout, replicas would draw other masks than a single rank.
    "model": TINY["model"] | {"dropout": 0.0},
    "search": {"budget": 4},
    "memory": {"largest_batch": {"variants": ["single"], "limit": LIMIT, "resolution": 0.5}},
}
PREDICTED = "results/memory/predicted.json"
LARGEST = "results/memory/largest_batch/single.json"
RUN = "results/runs/single/repeat-1/metrics.json"


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A project, and what Snakemake said when it made the report."""
    made = Project.with_data(tmp_path_factory.mktemp("project"), STUDY)
    return made, made.make(REPORT, LARGEST)


@pytest.fixture(scope="module")
def project(reported):
    return reported[0]


def results(project: Project, variant: str) -> VariantResult:
    return project.read(f"results/runs/{variant}/metrics.json", VariantResult)


def test_the_terminal_ends_with_the_answer_and_the_place_of_the_report(reported):
    project, said = reported
    answer = (project.folder / "results/report.md").read_text().split("\n\n")[1]
    assert f"{answer.replace('*', '').replace('`', '')}\nThe report: {REPORT}\n" in said


def test_both_variants_are_measured_evaluated_and_shown(project):
    page = (project.folder / REPORT).read_text()
    for variant, ranks in (("single", 1), ("ddp", 2)):
        assert f'id="variant-{variant}"' in page
        result = results(project, variant)
        assert result.status == "ok", result.reason
        assert result.tokens_per_second is not None
        found = project.read(f"results/runs/{variant}/evaluation.json", EvaluationResult)
        assert (found.pairs, len(found.samples), found.bleu is None) == (8, 2, False)
        assert "version:" in found.signature
        certificate = project.read(f"results/equivalence/{variant}.json", Certificate)
        assert certificate.status == "equivalent", certificate.reason
        (repeat,) = result.repeats
        assert (len(repeat.windows), repeat.topology.world_size) == (5, ranks)
        command = f"snakemake --cores all results/runs/{variant}/repeat-1/metrics.json"
        assert repeat.provenance.command.startswith(command)
        assert "--configfile study.yaml" in repeat.provenance.command


def test_limits_of_the_machine_and_profiles_are_made_with_the_report(project):
    folder = project.folder / "results"
    limits = project.read("results/machine/roofline.json", Roofline)
    assert (limits.status, limits.kind) == ("ok", "cpu")
    assert pd.read_parquet(folder / "machine/collectives.parquet")["error"].max() == 0
    for record in json.loads((folder / "utilisation.json").read_text()):
        found = Utilisation.model_validate(record)
        assert found.flops_per_second is not None
        assert 0 < found.of_ceiling.median < found.padded_of_ceiling.median
    for variant in TINY["variants"]:
        capture = project.read(f"results/profiles/{variant}/capture.json", Capture)
        assert (capture.status, capture.profiler) == ("ok", "torch")
        assert len(capture.ranks) == results(project, variant).repeats[0].topology.world_size
    audit = json.loads((folder / "audit.json").read_text())
    assert (audit["status"], audit["reason"]) == ("clean", "")


def test_every_variant_is_measured_and_predicted(project):
    predictions = project.read(PREDICTED, PredictedMemory).predictions
    assert [prediction.variant for prediction in predictions] == TINY["variants"]
    for prediction in predictions:
        result = project.read(f"results/memory/{prediction.variant}.json", MemoryResult)
        assert (result.status, prediction.status) == ("ok", "ok"), result.reason
        assert prediction.fits is True
        assert result.decoding.functionality_bytes > 0
        fullest = max(rank.peak_tensor_bytes for rank in result.ranks)
        assert prediction.ranks[0].training_bytes == pytest.approx(fullest, rel=0.1)
        for rank in result.ranks:
            assert rank.at_peak is not None
            parts = sum(getattr(rank.at_peak, part) for part in PARTS)
            assert parts + (rank.residual_bytes or 0) == rank.peak_tensor_bytes
    assert [rank.rank for rank in result.ranks] == [0, 1]  # of ddp, the last variant


def test_the_largest_batch_is_found_within_its_limit(project):
    result = project.read(LARGEST, LargestBatchResult)
    assert (result.status, result.limit_bytes) == ("ok", LIMIT)
    last = [trial for trial in result.trials if trial.purpose == "confirmation"][-1]
    more = result.trials[-1]
    assert (last.purpose, last.status, last.pairs) == ("confirmation", "ok", result.largest_pairs)
    assert (more.purpose, more.status) == ("one_step_more", "oom")
    assert more.pairs == result.largest_pairs + result.step_pairs
    assert more.reason is not None
    assert result.confirmed


def test_one_and_two_ranks_train_alike_on_the_same_global_batches(project):
    single, ddp = (
        pd.read_parquet(project.folder / f"results/runs/{v}/repeat-1/steps.parquet")
        for v in ("single", "ddp")
    )
    counts = ["epoch", "batch", "pairs", "tokens"]
    pd.testing.assert_frame_equal(single[counts], ddp[counts])
    # Sums in float32 differ.
    assert (single["loss"] - ddp["loss"]).abs().max() < 1e-4
    assert single["loss"].iloc[-1] < single["loss"].iloc[0]


def test_jobs_report_failing_calls(project):
    tally = failing_calls.run(2, 1, project.folder / "results")
    assert {kind.rpartition("_")[0] for kind in tally.counts} >= {"shards", "tokenizer", "compare"}
    assert not tally.faults, tally.failures


def test_timed_runs_do_not_overlap(project):
    times = []
    for variant in TINY["variants"]:
        repeat: Repeat = results(project, variant).repeats[0]
        start = datetime.fromisoformat(repeat.provenance.started)
        times.append((start, start + timedelta(seconds=repeat.total_seconds)))
    (_, first_end), (second_start, _) = sorted(times)
    # Starts are whole seconds.
    assert first_end < second_start + timedelta(seconds=1)


def test_comments_and_local_copies_of_shards_leave_nothing_to_do(project):
    for file in (project.study, project.folder / "config/variants.yaml"):
        file.write_text("# a comment\n" + file.read_text())
    assert project.planned(REPORT, "--config", "local_shards=/scratch") == {}


def test_changing_one_variant_reruns_that_variant_and_the_report(project):
    file = project.folder / "config/variants.yaml"
    variants = yaml.safe_load(file.read_text())
    variants["ddp"]["change"] = {"parallel": {"kind": "ddp", "bucket_mb": 1}}
    with put_back(file):
        file.write_text(yaml.safe_dump(variants))
        planned, said = project.dry_run(REPORT)
    assert [planned[rule] for rule in ("resolve_spec", "train", "evaluate", "turns")] == [1] * 4
    assert "Train ddp" in said
    assert "Train single" not in said
    assert "read_corpus" not in planned


def test_changing_the_device_count_leaves_the_single_run_alone(project):
    with project.asked_for(STUDY | {"machine": STUDY["machine"] | {"devices_per_node": 3}}):
        _, said = project.dry_run(REPORT)
    assert "Train ddp" in said
    assert "Train single" not in said


def test_sides_take_turns_in_two_sessions(project):
    run = project.read("results/turns/single/ddp/ddp/single.json", PairedRun)
    assert (run.status, run.reason, len(run.sessions)) == ("ok", None, 2)
    for session in run.sessions:
        assert [side.topology.world_size for side in session.sides if side.topology] == [1, 2]
        assert len(session.rounds) == 5
        for rnd in session.rounds:
            ours, theirs = sorted(rnd.windows, key=lambda window: window.side)
            # Both trained on the same batches, in the same order.
            assert (ours.steps, ours.tokens) == (theirs.steps, theirs.tokens)
    first, second = ([rnd.windows[0].tokens for rnd in s.rounds] for s in run.sessions)
    assert first != second, "a ratio depends on batches: each session has its own"
    work = project.folder / "results/turns/single/ddp.sessions"
    left = {path.name for path in work.glob("[!.]*")}
    assert left == {"session-1.json", "session-2.json"}, "a longer time continues from these"
    assert run.provenance["ddp"].command.startswith(
        "snakemake --cores all results/turns/single/ddp"
    )


def test_another_margin_repeats_the_verdicts_but_no_timing(project):
    with project.asked_for(STUDY | {"comparison": TINY["comparison"] | {"margin": 0.1}}):
        assert project.planned("results/comparisons.json") == {"compare": 1}


def test_a_study_may_turn_off_memory(project):
    with project.asked_for(STUDY | {"memory": None}):
        planned = project.planned(RUN, "--forceall")
        assert "train" in planned
        assert "predict_memory" not in planned
        assert "is not known" in project.refused("-n", PREDICTED)


def test_another_prediction_repeats_no_training(project):
    (project.folder / PREDICTED).touch()
    assert project.planned(RUN) == {}
    kept = (project.folder / PREDICTED).rename(project.folder / "kept.json")
    assert "train" not in project.planned(RUN)
    kept.rename(project.folder / PREDICTED)


def test_one_variant_can_be_made_alone(project):
    target = "results/runs/single/metrics.json"
    with put_back(project.folder / target):
        (project.folder / target).unlink()
        planned, output = project.dry_run(target)
    assert planned == {"combine": 1}
    assert "ddp" not in output.split("Job stats:")[1]


def test_another_study_does_not_silently_overwrite_results(project):
    with project.asked_for(STUDY | {"name": "other"}):
        output = project.refused(REPORT)
        project.make("-n", REPORT, "--config", "replace_results=true")
    assert "holds the results of the study 'tiny'" in output
    assert "mv results results-tiny" in output


def test_a_run_warns_that_it_cannot_fit_and_names_a_truncated_shard_with_its_repair(project):
    """The predicted memory is far more than any machine has."""
    path = project.folder / PREDICTED
    larger = json.loads(path.read_text())
    for prediction in larger["predictions"]:
        prediction["context_bytes"] = 2**50
    digests = path.with_name(NAME)
    shard = next((project.folder / "results/data/grammar/shards/train").glob("*.arrow"))
    whole = shard.read_bytes()
    with put_back(path, digests, shard, project.folder / RUN):
        path.write_text(json.dumps(larger))
        digests.unlink()  # its digest would not match
        shard.write_bytes(whole[: len(whole) // 2])
        output = project.make(RUN, "--forcerun", "train")
        repeat = json.loads((project.folder / RUN).read_text())
    warning = "WARNING: single will probably run out of memory: 1048576"
    assert warning in output
    assert warning in (project.folder / RUN).with_name("run.log").read_text()
    assert repeat["status"] == "failed"
    assert shard.name in repeat["reason"]
    manifest = "results/data/grammar/shards/train/manifest.json"
    assert f"snakemake --cores all {manifest} --forcerun {manifest}" in repeat["reason"]
