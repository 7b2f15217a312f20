"""Tokenized splits as Arrow shards."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_files import ENGLISH, GERMAN, decoded, make_store, steady, write_pairs

from schemas.config.corpus import Filter
from schemas.results import ShardManifest
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.sharding import job, shard_writer
from transformer_core.data.sharding.job import write_shards
from transformer_core.data.sharding.shard_store import open_shards

ROOT = Path(__file__).resolve().parents[2]


@steady
@given(
    pairs=st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), min_size=1, max_size=12),
    per_shard=st.integers(1, 14),
    data=st.data(),
)
def test_round_trip_in_any_number_of_shards(tokenizer, pairs, per_shard, data):
    sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = write_pairs(folder / "p.arrow", sources, targets)
        written = write_shards(file, tokenizer, Filter(), folder / "out", per_shard)
        store = open_shards(folder / "out" / "manifest.json")
        assert store.manifest == written
        assert len(store) == len(pairs)
        assert len(written.shards) == -(-len(pairs) // per_shard)
        rows = data.draw(st.lists(st.integers(0, len(pairs) - 1), max_size=20))
        assert decoded(tokenizer, store.source_rows(rows)) == [sources[row] for row in rows]
        assert decoded(tokenizer, store.target_rows(rows)) == [targets[row] for row in rows]
        spans = np.array([[row, row + 2] for row in rows if row + 2 <= len(pairs)], np.int64)
        spans = spans.reshape(-1, 2)
        twice = np.array([row + n for row in spans[:, 0] for n in range(2)], np.int64)
        for side in (store.source, store.target):
            gathered, read = side.gather(twice), side.read(spans)
            assert read.flat().tolist() == gathered.flat().tolist()
            assert read.lengths.tolist() == gathered.lengths.tolist()
            assert read.lengths.tolist() == side.lengths(spans).tolist()
            assert side.lengths(spans).dtype == np.int32


def test_manifest_adds_up(tmp_path):
    store = make_store(tmp_path, pairs=60, pairs_per_shard=25)
    manifest = store.manifest
    assert (manifest.corpus, manifest.split, manifest.id_type) == ("small", "train", "uint16")
    assert [shard.pairs for shard in manifest.shards] == [25, 25, 10]
    for side in ("source", "target"):
        lengths = getattr(store, side).lengths(np.array([[0, 60]]))
        assert getattr(manifest, f"{side}_tokens") == lengths.sum()
        assert sum(getattr(shard, f"{side}_tokens") for shard in manifest.shards) == lengths.sum()
        values, counts = np.unique(lengths, return_counts=True)
        histogram = getattr(manifest.lengths, side)
        assert histogram == dict(zip(values.tolist(), counts.tolist(), strict=True))
    assert manifest.vocabulary == 320
    folder = tmp_path / "shards"
    assert sorted(path.name for path in folder.iterdir()) == [
        ".manifest.json.seal",
        "manifest.json",
        *(shard.file for shard in manifest.shards),
    ]


def test_ids_stay_in_the_memory_map(tmp_path):
    store = make_store(tmp_path)
    for side in (store.source, store.target):
        assert not any(ids.flags.owndata or ids.flags.writeable for ids in side.ids)


def test_too_long_pairs_are_skipped_and_told(tmp_path, tokenizer):
    long = "Straße " * 40
    sources, targets = [*ENGLISH, long, "a", "b"], [*GERMAN, "kurz", long, "b"]
    file = write_pairs(tmp_path / "p.arrow", sources, targets)
    manifest = write_shards(file, tokenizer, Filter(max_tokens=60), tmp_path)
    assert (manifest.pairs, manifest.skipped_too_long) == (5, 2)
    assert [example.where for example in manifest.examples] == ["corpus.en:15", "corpus.de:16"]
    assert all(long.startswith(example.text[:-3]) for example in manifest.examples)
    store = open_shards(tmp_path / "manifest.json")
    assert decoded(tokenizer, store.target_rows(range(5))) == [*GERMAN, "b"]


@pytest.mark.parametrize("pair", [("x1x2", "x"), ("x", "x1x2")])
def test_limit_counts_tokens_without_ends(tmp_path, tokenizer, pair):
    file = write_pairs(tmp_path / "p.arrow", pair[:1], pair[1:])
    manifest = write_shards(file, tokenizer, Filter(max_tokens=4), tmp_path)
    assert manifest.source_tokens + manifest.target_tokens == 5
    with pytest.raises(CorpusError, match="no pair is left"):
        write_shards(file, tokenizer, Filter(max_tokens=3), tmp_path)


def test_only_the_first_examples_are_kept(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(job, "_PIECE", 150)
    file = write_pairs(tmp_path / "p.arrow", [*ENGLISH * 5, "a"], [*GERMAN * 5, "a"])
    manifest = write_shards(file, tokenizer, Filter(max_tokens=2), tmp_path)
    assert manifest.skipped_too_long == 20
    lines = [f"corpus.en:{line}" for line in range(11, 21)]
    assert [example.where for example in manifest.examples] == lines


def test_too_long_pair_is_an_error_where_the_filter_says_so(tmp_path, tokenizer):
    file = write_pairs(tmp_path / "p.arrow", ["a", "a"], ["a", "zu lang"])
    with pytest.raises(CorpusError, match=r"corpus\.de:12: target has \d+ tokens, more than") as e:
        write_shards(file, tokenizer, Filter(max_tokens=2, too_long="error"), tmp_path)
    assert "filter.too_long: skip" in str(e.value)
    assert not (tmp_path / "manifest.json").exists()


def test_fewer_shards_leave_no_old_ones(tmp_path, tokenizer):
    file = write_pairs(tmp_path / "p.arrow", ENGLISH, GERMAN)
    write_shards(file, tokenizer, Filter(), tmp_path / "out", 1)
    first = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    write_shards(file, tokenizer, Filter(), tmp_path / "out", 3)
    names = sorted(path.name for path in (tmp_path / "out").glob("*.arrow"))
    assert names == ["shard-00000.arrow", "shard-00001.arrow"]
    write_shards(file, tokenizer, Filter(), tmp_path / "out", 1)
    again = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    for name in ("manifest.json", ".manifest.json.seal"):  # with the time that it took
        first.pop(name)
        again.pop(name)
    assert again == first


@pytest.mark.parametrize(("piece", "little", "threads"), [(90, 1 << 22, 1), (700, 0, 3)])
def test_pieces_threads_and_the_way_of_encoding_change_nothing(
    tmp_path, tokenizer, monkeypatch, piece, little, threads
):
    long = "Straße " * 40
    sources, targets = [*ENGLISH, long, *GERMAN] * 4, [*GERMAN, "kurz", *ENGLISH] * 4
    file = write_pairs(tmp_path / "p.arrow", sources, targets)
    whole = write_shards(file, tokenizer, Filter(max_tokens=60), tmp_path / "a", 13)
    monkeypatch.setattr(job, "_PIECE", piece)
    monkeypatch.setattr(job, "_LITTLE", little)
    pieces = write_shards(
        file, tokenizer, Filter(max_tokens=60), tmp_path / "b", 13, threads=threads
    )
    assert pieces.model_copy(update={"seconds": whole.seconds}) == whole
    assert [shard.pairs for shard in whole.shards] == [13, 13, 6]


def test_long_sentences_make_smaller_shards(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(shard_writer, "_TOKENS_PER_SHARD", 100)
    monkeypatch.setattr(job, "_PIECE", 100)
    file = write_pairs(tmp_path / "p.arrow", ENGLISH * 3, GERMAN * 3)
    manifest = write_shards(file, tokenizer, Filter(), tmp_path / "out")
    assert len(manifest.shards) > 3
    assert manifest.pairs == 12


def test_old_manifest_is_gone_while_shards_change(tmp_path, tokenizer, monkeypatch):
    file = write_pairs(tmp_path / "p.arrow", ENGLISH, GERMAN)
    write_shards(file, tokenizer, Filter(), tmp_path, 2)
    monkeypatch.setattr(shard_writer, "_write", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_shards(file, tokenizer, Filter(), tmp_path, 2)
    assert not (tmp_path / "manifest.json").exists()
    assert not list(tmp_path.glob(".*.tmp"))


def test_job(tmp_path, tokenizer, capsys):
    write_pairs(tmp_path / "p.arrow", ENGLISH, GERMAN)
    arguments = [
        *("--tokenizer", str(tokenizer), "--pairs", str(tmp_path / "p.arrow")),
        *("--output", str(tmp_path / "out"), "--pairs-per-shard", "3", "--filter"),
    ]
    assert job.main([*arguments, Filter().model_dump_json()]) == 0
    manifest = ShardManifest.model_validate_json((tmp_path / "out/manifest.json").read_text())
    assert [shard.pairs for shard in manifest.shards] == [3, 1]
    assert job.main([*arguments, '{"max_tokens": 2, "too_long": "error"}']) == 2
    assert "corpus.en:11" in capsys.readouterr().err
    for part in ("0-of-2", "3-of-2", "2", "1-of-0"):
        with pytest.raises(SystemExit):
            job.main([*arguments, "{}", "--part", part])
    assert "take N-of-COUNT" in capsys.readouterr().err
    assert job.main([*arguments, "{}", "--part", "2-of-2"]) == 0
    manifest = ShardManifest.model_validate_json((tmp_path / "out/manifest.json").read_text())
    assert manifest.pairs == 2
    assert job.main([*arguments, '{"max_token": 2}']) == 2
    assert "did you mean max_tokens" in capsys.readouterr().err
    (tmp_path / "p.json").unlink()
    assert job.main([*arguments, "{}"]) == 2
    assert "p.json" in capsys.readouterr().err
