"""The documents agree with the code."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from schemas.config.study import Study
from schemas.config.variants import Variant

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "config/*.md", "docs/*.md", "docs/reference/*.md")
    for path in ROOT.glob(pattern)
)
DIFFS = [
    (page, file, body)
    for page in PAGES
    for file, body in re.findall(
        r"^```diff\n--- (\S+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S
    )
]

WHOLE = {"name": "example", "variants": ["single"]}


def examples(page):
    """Whole studies, sections of one and variants: as blocks and in sentences."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```yaml\n(.*?)^```$|`(\w+: \{[^`…]*\})`", text, re.M | re.S):
        example = yaml.safe_load("".join(block))
        if example.keys() <= Study.model_fields.keys():
            yield Study, WHOLE | example
        for entry in example.values():
            if isinstance(entry, dict) and "parent" in entry:
                yield Variant, entry


def test_diffs_are_found():
    assert {file for _, file, _ in DIFFS} >= {"schemas/config/training.py", "config/variants.yaml"}


@pytest.mark.parametrize(("page", "file", "body"), DIFFS, ids=[file for _, file, _ in DIFFS])
def test_diffs_show_the_present_code(page, file, body):
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    for line in body.splitlines():
        mark, text = line[:1], line[1:]
        assert mark in ("+", "-", " ", ""), line
        assert (text in lines) == (mark != "-"), f"{page.name} on {file}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_linked_files_and_named_modules_exist(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)", text)
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    for name in re.findall(r"\b(?:transformer_core|schemas)(?:\.\w+)+", text):
        place = ROOT / name.replace(".", "/")
        missing += [] if place.with_suffix(".py").exists() or place.is_dir() else [name]
    assert not missing, f"{page.name}: {', '.join(missing)}"


EXAMPLES = [
    pytest.param(schema, example, id=f"{page.name}-{n}")
    for page in PAGES
    if page.name != "CHANGELOG.md" and page.parent.name != "reference"
    for n, (schema, example) in enumerate(examples(page), 1)
]


def test_examples_are_found():
    assert {each.values[0] for each in EXAMPLES} == {Study, Variant}


@pytest.mark.parametrize(("schema", "example"), EXAMPLES)
def test_examples_are_valid(schema, example):
    schema.model_validate(example)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_commands_for_snakemake_say_how_many_cores(page):
    commands = re.findall(r"\bsnakemake [^`\n]*results/[^`\n]*", page.read_text(encoding="utf-8"))
    assert not [each for each in commands if "--cores" not in each and " -n " not in each]


def test_the_citation_agrees_with_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    for said, key in (("title", "name"), ("abstract", "description")):
        assert citation[said] == project[key]
    for key in ("version", "license"):
        assert citation[key] == project[key]
