"""The harness of damages: readers notice, and the harness notices readers that do not."""

import shutil
from pathlib import Path

import pytest
from pair_files import make_store

from tests.attacks.damages import KINDS, run
from transformer_core.common import digests
from transformer_core.common.digests import write_result
from transformer_core.data.sharding import shard_store
from transformer_core.study.variants import read_variants

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some results of a study."""
    folder = tmp_path_factory.mktemp("study") / "results"
    for split in ("train", "validation"):
        made = folder.with_name(split)
        made.mkdir()
        make_store(made, pairs=40, pairs_per_shard=15)
        shutil.copytree(made / "shards", folder / "data/small/shards" / split)
        digests.record(folder / f"data/small/shards/{split}/manifest.json")
    variants, _ = read_variants(ROOT / "config/variants.yaml")
    text = variants["ddp"].model_dump_json()
    write_result(folder / "variants.json", f'{{"ddp": {text}}}\n')
    return folder


def test_every_damage_is_noticed(results: Path) -> None:
    tally = run(90, 7, results)
    assert set(tally.counts) == set(KINDS)
    assert not tally.faults, tally.failures
    assert tally.total["refused"] >= 60


def test_readers_that_check_nothing_are_found(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "check", lambda *_: None)
    monkeypatch.setattr(shard_store, "check_quickly", lambda *_: None)
    assert run(90, 7, results).faults


def test_the_results_themselves_stay_as_they_are(results: Path) -> None:
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    run(18, 3, results)
    assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == before
