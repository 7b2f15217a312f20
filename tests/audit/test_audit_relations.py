"""The relations and their page in the docs."""

import re
from pathlib import Path

from transformer_core.audit.relations import RELATIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "audit.md"


def test_the_page_names_each_relation_as_the_report_does():
    table = PAGE.read_text(encoding="utf-8").partition("## The relations")[2].partition("\n## ")[0]
    found = {}
    for names, titles in re.findall(r"^\| (`.+?`) \| (.+?) \|", table, re.M):
        # A row of two relations has two titles; the second begins in the middle of a sentence.
        for name, title in zip(names.split(", "), titles.split("; "), strict=True):
            found[name.strip("`")] = title[0].upper() + title[1:]
    assert found == RELATIONS
    assert list(found) == list(RELATIONS), "another order"
