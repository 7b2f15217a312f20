"""What the DAG plans for certificates and for what variants need of the machine, in dry runs."""

import json
import shlex

import pytest
from project import TINY, Project

from transformer_core.run.job import read_job
from transformer_core.study.kinds import JOBS


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    study = TINY | {"variants": ["single", "amp_bf16", "log_every_1", "sgd"]}
    return Project(tmp_path_factory.mktemp("project"), study)


def test_a_short_run_for_each_variant_that_can_have_a_certificate(project):
    planned = project.planned("results/report.html")
    assert planned["certify"] == planned["train"] == 4
    # The reference, and all variants but the one that is different by design.
    assert planned["short_run"] == planned["short_spec"] == 4


def test_one_certificate_alone_needs_one_timed_run(project):
    planned = project.planned("results/equivalence/log_every_1.json")
    assert planned["short_run"] == 2, "its own, and that of the variant it must equal"
    assert planned["train"] == 1, "its own, whose kernels must be those of the short run"
    planned = project.planned("results/equivalence/sgd.json")
    assert "short_run" not in planned


def test_seeds_come_from_the_class_of_the_variant(project):
    output = project.make("-n", "-p", "results/equivalence/amp_bf16.json")
    commands = [line for line in output.splitlines() if '"kind": "short_run"' in line]
    assert len(commands) == 2
    # Three seeds, and where their losses do not decide, as many more.
    assert all('"seeds": 6' in command for command in commands)
    assert sum('"first_look": 3,' in command for command in commands) == 1


def test_collective_operations_where_they_are_of_use(tmp_path):
    alone = TINY | {"variants": ["single", "amp_bf16"], "projection": None}
    studies = {
        "alone": alone,
        "several": alone | {"variants": ["single", "ddp"]},
        "projected": alone | {"projection": {}},
    }
    measured = {
        name
        for name, study in studies.items()
        if "collectives" in Project(tmp_path / name, study).planned("results/report.html")
    }
    assert measured == {"several", "projected"}


def test_every_order_of_a_rule_is_one_that_its_job_takes(tmp_path):
    study = TINY | {
        "time": "1h",
        "quality": {},
        "search": {},
        "memory": {"largest_batch": {"variants": ["single"]}},
        "link_check": {"bandwidths": ["100Mbit/s"]},
    }
    project = Project(tmp_path, study)
    targets = ["results/report.html", "results/self_test/report.json", "results/compare.html"]
    targets += ["results/data/grammar/verify.json", "results/data/grammar/parquet/test.parquet"]
    targets += ["results/gpu_check/device.json", "results/gpu_check/tests.json"]
    targets += ["results/gpu_check/attention.json", "results/certificates.md"]
    options = ("--set-scatter", "tokenize=3", "--config", "against=/elsewhere")
    output = project.make("-n", "-p", *targets, *options)
    kinds = set()
    for line in output.splitlines():
        if "--order" in line:
            words = shlex.split(line)
            text = words[words.index("--order") + 1]
            read_job(text)  # refuses an order with other fields
            kinds.add(json.loads(text)["kind"])
    # Those of the GPU check ask for the variants of its own study, those of scripts for a script.
    assert {*JOBS} - kinds <= {"gpu_checks", "gpu_check_page", "tune", "tune_page"}
