"""Which changes of sources and of the user's files make results stale for Snakemake. Most results of
a small study are empty files that Snakemake considers finished. Its title and the names of its files
have braces, which are text here, although Snakemake treats braces as wildcards."""

import os
import re
import shutil
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from project import TINY, Project, put_back

from schemas.config.data import SPLITS
from transformer_core.common.sources import CACHE, Sources
from transformer_core.study.staleness import fingerprints, rules_of_files

# Snakemake starts often.
pytestmark = pytest.mark.slow

CORPUS = {split: f"{{{split}}} {{corpus}}.tsv" for split in SPLITS}
STUDY = TINY | {
    "title": "{variant} {",
    "corpus": {"name": "pairs", "kind": "tsv", **CORPUS},
    "model": {"kind": "import", "factory": "own.model:build"},
    "variants": ["single", "ddp", "log_every_1"],
    "comparison": TINY["comparison"] | {"together": 3},
}


TARGETS = ("results/report.html", "results/self_test/report.json")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("staleness"), STUDY)
    for file in CORPUS.values():
        (project.folder / file).write_text("a dog\tein Hund\n")
    own = project.folder / "own"
    own.mkdir()
    # Importing the package would leave a file behind.
    (own / "__init__.py").write_text("open('imported', 'w').close()\n")
    (own / "model.py").write_text('"""Own."""\nfrom own import parts\ndef build(): parts.part()\n')
    (own / "parts.py").write_text("def part():\n    return 1\n")
    output = project.make("--summary", *TARGETS)
    lines = [line.split("\t") for line in output.splitlines()]
    rules = {name: rule for name, _, rule, *_ in (x for x in lines if x[0].startswith("results/"))}
    # Files that name the study of the results are really made: empty ones would be refused.
    really = ("describe_study", "resolve_spec", "read_corpus")
    made = [name for name, rule in rules.items() if rule in really]
    project.make(*made)
    assert '"title":"{variant} {"' in (project.folder / "results/study.json").read_text()
    for name, rule in rules.items():
        if name in made:
            continue
        path = project.folder / name
        if rule == "turns":
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    output = project.make("--touch", "--forceall", *TARGETS)
    assert "don't exist" not in output
    return project


def stale(project: Project) -> dict[str, set[str]]:
    """The rules that a dry run announces, by reason."""
    output = project.make("-n", *TARGETS)
    text = output.split("Reasons:")[-1] if "Reasons:" in output else ""
    found = re.findall(r"^    (\S[^\n]*):\n        (\S[^\n]*)$", text, re.MULTILINE)
    return {reason: set(rules.split(", ")) for reason, rules in found}


def by_itself(reasons: dict[str, set[str]]) -> set[str]:
    """Rules that run again for their own reasons, not because of another's new output."""
    own = [rules for reason, rules in reasons.items() if "updated by another job" not in reason]
    return set().union(*own)


def edit(project: Project, name: str, old: str, new: str) -> None:
    path = project.folder / name
    text = path.read_text()
    assert old in text, name
    path.write_text(text.replace(old, new, 1))


def test_comments_and_time_stamps_make_nothing_stale_in_a_clone(finished):
    clone = finished.copy(finished.folder.with_name("clone"))
    for path in (clone.folder / "schemas").rglob("*.py"):
        path.write_text(f"# A comment.\n{path.read_text()}\n\n# At the end.\n")
    edit(clone, "transformer_core/common/progress.py", "tqdm(", "tqdm(leave=False, ")
    edit(clone, "own/parts.py", "return 1", "return 1  # one")
    for package in ("transformer_core", "schemas", "workflow", "config", "own"):
        for path in (clone.folder / package).rglob("*"):
            os.utime(path)
    assert stale(clone) == {}
    shutil.rmtree(clone.folder)


def test_a_permission_makes_nothing_stale(finished):
    assert finished.planned(*TARGETS, "--config", "replace_results=true") == {}


def test_a_title_is_only_shown(finished):
    """No search runs again for it, which takes minutes."""
    shown = {"describe_study", "families", "claims", "page"}
    assert finished.planned(*TARGETS, "--config", "title=another").keys() - {"all"} == shown


def test_another_order_of_variants_is_only_shown(finished):
    shown = {"describe_study", "utilisation", "families", "claims", "page"}
    with finished.asked_for(STUDY | {"variants": STUDY["variants"][::-1]}):
        assert finished.planned(*TARGETS).keys() - {"all"} == shown


@pytest.mark.parametrize(
    ("changed", "measured"),
    [({"beam_size": 3}, {"memory"}), ({"samples": 3}, set()), ({"max_pairs": 7}, set())],
)
def test_another_evaluation_trains_and_times_nothing(finished, changed, measured):
    """Memory depends on the beam, not on how many texts are translated or shown."""
    with finished.asked_for(STUDY | {"evaluation": TINY["evaluation"] | changed}):
        found = stale(finished)
    shown = {"describe_study", "evaluate", "families", "claims", "page"}
    assert set().union(*found.values()) == shown | measured


def test_more_devices_concern_the_distributed_variants(finished):
    with finished.asked_for(STUDY | {"machine": TINY["machine"] | {"devices_per_node": 4}}):
        found = by_itself(stale(finished))
    assert {"resolve_spec", "collectives"} <= found
    assert not found & {"audit", "train"}, "one device trains the baseline"


def test_the_table_lists_the_rules_that_run_again(finished, tmp_path):
    """tests/study checks other files in the table."""
    file = "transformer_core/run/launcher.py"
    cache = Path(shutil.copy(finished.folder / CACHE, tmp_path))
    before = Sources(finished.folder, cache)
    marks, table = fingerprints(before), rules_of_files(before)
    with put_back(finished.folder / file):
        edit(finished, file, "1 << 30", "1 << 29")
        found = by_itself(stale(finished))
        after = fingerprints(Sources(finished.folder, cache))
    changed = {rule for rule, mark in after.items() if marks[rule] != mark}
    # The study does not use every rule.
    assert found <= changed == set(table[file])
    assert found >= {"train", "turns", "profile"}
    assert not changed & {"claims", "page", "tokenizer"}


def test_a_corpus_that_must_be_read_again_but_is_gone_is_refused_before_any_work(
    finished, tmp_path
):
    """Snakemake removes what it makes again, and the corpus was read well."""
    project = finished.copy(tmp_path / "project")
    (project.folder / CORPUS["train"]).unlink()
    read = "results/data/pairs/pairs/train.arrow"
    before = (project.folder / read).read_bytes()
    assert "study.yaml: corpus.train" in project.refused(read)
    assert (project.folder / read).read_bytes() == before


# This one and the next run before the user's files and the study change.
def test_results_whose_record_is_lost_are_named(finished, tmp_path):
    """Snakemake keeps them, whatever has changed, and only tells a dry run."""
    project, turns = finished.copy(tmp_path / "project"), "results/turns/single/ddp"
    (project.folder / ".snakemake/metadata" / urlsafe_b64encode(turns.encode()).decode()).unlink()
    output = project.refused("results/comparisons.json", "--forcerun", "compare")
    assert f"no record of {turns}. Snakemake keeps" in output
    assert output.count("warning: ") == 1


def test_with_a_time_comparisons_continue_and_nothing_is_trained(finished):
    planned = finished.planned("results/report.html", "--config", "time=1h")
    concluded = {"compare", "families", "claims", "page"}
    # This study hardly searches; a touched file says nothing about rules without input.
    others = {"search", "describe_study"}
    assert planned.keys() - others == {"refine"} | concluded
    assert planned["refine"] == 1


def test_changed_files_of_the_user_make_their_jobs_stale(finished):
    with put_back(finished.folder / "own/parts.py"):
        edit(finished, "own/parts.py", "return 1", "return 2")
        # All other rules run only because these do.
        assert by_itself(stale(finished)) == {
            *("train", "turns", "short_run", "profile", "compute_times", "self_test_sessions"),
            *("audit", "memory", "predict_memory"),
        }
    assert not (finished.folder / "imported").exists()
    train = finished.folder / CORPUS["train"]
    before = train.stat()
    edit(finished, train.name, "Hund", "Hund\na cat\teine Katze")
    os.utime(train, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert by_itself(stale(finished)) == {"read_corpus"}


def test_other_groups_repeat_only_the_turns(finished):
    finished.write_study(STUDY | {"comparison": STUDY["comparison"] | {"together": 2}})
    found = by_itself(stale(finished))
    assert "turns" in found
    assert not found & {"self_test_sessions", "train", "link_trial"}
