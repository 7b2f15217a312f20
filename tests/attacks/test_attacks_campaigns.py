"""Small campaigns of attacks, and faults that they must find."""

import json
import shutil
import subprocess

import pytest
from pair_files import ENGLISH, GERMAN, make_store, write_pairs, write_tokenizer

from schemas.config.data import Filter
from schemas.config.measurement import Tolerance
from schemas.results import Certificate
from tests.attacks import __main__, bad_studies, damages, kills
from tests.attacks import failing_calls as harness
from tests.attacks.damages import KINDS, run
from tests.attacks.failing_calls import ERRORS, Calls, failing
from tests.attacks.kills import at_work, wait_for_a_job
from tests.attacks.tally import FAULTS, Tally
from tests.orders import order_text, run_order
from tests.records import record
from transformer_core.common import digests
from transformer_core.common.digests import write_result
from transformer_core.data.sharding import shard_store
from transformer_core.study.variants import read_variants

CONFIG = kills.ROOT / "config"


@pytest.mark.slow
def test_every_bad_file_is_refused_clearly_or_read_correctly():
    tally = bad_studies.run(240, 7, CONFIG)
    assert tally.failures == []
    assert tally.total.total() == 240
    assert all(counts["refused"] for counts in tally.counts.values())
    assert tally.total["same"] > 10


def test_a_campaign_finds_faults(monkeypatch):

    def found() -> set[str]:
        return {case["verdict"] for case in bad_studies.run(24, 1, CONFIG).failures}

    with monkeypatch.context() as patched:
        patched.setattr(bad_studies, "_use", lambda planned: 1 / 0)
        assert found() == {"traceback"}
    read = bad_studies.study_settings
    monkeypatch.setattr(bad_studies, "study_settings", lambda *a: read(*a) | {"title": "another"})
    assert "silent" in found()


def test_a_campaign_fails_with_any_fault(tmp_path, monkeypatch):
    tally = Tally("studies", 1)
    tally.add("bomb", 0, "refused", "")
    monkeypatch.setattr(__main__.bad_studies, "run", lambda *_: tally)
    command = ["studies", "--cases", "1", "--output", str(tmp_path / "studies.json")]
    assert __main__.main(command) == 0
    for number, verdict in enumerate(FAULTS):
        tally.add("bomb", number, verdict, "not done")
        assert __main__.main(command) == 1
    assert json.loads((tmp_path / "studies.json").read_text())["faults"] == len(FAULTS)


def test_a_campaign_without_cases_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        __main__.main(["studies", "--cases", "0", "--output", str(tmp_path / "studies.json")])
    assert "'0' is not a whole number of at least 1" in capsys.readouterr().err


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Some results of a study."""
    folder = tmp_path_factory.mktemp("study") / "results"
    for split in ("train", "validation"):
        made = folder.with_name(split)
        made.mkdir()
        make_store(made, pairs=40, pairs_per_shard=15)
        shutil.copytree(made / "shards", folder / "data/small/shards" / split)
        digests.record(folder / f"data/small/shards/{split}/manifest.json")
    variants, _ = read_variants(CONFIG / "variants.yaml")
    text = variants["ddp"].model_dump_json()
    write_result(folder / "variants.json", f'{{"ddp": {text}}}\n')
    return folder


def test_every_damage_is_noticed_and_only_a_copy_is_damaged(results):
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    tally = run(90, 7, results)
    assert set(tally.counts) == set(KINDS)
    assert not tally.faults, tally.failures
    assert tally.total["refused"] >= 60
    assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == before


def test_jobs_read_the_results_of_a_study_but_not_its_digests(tmp_path, monkeypatch):
    fields = {"variant": "ddp", "status": "equivalent", "reason": "", "reference": "single"}
    certificate = record(Certificate, **fields, equivalence=Tolerance(kind="tolerance"))
    write_result(tmp_path / "equivalence/ddp.json", certificate.model_dump_json())
    ran = {}

    def job(kind, output, **fields):
        ran[kind] = fields
        output.write_text(kind)

    monkeypatch.setattr(damages, "run_job", job)
    for pattern in ("equivalence/trajectories/*/trajectory.json", "equivalence/*.json"):
        damages.READERS[pattern](
            tmp_path, tmp_path / "equivalence/trajectories/ddp/trajectory.json"
        )
    assert ran["certify"]["variant"] == "ddp"
    assert ran["compare"]["certificates"] == [tmp_path / "equivalence/ddp.json"]


def test_readers_that_check_nothing_are_found(results, monkeypatch):
    monkeypatch.setattr(digests, "check", lambda *_: None)
    monkeypatch.setattr(shard_store, "check_shard", lambda *_, **__: None)
    assert run(18, 7, results).faults


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    order = order_text(
        "shards",
        tokenizer=write_tokenizer(folder),
        filter=Filter(),
        pairs=write_pairs(folder / "p.arrow", ENGLISH, GERMAN).path,
        output=folder / "shards",
        threads=1,
    )
    return harness.Job("shards", run_order, order, folder / "shards/manifest.json", ("seconds",))


def test_every_failing_call_is_reported(shards):
    folder = shards.output.parents[1]
    calls = Calls(folder)
    with failing(calls):
        assert shards.main(shards.options) == 0
    right = shards.made()
    assert calls.count >= 10
    for place in range(calls.count):
        error = ERRORS[place % len(ERRORS)]
        verdict, said = harness.judge(shards, Calls(folder, place, error), right)
        assert verdict in ("refused", "same"), f"call {place}: {verdict}, {said}"


def test_a_job_that_does_not_catch_an_error_is_found(tmp_path):
    def careless(options: list[str]) -> int:
        (tmp_path / "result.json").write_text("{}")
        return 0

    job = harness.Job("careless", careless, [], tmp_path / "result.json")
    verdict, said = harness.judge(job, Calls(tmp_path, 0, ERRORS[0]), "{}")
    assert verdict == "traceback"
    assert "No space left" in said


SAID = """
[Sun Nov 22 15:04:50 2026]
Job 2: Train single, repeat 1
Reason: Missing output files: results/runs/single/repeat-1/metrics.json

Job 3: Tokenize the test split
Finished jobid: 3 (Rule: shards)
"""


@pytest.mark.parametrize(
    ("ends", "last_loss", "verdicts"),
    [
        ([0, None, None, None, 0], 2.5, {"same": 3}),
        ([0, None, None, None, 0], 2.25, {"silent": 3}),
        ([0, None, None, 1, None, 0], 2.5, {"same": 1, "unclear": 2}),
        ([0, None, None, None, None], 2.5, {"hung": 3}),
        ([0, 0, 1, 0], 2.5, {"same": 2, "unclear": 1}),
    ],
    ids=["the same", "another number", "the command fails", "no end", "an end before a kill"],
)
def test_a_study_is_judged_by_its_end_and_results(tmp_path, monkeypatch, ends, last_loss, verdicts):
    """``ends`` are the exit codes of the commands; None is a kill."""
    left, ways = list(ends), []

    def go(folder, targets, seconds, way="all"):
        code = left.pop(0)
        file = folder / "results/runs/single/repeat-1/metrics.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        loss = 2.5 if left else last_loss
        file.write_text(json.dumps({"status": "ok", "validations": [loss]}))
        ways.extend([way] if code is None else [])
        return code, SAID

    monkeypatch.setattr(kills, "go", go)
    tally = kills.run(3, 1, tmp_path, ["x"], 1.0)
    during = "Train single, repeat 1" if None in ends else "nothing, as it ended before"
    assert set(tally.counts) == {f"during {during}"}
    assert tally.total == verdicts
    assert ways[:3] == ["snakemake", "group", "all"][: ends.count(None)]


def test_running_jobs_are_found():
    assert at_work(SAID + "Finished jobid: 2 (Rule: train)\n") == "between jobs"
    assert at_work("Building DAG of jobs...\n") == "starting"


def test_times_count_from_the_first_job(tmp_path):
    said = tmp_path / "said.log"
    said.touch()
    command = f"sleep 0.3; echo 'Job 2: Train single, repeat 1' > {said}; sleep 60"
    child = subprocess.Popen(["sh", "-c", command])
    wait_for_a_job(child, said, 30.0)
    assert at_work(said.read_text()) == "Train single, repeat 1"
    child.kill()
    child.wait()
    said.write_text("")
    wait_for_a_job(child, said, 30.0)  # returns, because the command has ended
