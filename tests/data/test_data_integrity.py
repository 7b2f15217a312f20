"""Missing or damaged shards, and those of another tokenizer, are refused before they are read; other
programs can open intact ones."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pair_files import make_store

from schemas.results import DataCheck, ShardManifest
from tests.orders import job_command, run_job
from transformer_core.common import digests
from transformer_core.common.digests import digest
from transformer_core.data.sharding import finished
from transformer_core.data.sharding.shard_store import (
    VARIABLE,
    ShardError,
    copy_to,
    open_nearest,
    open_shards,
)
from transformer_core.data.tokenizing.job import load_tokenizer


@pytest.fixture
def folder(tmp_path, made):
    """A folder of shards that a test may change."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "shards"


@pytest.fixture
def manifest(folder):
    return folder / "manifest.json"


@pytest.fixture
def disk(tmp_path):
    return tmp_path / "disk of the host"


def lists_of(store):
    """All ids of a store, by side."""
    every = np.arange(len(store))
    sides = {"source": store.source_rows(every), "target": store.target_rows(every)}
    return {side: [row.tolist() for row in rows] for side, rows in sides.items()}


def change(file):
    """Flips a bit without changing the time stamps."""
    stat, content = file.stat(), bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def verify(folder):
    output = folder.parent / "verify.json"
    manifests = [str(folder / "manifest.json")]
    return run_job("verify_data", manifests=manifests, output=output), output


def test_intact_shards_are_recorded_and_damaged_ones_named_with_their_repair(
    folder, capsys, monkeypatch
):
    monkeypatch.setenv("STUDY_OPTIONS", "--configfile=mine.yaml")
    code, output = verify(folder)
    assert code == 0
    (split,) = DataCheck.model_validate_json(output.read_text()).splits
    assert (split.split, split.pairs, split.shards) == ("train", 60, 3)
    assert split.bytes == sum(path.stat().st_size for path in folder.glob("*.arrow"))
    cut, changed = folder / "shard-00000.arrow", folder / "shard-00002.arrow"
    cut.write_bytes(cut.read_bytes()[:-8])
    change(changed)
    assert verify(folder)[0] == 1
    message = capsys.readouterr().err
    assert f"{cut}: has {cut.stat().st_size} bytes instead of" in message
    assert f"{changed}: has changed: SHA-256" in message
    manifest = folder / "manifest.json"
    repair = f"snakemake --cores all {manifest} --forcerun {manifest} --configfile=mine.yaml"
    assert message.count(f"remedy: make it again: {repair}") == 2
    assert "shard-00001" not in message
    assert not output.exists(), "an old record vouches for damaged shards"
    manifest.unlink()
    assert verify(folder)[0] == 1
    assert "manifest.json: cannot be read" in capsys.readouterr().err


def test_the_log_of_a_verification_names_what_is_damaged(folder, tmp_path):
    change(folder / "shard-00002.arrow")
    log, manifests = tmp_path / "verify.log", [str(folder / "manifest.json")]
    output = tmp_path / "verify.json"
    assert subprocess.run(
        job_command("verify_data", log, manifests=manifests, output=output)
    ).returncode
    assert "shard-00002.arrow: has changed: SHA-256" in log.read_text()


@pytest.mark.parametrize("read", ["source_rows", "target_rows"])
def test_a_shard_is_checked_when_it_is_first_read(folder, monkeypatch, read):
    checked = []
    monkeypatch.setattr(digests, "digest", lambda path: checked.append(path.name) or digest(path))
    opened = open_shards(folder / "manifest.json")
    assert checked == []
    getattr(opened, read)([30, 31])
    opened.source.lengths(np.array([[26, 40]]))
    assert checked == ["shard-00001.arrow"]
    opened.source.read(np.array([[20, 30]]))
    assert checked == ["shard-00001.arrow", "shard-00000.arrow"]
    getattr(open_shards(folder / "manifest.json"), read)([0, 30])
    assert len(checked) == 4
    change(folder / "shard-00001.arrow")
    with pytest.raises(ShardError, match=r"shard-00001\.arrow: has changed: XXH3"):
        getattr(open_shards(folder / "manifest.json"), read)([30])
    getattr(open_shards(folder / "manifest.json"), read)([0, 59])


def test_the_first_process_of_a_host_checks_for_all(manifest, monkeypatch):
    change(manifest.with_name("shard-00000.arrow"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    open_shards(manifest).source_rows([0])
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(ShardError, match="has changed"):
        open_shards(manifest).source_rows([0])


def test_old_shards_without_xxh3_are_compared_by_sha256(manifest):
    before = ShardManifest.model_validate_json(manifest.read_text())
    old = [s.model_copy(update={"xxh3": ""}) for s in before.shards]
    manifest.write_text(before.model_copy(update={"shards": old}).model_dump_json())
    digests.record(manifest)
    assert len(open_shards(manifest).source_rows([0])) == 1
    change(manifest.with_name("shard-00000.arrow"))
    with pytest.raises(ShardError, match="has changed: SHA-256"):
        open_shards(manifest).source_rows([0])


def other_columns(manifest):
    """Renames the columns of a shard, and corrects its size in the manifest."""
    text, shard = manifest.read_text(), manifest.with_name("shard-00000.arrow")
    before = shard.stat().st_size
    columns = pa.ipc.open_file(shard).read_all().rename_columns(["source", "wrong"])
    with pa.ipc.new_file(shard, columns.schema) as sink:
        sink.write_table(columns)
    told = text.replace(f'"bytes": {before}', f'"bytes": {shard.stat().st_size}', 1)
    manifest.write_text(told)


def replaced(old, new):
    def replace(manifest):
        assert old in manifest.read_text()
        manifest.write_text(manifest.read_text().replace(old, new, 1))

    return replace


def zeros(manifest):
    shard = manifest.with_name("shard-00002.arrow")
    shard.write_bytes(bytes(shard.stat().st_size))


WRONG = {
    "pairs": (replaced('"pairs": 25', '"pairs": 26'), "holds 25 pairs, not 26"),
    "type": (replaced('"id_type": "uint16"', '"id_type": "uint32"'), "not 25 of uint32"),
    "columns": (other_columns, "shard-00000"),
    "zeros": (zeros, "shard-00002"),
    "no shard": (lambda path: path.with_name("shard-00002.arrow").unlink(), "shard-00002"),
    "no manifest": (lambda path: path.unlink(), r"manifest\.json: cannot be read"),
}


@pytest.mark.parametrize("name", WRONG)
def test_shards_that_contradict_their_manifest(manifest, name):
    break_it, message = WRONG[name]
    break_it(manifest)
    digests.forget(manifest)
    with pytest.raises(ShardError, match=message) as found:
        open_shards(manifest)
    assert "--forcerun" in found.value.remedy


def test_the_environment_decides_whether_and_where_to_copy(manifest, disk, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert len(open_nearest(manifest)) == 60
    assert not disk.exists()
    monkeypatch.setenv(VARIABLE, str(disk))
    assert len(open_nearest(manifest)) == 60
    (place,) = disk.glob("shards-*")
    assert (place / "shard-00001.arrow").exists()


def test_a_copy_is_made_once_and_again_for_other_shards(manifest, disk):
    copy = copy_to(disk, manifest)
    original, copied = (lists_of(open_shards(path)) for path in (manifest, copy))
    assert copied == original
    made = (copy.parent / "shard-00000.arrow").stat().st_ino
    assert copy_to(disk, manifest) == copy
    assert (copy.parent / "shard-00000.arrow").stat().st_ino == made
    shutil.rmtree(manifest.parent)
    make_store(manifest.parents[1], pairs=70)
    other = copy_to(disk, manifest)
    assert other != copy
    assert len(open_shards(other)) == 70


def test_jobs_of_a_host_share_a_copy(manifest, disk, monkeypatch):
    together, copies = Barrier(4), []
    copy_shard = shutil.copy2
    monkeypatch.setattr(shutil, "copy2", lambda *of: copies.append(of[0]) or copy_shard(*of))

    def job(_):
        together.wait()
        return copy_to(disk, manifest)

    with ThreadPoolExecutor(4) as jobs:
        (copy,) = set(jobs.map(job, range(4)))
    place = copy.parent
    assert {path.name for path in disk.iterdir()} == {place.name, f".{place.name}.lock"}
    assert len(copies) == 4, "three shards and their manifest"


def test_an_interrupted_copy_is_replaced(manifest, disk):
    place = copy_to(disk, manifest).parent
    left_over = place.rename(place.with_name(f".{place.name}.partial"))
    (left_over / "shard-00000.arrow").write_bytes(b"half")
    (left_over / "of another time").touch()
    copy = copy_to(disk, manifest)
    assert not (copy.parent / "of another time").exists()
    assert len(open_shards(copy)) == 60
    assert not left_over.exists()


def test_damaged_shards_are_not_copied(manifest, disk):
    damaged = manifest.parent / "shard-00002.arrow"
    change(damaged)
    with pytest.raises(ShardError, match="has changed") as found:
        copy_to(disk, manifest)
    assert found.value.file == str(damaged)
    assert not list(disk.glob("shards-*"))
    assert not list(disk.glob(".*.partial"))


def test_the_remedy_for_a_changed_copy_is_to_remove_it(manifest, disk):
    copy = copy_to(disk, manifest)
    change(copy.parent / "shard-00001.arrow")
    with pytest.raises(ShardError, match="has changed") as found:
        open_shards(copy).source_rows([30])
    assert found.value.remedy.startswith(f"remove {copy.parent}: it is a copy")


def test_a_disk_that_cannot_be_written_is_named(manifest, disk):
    disk.write_text("no folder")
    with pytest.raises(ShardError, match="cannot be copied to") as found:
        copy_to(disk, manifest)
    assert f"unset {VARIABLE}" in found.value.remedy


def test_parquet_holds_ids_and_text_unless_a_shard_is_damaged(
    tmp_path, manifest, monkeypatch, capsys
):
    monkeypatch.setattr(finished, "ROW_GROUP", 23)
    output = tmp_path / "train.parquet"
    export = {"manifest": manifest, "tokenizer": tmp_path / "tokenizer.json", "output": output}
    assert run_job("export_parquet", **export) == 0
    table = pd.read_parquet(output)
    bpe = load_tokenizer(tmp_path / "tokenizer.json")
    for side, rows in lists_of(open_shards(manifest)).items():
        assert [row.tolist() for row in table[f"{side}_ids"]] == rows
        assert table[side].tolist() == bpe.decode_batch(rows)
    file = pq.ParquetFile(output)
    assert file.metadata.num_row_groups == 3
    assert str(file.schema_arrow.field("source_ids").type.value_type) == "uint16"
    output.unlink()
    change(manifest.with_name("shard-00001.arrow"))
    assert run_job("export_parquet", **export) == 1
    assert "shard-00001.arrow: has changed" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.parquet*"))
