"""Shards of a split that several jobs make, and the manifest of all."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_files import ENGLISH, GERMAN, steady, write_pairs

from schemas.config.corpus import Filter
from transformer_core.data.corpus.pairs import PairFile
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.sharding.job import Part, write_shards
from transformer_core.data.sharding.merge_parts import gather
from transformer_core.data.sharding.merge_parts import main as gather_main
from transformer_core.data.sharding.shard_store import open_shards

ROOT = Path(__file__).resolve().parents[2]


@steady
@given(
    total=st.integers(0, 50), count=st.integers(1, 9), per_shard=st.integers(1, 8), data=st.data()
)
def test_parts_cover_every_pair_once(total, count, per_shard, data):
    spans = [Part(number, count).pairs(total) for number in range(count)]
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert spans[-1][1] == total
    assert max(b - a for a, b in spans) - min(b - a for a, b in spans) <= 1


@pytest.mark.parametrize("count", [1, 3, 7])
def test_parts_together_are_the_split(tmp_path, tokenizer, count):
    long = "Straße " * 40
    sources, targets = [*ENGLISH, long, *GERMAN] * 4, [*GERMAN, "kurz", *ENGLISH] * 4
    file = write_pairs(tmp_path / "p.arrow", sources, targets)
    rules = Filter(max_tokens=60)
    whole = write_shards(file, tokenizer, rules, tmp_path / "whole", 5)
    out = tmp_path / "out"
    # What an earlier job of the whole split, or of more parts, left behind.
    for stale in (out / "shard-00000.arrow", out / "part-009" / "shard-00000.arrow"):
        stale.parent.mkdir(parents=True, exist_ok=True)
        stale.touch()
    paths = [out / f"part-{number:03}" / "manifest.json" for number in range(count)]
    for number, path in enumerate(paths):
        write_shards(file, tokenizer, rules, path.parent, 5, Part(number, count))
    manifest = gather(paths, rules, out / "manifest.json")
    files = {"shards": whole.shards, "seconds": whole.seconds}
    assert manifest.model_copy(update=files) == whole
    store, expected = (
        open_shards(out / "manifest.json"),
        open_shards(tmp_path / "whole" / "manifest.json"),
    )
    rows = np.arange(len(expected))
    for side in ("source_rows", "target_rows"):
        for left, right in zip(
            getattr(store, side)(rows), getattr(expected, side)(rows), strict=True
        ):
            np.testing.assert_array_equal(left, right)
    assert {path.relative_to(out) for path in out.rglob("*.arrow")} == {
        Path(shard.file) for shard in manifest.shards
    }
    assert {path.name for path in out.glob("part-*")} == {path.parent.name for path in paths}
    # And one job again.
    write_shards(file, tokenizer, rules, out, 5)
    assert not list(out.glob("part-*"))
    assert len(open_shards(out / "manifest.json")) == len(expected)


def test_a_part_may_be_empty_but_not_all(tmp_path, tokenizer):
    file = write_pairs(tmp_path / "p.arrow", ["Straße " * 9, "a"], ["b", "b"])
    paths = [tmp_path / f"part-{number:03}" / "manifest.json" for number in range(3)]
    for limit in (10, 2):
        rules = Filter(max_tokens=limit)
        for number, path in enumerate(paths):
            write_shards(file, tokenizer, rules, path.parent, part=Part(number, 3))
        if limit == 10:
            manifest = gather(paths, rules, tmp_path / "manifest.json")
            assert (manifest.pairs, manifest.skipped_too_long) == (1, 1)
            assert [shard.file for shard in manifest.shards] == ["part-002/shard-00000.arrow"]
    write_pairs(tmp_path / "q.arrow", ["Straße " * 9], ["b"])
    write_shards(PairFile(tmp_path / "q.arrow"), tokenizer, rules, paths[0].parent, part=Part(0, 2))
    with pytest.raises(CorpusError, match="no pair is left"):
        gather(paths[:1], rules, tmp_path / "manifest.json")


def test_gather_job(tmp_path, tokenizer, capsys):
    file = write_pairs(tmp_path / "p.arrow", ENGLISH, GERMAN)
    write_shards(file, tokenizer, Filter(), tmp_path / "part-000", part=Part(0, 2))
    paths = [str(tmp_path / f"part-{number:03}" / "manifest.json") for number in range(2)]
    arguments = ["--filter", "{}", "--output", str(tmp_path / "manifest.json"), *paths]
    assert gather_main(arguments) == 2
    message = capsys.readouterr().err
    assert "part-001" in message
    assert "remedy: make it again: snakemake" in message
    assert not (tmp_path / "manifest.json").exists()
    write_shards(file, tokenizer, Filter(), tmp_path / "part-001", part=Part(1, 2))
    assert gather_main(arguments) == 0
    assert len(open_shards(tmp_path / "manifest.json")) == 4
