"""Braces in titles and paths are text, although Snakemake treats braces as wildcards."""

import os

from project import TINY, Project


def test_a_study_with_braces_reads_its_corpus_and_reads_it_again_after_an_edit(tmp_path):
    pairs = {}
    for split in ("train", "validation", "test"):
        pairs[split] = f"{{{split}}} {{corpus}}.tsv"
        (tmp_path / pairs[split]).write_text("A dog sleeps .\tEin Hund schläft .\n" * 3)
    corpus = {"kind": "tsv", "name": "braces", **pairs}
    project = Project(tmp_path / "project", TINY | {"title": "{variant} {", "corpus": corpus})
    for path in pairs.values():
        (tmp_path / path).rename(project.folder / path)
    assert "page" in project.planned("results/report.html")
    project.make("results/data/braces/pairs/train.json", "results/study.json")
    assert '"title":"{variant} {"' in (project.folder / "results/study.json").read_text()
    assert project.planned("results/data/braces/pairs/train.json") == {}
    # An edit that keeps the time stamp.
    train = project.folder / pairs["train"]
    before = train.stat()
    train.write_text(train.read_text() + "A cat sleeps .\tEine Katze schläft .\n")
    os.utime(train, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "read_corpus" in project.planned("results/data/braces/pairs/train.json")
