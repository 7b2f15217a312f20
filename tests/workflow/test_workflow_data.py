"""Data of a study: several jobs tokenize parts, and a check reads all shards."""

from pathlib import Path

import numpy as np
import pytest
from project import TINY, Project

from schemas.results import DataCheck
from transformer_core.data.sharding.shard_store import open_shards

TRAIN = "results/data/grammar/shards/train"
MANIFEST = f"{TRAIN}/manifest.json"
VERIFY = "results/data/grammar/verify.json"
SCATTER = ("--set-scatter", "tokenize=3")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return Project.with_data(tmp_path_factory.mktemp("data"), TINY)


def ids(project: Project) -> list[bytes]:
    """The ids of every sentence, the sources first."""
    store = open_shards(project.folder / MANIFEST)
    rows = np.arange(len(store))
    return [row.tobytes() for row in store.source_rows(rows) + store.target_rows(rows)]


def test_several_jobs_make_the_shards_of_one(project):
    whole = ids(project)
    assert project.planned(MANIFEST, *SCATTER) == {"shards_part": 3, "gather_shards": 1}
    project.make(VERIFY, *SCATTER)
    assert ids(project) == whole
    # Digests are in hidden files.
    assert [path.name for path in sorted(Path(project.folder, TRAIN).glob("[!.]*"))] == [
        "manifest.json",
        *(f"part-{number}-of-3" for number in (1, 2, 3)),
    ]


def test_a_damaged_part_is_found_and_the_command_repairs_it(project):
    record = project.read(VERIFY, DataCheck)
    assert [split.split for split in record.splits] == ["train", "validation", "test"]
    shard = project.folder / TRAIN / "part-2-of-3" / "shard-00000.arrow"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    settings = ["--config", "title=two words", "quality=null"]
    output = project.refused(VERIFY, *SCATTER, "--forcerun", VERIFY, *settings)
    assert f"{TRAIN}/part-2-of-3/shard-00000.arrow: has " in output
    repair = f"{MANIFEST} --forcerun {TRAIN}/part-2-of-3/manifest.json"
    options = (
        "--configfile study.yaml --config 'title=two words' quality=null --set-scatter tokenize=3"
    )
    assert f"snakemake --cores all {repair} {options}" in output
    assert project.planned(*repair.split(), *SCATTER) == {"shards_part": 1, "gather_shards": 1}
    project.make(*repair.split(), *SCATTER)
    assert shard.read_bytes() == whole
