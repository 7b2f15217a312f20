"""Dry runs plan the jobs that certificates and variants need."""

import json
import shlex

import pytest
from project import TINY, Project

from transformer_core.run.job import read_job
from transformer_core.study.kinds import JOBS

REPORT = "results/report.html"
STUDY = TINY | {"variants": ["single", "amp_bf16", "log_every_1", "sgd"]}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return Project(tmp_path_factory.mktemp("project"), STUDY)


def test_a_short_run_for_each_variant_and_the_reference(project):
    planned = project.planned(REPORT)
    assert planned["certify"] == planned["train"] == 4
    assert planned["short_run"] == planned["short_spec"] == 5
    # For the projection to several ranks.
    assert planned["collectives"] == 1


def test_one_certificate_alone_needs_one_timed_run(project):
    planned = project.planned("results/equivalence/log_every_1.json")
    assert planned["short_run"] == 2, "its own, and that of the variant that it must equal"
    assert planned["train"] == 1, "its own, whose kernels must be those of the short run"


def test_another_model_by_design_is_compared_with_no_reference(project):
    planned = project.planned("results/equivalence/sgd.json")
    assert planned["short_run"] == planned["train"] == 1


def test_seeds_come_from_the_class_of_the_variant(project):
    output = project.make("-n", "-p", "results/equivalence/amp_bf16.json")
    commands = [line for line in output.splitlines() if '"kind": "short_run"' in line]
    assert len(commands) == 2
    # Three seeds, and three more if their losses do not decide.
    assert all('"seeds": 6' in command for command in commands)
    assert sum('"first_look": 3,' in command for command in commands) == 1


def test_collective_operations_are_measured_if_several_ranks_use_them(project):
    """And only then: see the study of a language model."""
    with project.asked_for(STUDY | {"projection": None, "variants": ["single", "ddp"]}):
        assert project.planned(REPORT)["collectives"] == 1


def test_jobs_accept_the_orders_of_their_rules(project):
    study = TINY | {
        "time": "1h",
        "quality": {"loss": 4.0},
        "search": {},
        "memory": {"largest_batch": {"variants": ["single"]}},
        "link_check": {"bandwidths": ["100Mbit/s"]},
    }
    targets = [REPORT, "results/self_test/report.json", "results/compare.html"]
    targets += ["results/data/grammar/verify.json", "results/data/grammar/parquet/test.parquet"]
    targets += ["results/gpu_check/device.json", "results/gpu_check/tests.json"]
    targets += ["results/gpu_check/attention.json", "results/certificates.md"]
    there = project.folder / "elsewhere"
    there.mkdir()
    (there / "study.json").touch()
    options = ("--set-scatter", "tokenize=3", "--config", f"against={there}")
    with project.asked_for(study):
        output = project.make("-n", "-p", *targets, *options)
    kinds = kinds_of_orders(output)
    # The others need the variants of the GPU check's own study, or a script.
    assert {*JOBS} - kinds <= {"gpu_checks", "gpu_check_page", "tune", "tune_page"}


def kinds_of_orders(output: str) -> set[str]:
    """The kinds of the orders in planned commands, each of which its job must accept."""
    kinds = set()
    for line in output.splitlines():
        if "--order" in line:
            words = shlex.split(line)
            text = words[words.index("<<<") + 1]
            read_job(text)  # refuses an order with other fields, or without one that it needs
            kinds.add(json.loads(text)["kind"])
    return kinds


def test_jobs_accept_the_orders_of_a_study_of_single_devices(project):
    """Some of their lists are empty."""
    with project.asked_for(STUDY | {"variants": ["single"]}):
        kinds = kinds_of_orders(project.make("-n", "-p", REPORT))
    assert kinds >= {"compute_times", "projection"}


RESERVED = """include: "Snakefile"
for name in ("train", "search", "quality", "refine", "self_test_sessions"):
    asked, single = getattr(rules, name).rule.resources, SimpleNamespace(variant="single")
    found = [asked[one].evaluate(single, attempt=1).value for one in ("mem_mb", "runtime")]
    print("reserved", name, *found, file=sys.stderr)
"""


def test_budgets_reserve_their_time_and_trainings_at_once_the_memory_of_all(project):
    """On a cluster, jobs with less end or are killed."""
    budgets = {"search": {"budget": 7200}, "quality": {"loss": 4.0, "budget": 7200}, "time": "2h"}
    text = f"from types import SimpleNamespace\n{RESERVED}"
    (project.folder / "reserved.smk").write_text(text)
    with project.asked_for(STUDY | budgets | {"self_test": {"comparisons": 800}}):
        output = project.make("-n", "--quiet", "--snakefile", "reserved.smk")
    lines = [line.split()[1:] for line in output.splitlines() if line.startswith("reserved ")]
    found = {rule: (int(memory), int(minutes)) for rule, memory, minutes in lines}
    least, _ = found.pop("train")
    for rule, copies in {"search": 8, "quality": 2, "refine": 2, "self_test_sessions": 5}.items():
        memory, minutes = found[rule]
        assert minutes >= 120, rule
        assert memory > 0.95 * copies * least, rule
