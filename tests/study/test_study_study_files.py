"""Studies from files and command lines, checked before Snakemake reads them."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from snakemake.cli import get_profile_dir

from schemas.config.data import SPLITS
from schemas.errors import ConfigError
from tests.refusals import problem_of, problems_of
from transformer_core.study.checks import doubts
from transformer_core.study.plan import plan_study
from transformer_core.study.resolve import check_study
from transformer_core.study.study_files import (
    cache_of_snakemake,
    check_profiles,
    guard,
    study_settings,
)
from transformer_core.study.variants import read_variants

ROOT = Path(__file__).resolve().parents[2]
DECLARED = read_variants(ROOT / "config/variants.yaml")


def test_files_are_laid_over_one_another_and_entries_on_top(tmp_path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.json"
    first.write_text("name: a\nmodel: {heads: 2, d_ff: 8}\nvariants: [single, ddp]\n")
    second.write_text('{"model": {"heads": 4}, "variants": ["single"]}')
    settings = study_settings([first, second], ["model={d_ff: 16}", "title=a {b}", "repeats=3"])
    assert settings == {
        "name": "a",
        "model": {"heads": 4, "d_ff": 16},
        "variants": ["single"],
        "title": "a {b}",
        "repeats": 3,
    }


def test_a_section_of_another_kind_drops_what_this_does_not_have(tmp_path):
    """As in a variant: no value could remove the field of an earlier file."""
    file = tmp_path / "a.yaml"
    file.write_text("corpus: {kind: tsv, name: pairs, train: a, validation: b, test: c}\n")
    settings = study_settings([file], ["corpus={kind: grammar, seed: 2}"])
    assert settings == {"corpus": {"kind": "grammar", "name": "pairs", "seed": 2}}
    traces = study_settings([], ["traces={kind: [a], other: [b]}", "traces={kind: [c]}"])["traces"]
    assert traces == {"kind": ["c"], "other": ["b"]}, "a trace of that name"


def test_a_file_may_not_be_a_program(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text('__use_yte__: true\n__definitions__: [\'open("made", "w")\']\n')
    with pytest.raises(ConfigError, match="__use_yte__"):
        study_settings([path])


@pytest.mark.parametrize(
    "arguments",
    [
        ["-n", "--configfile", "{bad}"],
        ["results/report.html", "--configfile={bad}", "--cores", "2"],
        ["--configfiles", "{good}", "{bad}"],
        ["--config", "model={a: 1, a: 2}"],
        ["-C", "name=x", "model=[[[[[[[[[[[[[[[[[[[[[1", "--cores", "all"],
    ],
)
def test_the_guard_reads_the_settings_on_the_command_line(tmp_path, arguments):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("name: a\n")
    bad.write_text("a: &a [*a]\n")
    given = [a.replace("{good}", str(good)).replace("{bad}", str(bad)) for a in arguments]
    with pytest.raises(SystemExit, match="remedy:"):
        guard(given)
    guard(["-n", "--configfile", str(good), "--config", "against=there", "repeats=2"])
    guard(["--configfile"])  # left to Snakemake


def test_a_user_without_a_home_has_the_cache_of_snakemake_in_the_study(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_of_snakemake(tmp_path) == {}
    monkeypatch.setenv("HOME", os.devnull)
    assert cache_of_snakemake(tmp_path) == {"XDG_CACHE_HOME": str(tmp_path / ".snakemake/cache")}


@pytest.mark.parametrize(
    ("option", "values"), [("--configfile", ["a b.yaml", "c.yaml"]), ("--config", ["a=1", "b=2"])]
)
def test_settings_that_snakemake_would_not_read_are_refused(option, values):
    with pytest.raises(SystemExit) as caught:
        guard(["-n", f"{option}={values[0]}", option, values[1], "--cores", "2"])
    assert "given 2 times, of which Snakemake reads only the last" in str(caught.value)
    assert f"after one: {option} {shlex.join(values)}" in str(caught.value)


PROFILES = {
    "dict": "config: {repeats: 2, title: a b}",
    "list": "config: [repeats=2, title=a b]",
    "text": "config: title=a b",
}


@pytest.mark.parametrize("form", PROFILES)
@pytest.mark.parametrize("option", ["--profile", "--workflow-profile", "SNAKEMAKE_PROFILE"])
def test_settings_of_a_profile_that_config_hides_are_named(option, form, tmp_path, monkeypatch):
    (tmp_path / "profiles/mine").mkdir(parents=True)
    (tmp_path / "profiles/mine/config.yaml").write_text(PROFILES[form])
    monkeypatch.chdir(tmp_path)
    given = [option, "mine"]
    if not option.startswith("-"):
        monkeypatch.setenv(*given)
        given = []
    found = problem_of(check_profiles, [*given, "--config", "repeats=3"], get_profile_dir)
    assert "profiles/mine/config.yaml" in found.message
    entry = """'title="a b"'""" if form == "dict" else "'title=a b'"
    assert found.remedy == f"write all of them: --config repeats=3 {entry}"
    for all_named in ([], ["--config", "repeats=3", "title=c"]):
        check_profiles([*given, *all_named], get_profile_dir)


def test_a_profile_of_the_user_called_default_is_not_that_of_the_workflow(tmp_path, monkeypatch):
    (tmp_path / "user").mkdir()
    (tmp_path / "user/config.yaml").write_text(PROFILES["dict"])
    monkeypatch.chdir(tmp_path)
    found = tmp_path / "user", tmp_path / "user/config.yaml"
    check_profiles(["--config", "repeats=3"], lambda name: found if name == "default" else None)


@pytest.mark.slow
def test_snakemake_never_reads_files_that_the_guard_refuses(tmp_path):
    """An alias bomb would keep it busy; a template would run."""
    levels = "\n".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 40))
    path = tmp_path / "study.yaml"
    made = tmp_path / "made"
    path.write_text(
        f"__use_yte__: true\n__definitions__: ['open({json.dumps(str(made))}, \"w\")']\n"
        f"x0: &x0 {{a: 1}}\n{levels}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", "--configfile", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "remedy:" in done.stderr
    assert str(path) in done.stderr
    assert not made.exists()


WRONG: list[tuple[str, str, str]] = [
    ("limits={smallest_message: 4096, largest_message: 1024}", "limits.largest_message", "4096"),
    ("comparison={sessions_least: 5, sessions_most: 3}", "comparison.sessions_most", "at least 5"),
    ("machine={threads: 1024, devices_per_node: 64}", "machine.threads", "at most 64"),
    ("machine={threads: 100000}", "machine.threads", "at most 1024"),
    ("batching={kind: token_budget, tokens: 1000000000, scale: 9}", "batching.scale", "at most 1"),
    ("model={kind: transformer, d_model: 65536, encoder_layers: 1000}", "model.d_model", "1e+12"),
    ("tokenizer={kind: file, path: nowhere.json, vocabulary: 300}", "tokenizer.path", "check the"),
    ("traces={mine: [/dev/zero]}", "traces.mine[0]", "check the path"),
    ("traces={single: [a.sqlite]}", "traces.single", "is that of a variant"),
    ("traces={other: []}", "traces.other", "name a file"),
    ("traces={mine: [a.json, a.json]}", "traces.mine[1]", "give each value once"),
    ("link_check={bandwidths: [1000000000, 1Gbit/s]}", "link_check.bandwidths[1]", "once"),
    ("link_check={bandwidths: [100000000, 5, 100Mbit/s]}", "link_check.bandwidths[2]", "once"),
    ("memory={largest_batch: {limit: " + "9" * 400 + "GiB}}", "memory.largest_batch.limit", "512"),
    ("training={seed: 1180591620717411303424}", "training.seed", "at most 4294967295"),
    ("training={steps: 1e30}", "training.steps", "give a smaller number"),
    ("machine={timeout: 1e300}", "machine.timeout", "at most 604800"),
    ("title=\"a\\0b\"", "title", "control characters"),
    ("training=null", "training", "leave it out"),
    ("traces={mine: [~/trace.json]}", "traces.mine[0]", "in full"),
    ("quality={loss: 4, schedule: {kind: noam, warmup: 2001}}", "quality.steps", "at least 2001"),
    ("quality={loss: 4, steps: 50}", "quality.steps", "at least 100, or make every smaller"),
    ("self_test={planted: [1.0]}", "self_test.planted[0]", "below 1"),
    ("baseline={with: ddp}", "baseline", "write {with: [first, second]}"),
    ("baseline={with: [ddp, {with: [ddp]}]}", "baseline", "write {with: [first, second]}"),
    ("baseline={with: []}", "baseline", "write {with: [first, second]}"),
]  # fmt: skip


@pytest.mark.parametrize(("entries", "field", "remedy"), WRONG, ids=[w[1] for w in WRONG])
def test_contradictions_name_field_value_and_remedy(entries, field, remedy):
    settings = study_settings([], ["name=a", "variants=[single, ddp]", entries])
    found = problems_of(plan_study, settings, "study.yaml", DECLARED, {})
    problems = {problem.field: problem for problem in found}
    assert field in problems, problems
    assert not any(field.startswith(f"{other}[") for other in problems), "the list itself is right"
    assert remedy in f"{problems[field].message} {problems[field].remedy}"


def corpus_of_files(folder: Path, **changed: Any) -> dict[str, Any]:
    """A study of text files, all of which exist."""
    splits = {}
    for split in ("train", "validation", "test"):
        splits[split] = {side: str(folder / f"{split}.{end}.gz") for side, end in LANGUAGES.items()}
        for path in splits[split].values():
            Path(path).touch()
    corpus = {"kind": "text", "name": "mine"} | splits | changed
    return {"name": "a", "variants": ["single"], "corpus": corpus}


LANGUAGES = {"source": "en", "target": "de"}


def test_a_corpus_that_cannot_be_read_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = corpus_of_files(tmp_path)
    plan_study(settings, "study.yaml", DECLARED, {})
    Path("train.de.gz").unlink()
    Path("test.en.gz").unlink()
    Path("test.en.gz").mkdir()
    missing, folder = problems_of(plan_study, settings, "study.yaml", DECLARED, {})
    assert (missing.field, missing.value) == ("corpus.train.target", f"{tmp_path}/train.de.gz")
    assert "check the path" in missing.remedy
    assert (folder.field, folder.message) == ("corpus.test.source", "is a folder, not a file")
    # Once it has been read, it may be gone.
    for split in ("train", "test"):
        read = Path(f"results/data/mine/pairs/{split}.arrow")
        read.parent.mkdir(parents=True, exist_ok=True)
        read.touch()
    plan_study(settings, "study.yaml", DECLARED, {})
    corpus = {"kind": "datasets", "name": "other", "folder": "nowhere"}
    (problem,) = problems_of(plan_study, settings | {"corpus": corpus}, "study.yaml", DECLARED, {})
    assert (problem.field, problem.message) == ("corpus.folder", "is not a folder")


def test_texts_that_look_like_json_are_not_read_as_plain_text(tmp_path):
    names = {"train": "a.jsonl.gz", "validation": "b.json", "test": "c.NDJSON.zst"}
    files = {split: str(tmp_path / name) for split, name in names.items()}
    for path in files.values():
        Path(path).touch()
    settings = {
        "name": "a",
        "task": {"kind": "language_model"},
        "variants": ["single"],
        "corpus": {"kind": "documents", "name": "mine"} | files,
    }
    found = problems_of(plan_study, settings, "study.yaml", DECLARED, {})
    assert [problem.field for problem in found] == ["corpus.validation", "corpus.test"]
    assert all("end its name in .jsonl" in problem.remedy for problem in found)


def test_languages_that_change_sides_are_refused(tmp_path):
    swapped = {"source": str(tmp_path / "test.de.gz"), "target": str(tmp_path / "test.en.gz")}
    settings = corpus_of_files(tmp_path, test=swapped)
    (problem,) = problems_of(plan_study, settings, "study.yaml", DECLARED, {})
    assert problem.field == "corpus.test.source"
    assert "swap source and target of corpus.test" in problem.remedy


def test_a_language_is_a_code(tmp_path):
    """BLEU divides sentences by it."""
    settings = corpus_of_files(tmp_path)
    for other in ("zh_Hans", "x-klingon"):
        settings["corpus"] |= {"source_language": "english", "target_language": other}
        plan_study(settings, "study.yaml", DECLARED, {})
    settings["corpus"]["target_language"] = "chinese"
    problem = problem_of(plan_study, settings, "study.yaml", DECLARED, {})
    assert (problem.field, problem.value) == ("corpus.target_language", "chinese")


def test_training_data_in_another_place_are_worth_a_warning(tmp_path):
    settings = corpus_of_files(tmp_path)
    assert not list(doubts(check_study(settings, "study.yaml")))
    settings["corpus"]["validation"] = settings["corpus"]["train"]
    settings["corpus"]["test"]["target"] = settings["corpus"]["test"]["source"]
    first, second, third = doubts(check_study(settings, "study.yaml"))
    assert "corpus.validation.source" in first
    assert "also the file of corpus.train.source" in first
    assert "corpus.validation.target" in second
    assert "also the file of corpus.test.source" in third


def test_targets_that_are_their_sources_are_worth_a_warning():
    files = {split: f"data/{split}" for split in SPLITS}
    tsv = {"kind": "tsv", **files}
    jsonl = {"kind": "jsonl", **files}
    remote = {"url": "https://example.org/a.gz", "sha256": "0" * 64}
    pair = {"source": remote, "target": remote | {"sha256": "1" * 64}}
    url = {"kind": "url", **dict.fromkeys(SPLITS, pair)}
    for corpus, copied, field in [
        (tsv, {"target_column": 1}, "corpus.target_column = 1 is also the column"),
        (jsonl, {"target_field": "source"}, "corpus.target_field = 'source' is also the field"),
        (url, {"test": {"source": remote, "target": remote}}, "corpus.test.target.sha256 = '000"),
    ]:
        settings = {"name": "a", "variants": ["single"], "corpus": corpus | {"name": "mine"}}
        assert not list(doubts(check_study(settings, "study.yaml")))
        settings["corpus"] |= copied
        (doubt,) = doubts(check_study(settings, "study.yaml"))
        assert field in doubt


def test_contradictions_hide_no_other_mistakes():
    settings = {"name": "a", "variants": ["single", "dpp"], "search": None, "quality": {"loss": 4}}
    settings |= {"memory": {"largest_batch": {"variants": ["singel"]}}, "baseline": "ddp"}
    found = problems_of(plan_study, settings, "study.yaml", DECLARED, {})
    assert {problem.field for problem in found} == {
        *("quality", "memory.largest_batch.variants[0]", "baseline", "variants[1]")
    }


def test_a_composition_with_too_long_a_name_needs_one_of_its_own():
    composed = {"with": ["as_published", "loss_one_pass", "tokens_unpadded", "adamw", "norm_fused"]}
    settings = {"name": "a", "variants": ["single", composed]}
    (problem,) = problems_of(plan_study, settings, "study.yaml", DECLARED, {})
    assert problem.field == "variants[1]"
    assert "under a name of your own" in problem.remedy


def test_more_processes_than_threads_are_not_told_to_take_none():
    machine = {"nodes": 5000, "threads": 1, "link": {"bandwidth": "1Gbit/s"}}
    settings = {"name": "a", "variants": ["single", "ddp"], "machine": machine}
    found = problems_of(plan_study, settings, "study.yaml", DECLARED, {})
    assert [problem.field for problem in found] == ["machine.nodes"]


def test_powersgd_that_never_starts_is_refused():
    name = next(n for n, v in DECLARED.variants.items() if "powersgd" in str(v.change))
    training = {"steps": 4, "schedule": {"kind": "noam", "warmup": 4}}
    settings = {"name": "a", "variants": ["single", name], "training": training}
    settings["measurement"] = {"warmup_steps": 2, "window_steps": 2}
    with pytest.raises(ConfigError, match=r"start_step = \d+"):
        plan_study(settings, "study.yaml", DECLARED, {})


def test_a_target_after_configfile_or_config_is_reported(tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text("name: mine\n")
    with pytest.raises(SystemExit) as caught:
        guard(["--cores", "2", "--configfile", str(study), "results/report.html"])
    told = str(caught.value)
    assert "results/report.html\n    problem: cannot be read: no such file" in told
    assert told.endswith("write it before the options: results/report.html ...")
    with pytest.raises(SystemExit) as caught:
        guard(["--cores", "2", "--config", "time=5min", "results/report.html"])
    assert str(caught.value).endswith("write it before the options: results/report.html ...")
    with pytest.raises(SystemExit) as caught:
        guard(["--configfile", str(tmp_path / "other.yaml")])
    assert "before the options" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "remedy"),
    [
        ("training.steps=14", "training={steps: 14}"),
        ("variants[0]=ddp", "NAME=VALUE"),
        ("search=", "search=VALUE"),
    ],
)
def test_a_name_that_snakemake_would_refuse_with_a_traceback_is_reported(entry, remedy):
    with pytest.raises(SystemExit) as caught:
        guard(["--cores", "2", "--config", entry])
    told = str(caught.value)
    assert f"--config: {entry.partition('=')[0]} = " in told
    assert f"remedy:  write {remedy}" in told
