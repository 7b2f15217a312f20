"""What the documents show of the code is what the code says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(path for path in ROOT.glob("docs/*.md"))
DIFFS = [
    (page, file, body)
    for page in PAGES
    for file, body in re.findall(
        r"^```diff\n--- (\S+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S
    )
]


def test_there_are_diffs() -> None:
    assert {file for _, file, _ in DIFFS} >= {"schemas/train.py", "config/variants.yaml"}


@pytest.mark.parametrize(("page", "file", "body"), DIFFS, ids=[file for _, file, _ in DIFFS])
def test_added_lines_are_there_and_removed_lines_are_not(page: Path, file: str, body: str) -> None:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    for line in body.splitlines():
        mark, text = line[:1], line[1:]
        assert mark in ("+", "-", " ", ""), line
        assert (text in lines) == (mark != "-"), f"{page.name} on {file}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing, f"{page.name}: {', '.join(missing)}"
