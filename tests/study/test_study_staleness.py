"""The table of files and rules, compared with the rules and the sources."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_core.common.sources import CACHE, PACKAGES, ROOT, Sources
from transformer_core.study import staleness
from transformer_core.study.kinds import JOBS
from transformer_core.study.staleness import KINDS, PROGRAMS

pytestmark = pytest.mark.slow

RULE = re.compile(
    r"^\s*(?:use )?rule (?:\w+ as )?(\w+)(?: with)?:\n(.*?)(?=^\s*(?:use )?rule |\Z)",
    re.MULTILINE | re.DOTALL,
)
ORDER = re.compile(r'job\(\s*"(\w+)"')


@pytest.fixture(scope="module")
def rules():
    sources = Sources(ROOT, ROOT / CACHE)
    staleness.fingerprints(sources)  # fills the cache
    return staleness.rules_of_files(sources)


def written_rules() -> dict[str, str]:
    """The text of every rule by its name, without one that has the job of another."""
    texts = [path.read_text() for path in sorted(ROOT.glob("workflow/rules/*.smk"))]
    found = {name: body for text in texts for name, body in RULE.findall(text)}
    del found["train_again"]
    return found


UNLIKE = ("transformer_core.run.quick_start", "transformer_core.common.digests")
"""Programs whose sources count elsewhere, or not at all."""
FOUND = r"\.report\.sections\.|\.tune\.techniques\.|\.(tune\.side|tune\.factory|audit\.side|training\.__main__)$"
ORDERED = "transformer_core.run.job"


def test_the_table_names_the_programs_that_the_rules_start():
    started = {}
    for name, body in written_rules().items():
        found = re.findall(r"(?<=[ \"])(transformer_core\.[\w.]+)(?=[ \"])", body)
        if ordered := ORDER.search(body):
            assert ordered[1] == name
            found = [ORDERED, JOBS[KINDS.get(name, name)].rpartition(".")[0]]
        started[name] = tuple(program for program in found if program not in UNLIKE)
    started["train_again"] = started["train"]
    listed = {
        # Programs look up sections of the report, techniques and the side of a script by name.
        name: tuple(program for program in programs if not re.search(FOUND, program))
        for name, programs in PROGRAMS.items()
    }
    assert {name: programs for name, programs in started.items() if programs} == listed


def test_every_rule_with_a_program_has_its_own_fingerprint_and_no_source_as_input():
    for name, body in written_rules().items():
        assert "transformer_core/" not in body
        found = re.findall(r'code=CODE\["(\w+)"\],|\*\*job\(\s*"(\w+)"', body)
        assert {"".join(one) for one in found} == {name} & {*PROGRAMS}, name


def test_every_rule_whose_job_counts_failed_attempts_repeats_them():
    for name, body in written_rules().items():
        if ORDER.search(body):
            file = JOBS[KINDS.get(name, name)].rpartition(".")[0].replace(".", "/")
            text = (ROOT / f"{file}.py").read_text()
            counts = re.search(r"\b(count_failure|attempt)\(|partial\(count_failure", text)
            assert ("again=" in body) == bool(counts), name


def test_rules_import_nothing_heavy():
    """Every start of Snakemake imports it."""
    text = "\n".join(path.read_text() for path in sorted(ROOT.glob("workflow/rules/*.smk")))
    imports = re.findall(
        r"^from (?:schemas|transformer_core)[\w.]* import (?:\([^)]*\)|.*)", text, re.MULTILINE
    )
    assert len(imports) > 10
    heavy = {"torch", "numpy", "pyarrow", "scipy", "matplotlib", "schemas.results.profiles"}
    code = "\n".join(["import sys", *imports, f"print(*({heavy} & sys.modules.keys()))"])
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.stdout.strip(), ended.stderr) == ("", "")


def test_names_of_modules_are_literal():
    # A name composed at run time would not be found.
    start = tuple(f"{package}." for package in PACKAGES)
    for path in (path for package in PACKAGES for path in ROOT.joinpath(package).rglob("*.py")):
        text = path.read_text()
        if not any(f"{quote}{name}" in text for quote in "\"'" for name in start):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
                assert not str(node.values[0].value).startswith(start), f"{path}:{node.lineno}"


TIMED = {"train", "turns", "self_test_sessions", "profile", "compute_times", "link_trial", "search"}
UNTIMED = {"claims", "families", "compare", "page", "tokenizer"}


@pytest.mark.parametrize(
    ("file", "stale", "fresh"),
    [
        ("models/sublayers.py", {"train", "evaluate"}, {"shards", "tokenizer"}),
        ("data/sharding/job.py", {"shards"}, {"tokenizer"}),
        ("report/sections/variants.py", {"page"}, {"train", "evaluate"}),
        ("report/korean.po", {"page", "compare_page"}, {"train"}),
        ("report/sections/equivalence.html", {"page"}, {"train"}),
        ("run/coordinator.py", {"turns"}, {"train"}),
        ("decide/verdicts.py", {"compare"}, {"train", "turns"}),
        # These start all timed jobs.
        ("run/quick_start.py", TIMED, UNTIMED),
        ("run/host_processes.py", TIMED, UNTIMED),
    ],
)
def test_a_file_makes_the_right_results_stale(rules, file, stale, fresh):
    found = set(rules[f"transformer_core/{file}"])
    assert found >= stale
    assert not found & fresh


def test_the_printed_table(capsys):
    assert staleness.main(["--rule", "hardware"]) == 0
    assert "transformer_core/machine/hardware.py" in capsys.readouterr().out
    file = "transformer_core/data/corpus/readers.py"
    assert staleness.main(["--file", file]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{file}\n    read_corpus, ")
    assert "claims" not in said
    assert staleness.main(["--file", str(Path(file).absolute())]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("arguments", [["--rule", "trian"], ["--file", "README.md"]])
def test_an_unknown_name(arguments, capsys):
    with pytest.raises(SystemExit):
        staleness.main(arguments)
    said = capsys.readouterr().err
    assert f"{' '.join(arguments)}: is not known" in said
    assert len(said) < 1_000
