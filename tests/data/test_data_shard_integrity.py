"""Shards that are missing, damaged or of another tokenizer are refused before they are read."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_files import make_store, steady

from schemas.results import ShardManifest
from transformer_core.common import seals
from transformer_core.common.seals import digest
from transformer_core.data.sharding.shard_store import ShardError, open_shards

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"\0", lambda b: b""])
def test_shard_of_another_size_is_refused(tmp_path, change):
    make_store(tmp_path)
    path = tmp_path / "shards" / "shard-00001.arrow"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ShardError, match="instead of") as error:
        open_shards(tmp_path / "shards" / "manifest.json")
    assert str(path) in str(error.value)
    manifest = tmp_path / "shards" / "manifest.json"
    assert f"snakemake --cores all {manifest} --forcerun {manifest}" in str(error.value)


@steady
@given(data=st.data())
def test_any_flipped_bit_is_found(one_shard, data):
    path = one_shard / "shard-00000.arrow"
    whole = path.read_bytes()
    changed = bytearray(whole)
    place = data.draw(st.integers(0, len(whole) - 1))
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(changed)
    with pytest.raises(ShardError, match=r"shard-00000"):
        open_shards(one_shard / "manifest.json").source_rows([0])
    path.write_bytes(whole)
    open_shards(one_shard / "manifest.json").source_rows([0])


@pytest.mark.parametrize("read", ["source_rows", "target_rows"])
def test_a_shard_is_checked_once_by_whoever_reads_it(tmp_path, monkeypatch, read):
    make_store(tmp_path, pairs=60, pairs_per_shard=25)
    folder = tmp_path / "shards"
    checked = []
    monkeypatch.setattr(seals, "digest", lambda path: checked.append(path.name) or digest(path))
    opened = open_shards(folder / "manifest.json")
    assert checked == []
    getattr(opened, read)([30, 31])
    opened.source.lengths(np.array([[26, 40]]))
    assert checked == ["shard-00001.arrow"]
    opened.source.read(np.array([[20, 30]]))
    assert checked == ["shard-00001.arrow", "shard-00000.arrow"]
    getattr(open_shards(folder / "manifest.json"), read)([0, 30])
    assert len(checked) == 4
    # With the time stamp that it had.
    path = folder / "shard-00001.arrow"
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(ShardError, match=r"shard-00001\.arrow: has changed: XXH3"):
        getattr(open_shards(folder / "manifest.json"), read)([30])
    getattr(open_shards(folder / "manifest.json"), read)([0, 59])


def test_the_first_process_of_a_host_checks_for_all(tmp_path, monkeypatch):
    make_store(tmp_path, pairs=8)
    (shard,) = (tmp_path / "shards").glob("*.arrow")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    monkeypatch.setenv("LOCAL_RANK", "1")
    open_shards(tmp_path / "shards/manifest.json").source_rows([0])
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(ShardError, match="has changed"):
        open_shards(tmp_path / "shards/manifest.json").source_rows([0])


def test_shards_from_earlier_times_are_compared_with_their_sha256(tmp_path):
    make_store(tmp_path, pairs=8)
    (shard,) = (tmp_path / "shards").glob("*.arrow")
    manifest = tmp_path / "shards/manifest.json"
    before = ShardManifest.model_validate_json(manifest.read_text())
    old = [s.model_copy(update={"xxh3": ""}) for s in before.shards]
    manifest.write_text(before.model_copy(update={"shards": old}).model_dump_json())
    seals.seal(manifest)
    assert len(open_shards(manifest).source_rows([0])) == 1
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ShardError, match="has changed: SHA-256"):
        open_shards(manifest).source_rows([0])


@pytest.fixture(scope="module")
def one_shard(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    make_store(folder, pairs=8)
    return folder / "shards"


def test_missing_shard_missing_manifest_and_wrong_contents(tmp_path):
    make_store(tmp_path)
    folder = tmp_path / "shards"
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    seals.seal_file(manifest).unlink()

    wrong = json.loads(text)
    wrong["shards"][0]["pairs"] += 1
    manifest.write_text(json.dumps(wrong))
    with pytest.raises(ShardError, match="holds 25 pairs, not 26"):
        open_shards(manifest)

    manifest.write_text(json.dumps(json.loads(text) | {"id_type": "uint32"}))
    with pytest.raises(ShardError, match="not 25 of uint32"):
        open_shards(manifest)

    other = ShardManifest.model_validate_json(text).shards[0]
    columns = pa.ipc.open_file(folder / other.file).read_all().rename_columns(["source", "wrong"])
    with pa.ipc.new_file(folder / other.file, columns.schema) as sink:
        sink.write_table(columns)
    size = (folder / other.file).stat().st_size
    manifest.write_text(text.replace(f'"bytes": {other.bytes}', f'"bytes": {size}', 1))
    with pytest.raises(ShardError, match="shard-00000"):
        open_shards(manifest)
    make_store(tmp_path)
    seals.seal_file(manifest).unlink()

    manifest.write_text(text)
    shard = folder / "shard-00002.arrow"
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(ShardError, match="shard-00002"):
        open_shards(manifest)
    shard.unlink()
    with pytest.raises(ShardError, match="shard-00002"):
        open_shards(manifest)
    manifest.unlink()
    with pytest.raises(ShardError, match=r"manifest\.json"):
        open_shards(manifest)
