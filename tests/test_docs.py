"""The documents agree with the code."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

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


def test_the_citation_agrees_with_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    for said, key in (("title", "name"), ("abstract", "description")):
        assert citation[said] == project[key]
    for key in ("version", "license"):
        assert citation[key] == project[key]
