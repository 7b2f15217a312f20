"""Texts are read from files, cut into rows, and fed to a training."""

import gzip
import json
import re
import shutil
from contextlib import closing
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pair_files import (
    corpus,
    gather,
    read_split,
    rows,
    steady,
    write_pairs,
    write_shards,
    write_table,
)

from schemas.config.data import Filter, FixedSize, GrammarTexts, TokenBudget
from transformer_core.data.batching.feeding import Feed, evaluation_batches
from transformer_core.data.corpus.readers import open_split
from transformer_core.data.corpus.rows import CorpusError, Invalid
from transformer_core.data.grammar.stream import generate
from transformer_core.data.sharding.job import context_rows
from transformer_core.data.sharding.shard_store import open_shards
from transformer_core.data.tokenizing.encoding import Encoded
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD

TEXTS = ["Ein Satz.", "Zwei Sätze. Noch einer.", "", "  Drei\tZeichen ", "日本"]


def test_texts_of_every_kind_of_file(tmp_path):
    packed = tmp_path / "texts.txt.gz"
    packed.write_bytes(gzip.compress("\n".join(TEXTS).encode()))
    lines, columns = tmp_path / "texts.jsonl", [{"it": text} for text in TEXTS]
    lines.write_text("".join(json.dumps({"of": text}) + "\n" for text in columns))
    table = write_table(tmp_path / "texts.parquet", pa.table({"of": columns}))
    for path, field in ((packed, {}), (lines, {"field": "of.it"}), (table, {"field": "of.it"})):
        found = rows("documents", str(path), **field)
        assert [(row.source, row.target) for row in found] == [("", text) for text in TEXTS]
    blank = tmp_path / "texts.txt"
    blank.write_bytes(b"a\nb\n\n\n \nc\r\nd\n\ne\n\xff\n")
    *found, bad = rows("documents", str(blank), ends="blank_line")
    assert [(row.line, row.target) for row in found] == [(1, "a\nb"), (6, "c\nd")]
    assert (type(bad), bad.line, bad.text) == (Invalid, 9, "e\n\ufffd")


def test_an_empty_text_is_named_or_skipped(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS))
    files = tmp_path / "p.arrow", tmp_path / "p.json"
    texts = corpus("documents", str(path))
    with pytest.raises(CorpusError, match="the text is empty"):
        read_split(texts, Filter(), "train", *files)
    kept = read_split(texts, Filter(empty="skip"), "train", *files)
    assert (kept.pairs_kept, kept.skipped["empty"]) == (4, 1)


def test_generated_texts_depend_on_the_seed_and_have_several_sentences():
    def made(seed, count=20):
        spec = GrammarTexts(train_texts=count, seed=seed, sentences=3)
        return [row.target for row in open_split(spec, "train").rows()]

    first = made(1)
    assert first == made(1, 30)[:20]
    assert first != made(2)
    sentences = (german for _, german in generate(1, "train", range(100)))
    counts = []
    for text in first:
        taken = [next(sentences)]
        while len(" ".join(taken)) < len(text):
            taken.append(next(sentences))
        assert text == " ".join(taken)
        counts.append(len(taken))
    assert set(counts) == {1, 2, 3, 4, 5}


@steady
@given(lengths=st.lists(st.integers(0, 9), max_size=20), context=st.integers(1, 12))
def test_rows_hold_all_texts_in_order_with_their_ends(lengths, context):
    ids = np.arange(4, 4 + sum(lengths), dtype=np.uint16)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = context_rows(Encoded(ids, offsets), context)
    stream = [t for a, b in pairwise(offsets) for t in [*ids[a:b], EOS]]
    assert rows.ids.tolist() == stream
    assert set(rows.lengths[:-1].tolist()) <= {context}
    assert rows.lengths.sum() == len(stream)


@pytest.fixture(scope="module")
def shards(tmp_path_factory, tokenizer):
    """The texts, their pairs, and the manifest of shards of rows of 8 tokens."""
    folder = tmp_path_factory.mktemp("texts")
    texts = [row.target for row in open_split(GrammarTexts(train_texts=60), "train").rows()]
    pairs = write_pairs(folder / "p.arrow", [""] * len(texts), texts)
    write_shards(pairs, tokenizer, Filter(), folder / "out", context=8)
    return texts, pairs, folder / "out" / "manifest.json"


def test_shards_restore_the_texts_and_count_their_bytes(shards, bpe):
    texts, _, manifest = shards
    store = open_shards(manifest)
    stream = np.concatenate(store.target_rows(np.arange(len(store))))
    ends = np.flatnonzero(stream == EOS)
    begins = [0, *(ends[:-1] + 1)]
    found = [bpe.decode(stream[a:b].tolist()) for a, b in zip(begins, ends, strict=True)]
    assert found == texts
    counted = store.manifest.texts
    assert (counted.context, counted.texts) == (8, 60)
    assert counted.bytes == sum(len(text.encode()) for text in texts)
    assert store.manifest.target_tokens == len(stream)


def test_a_batch_begins_every_text_with_bos(shards):
    store = open_shards(shards[-1])
    seen = 0
    for chosen, batch in evaluation_batches(store):
        assert batch.source.shape == (len(chosen), 0)
        into, out = batch.target_input, batch.target_output
        assert (into[:, 0] == BOS).all()
        before = out[:, :-1]
        follows = torch.where(before == EOS, BOS, before)
        real = out[:, 1:] != PAD
        assert torch.equal(into[:, 1:][real], follows[real])
        assert (into[out == PAD] == PAD).all()
        seen += int((out != PAD).sum())
    assert seen == store.manifest.target_tokens


@pytest.mark.parametrize(
    "batching", [FixedSize(kind="fixed_size", pairs=6), TokenBudget(tokens=48)]
)
def test_ranks_share_global_batches(shards, batching):
    store = open_shards(shards[-1])

    def first(rank, world):
        feed = Feed(store, batching, 1, rank, world, 1, torch.device("cpu"))
        with closing(feed.batches()) as batches:
            return list(islice(batches, 5))

    whole, halves = first(0, 1), [first(rank, 2) for rank in (0, 1)]
    for number, one in enumerate(whole):
        (all_rows,) = one.micro_batches
        parts = [half[number].micro_batches[0].target_output for half in halves]
        assert all_rows.pairs == 6
        assert one.tokens == one.target_tokens == all_rows.target_output.ne(PAD).sum()
        assert one.padded_tokens == all_rows.padded_tokens
        assert {half[number].target_tokens for half in halves} == {one.target_tokens}
        together = sorted(row for part in parts for row in part.tolist())
        assert together == sorted(all_rows.target_output.tolist())


def test_parts_of_a_split_join(shards, tokenizer, tmp_path):
    _, pairs, whole = shards
    parts = [tmp_path / f"part-{number}" for number in (0, 1)]
    for number, folder in enumerate(parts):
        write_shards(pairs, tokenizer, Filter(), folder, part=(number, 2), context=8)
    paths = [folder / "manifest.json" for folder in parts]
    joined = gather(paths, Filter(), tmp_path / "manifest.json")
    alone = open_shards(whole).manifest
    assert (joined.texts, joined.target_tokens) == (alone.texts, alone.target_tokens)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "data.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize(("library", "name"), [("pandas", "shard"), ("datasets", "shards")])
def test_two_lines_open_a_shard(tmp_path, made, monkeypatch, library, name):
    imported = pytest.importorskip(library)
    if library == "datasets":
        monkeypatch.setattr(imported.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (block,) = [block for block in BLOCKS if f" {library} " in block]
    assert len([line for line in block.splitlines() if line]) == 2
    split = tmp_path / "results/data/grammar/shards/train"
    shutil.copytree(made / "shards", split)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(block, found)
    store = open_shards(split / "manifest.json")
    for side in ("source", "target"):
        wanted = [row.tolist() for row in getattr(store, f"{side}_rows")(range(25))]
        assert [list(row) for row in found[name][side][:25]] == wanted
