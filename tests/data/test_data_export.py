"""The shards and their export in other programs."""

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pair_files import make_store

from tests.orders import run_job
from transformer_core.data.sharding import parquet_export
from transformer_core.data.tokenizing.job import load_tokenizer


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path, pairs=60, pairs_per_shard=25)


def run(folder):
    return run_job(
        "export_parquet",
        manifest=folder / "shards" / "manifest.json",
        tokenizer=folder / "tokenizer.json",
        output=folder / "train.parquet",
    )


def test_parquet_holds_ids_and_text(tmp_path, store, monkeypatch):
    monkeypatch.setattr(parquet_export, "ROW_GROUP", 23)
    assert run(tmp_path) == 0
    table = pd.read_parquet(tmp_path / "train.parquet")
    bpe = load_tokenizer(tmp_path / "tokenizer.json")
    for side in ("source", "target"):
        rows = [row.tolist() for row in getattr(store, f"{side}_rows")(range(60))]
        assert [row.tolist() for row in table[f"{side}_ids"]] == rows
        assert table[side].tolist() == bpe.decode_batch(rows)
    file = pq.ParquetFile(tmp_path / "train.parquet")
    assert file.metadata.num_row_groups == 3
    assert str(file.schema_arrow.field("source_ids").type.value_type) == "uint16"


def test_a_damaged_shard_is_named_and_leaves_no_file(tmp_path, store, capsys):
    shard = tmp_path / "shards" / "shard-00001.arrow"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert run(tmp_path) == 1
    assert "shard-00001.arrow: has changed" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.parquet*"))


def test_pandas_opens_a_shard(tmp_path, store):
    frame = pd.read_feather(tmp_path / "shards" / "shard-00001.arrow")
    assert frame["source"][3].tolist() == store.source_rows([28])[0].tolist()


def test_datasets_opens_the_shards(tmp_path, store):
    datasets = pytest.importorskip("datasets")
    files = str(tmp_path / "shards" / "shard-*.arrow")
    opened = datasets.load_dataset("arrow", data_files=files, cache_dir=str(tmp_path / "cache"))
    assert opened["train"].num_rows == 60
    assert opened["train"][28]["target"] == store.target_rows([28])[0].tolist()
