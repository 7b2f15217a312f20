"""Copies of shards on a disk of the host: whole or not there, and made once."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pair_files import make_store

from transformer_core.data.sharding.local_copies import VARIABLE, copy_to, open_nearest
from transformer_core.data.sharding.shard_store import ShardError, open_shards


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    make_store(tmp_path, pairs=60, pairs_per_shard=25)
    return tmp_path / "shards/manifest.json"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "disk of the host"


def change(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_copy_holds_the_same_pairs(manifest: Path, disk: Path) -> None:
    copy = copy_to(disk, manifest)
    assert copy.is_relative_to(disk)
    original, copied = open_shards(manifest), open_shards(copy)
    rows = list(range(60))
    for name in ("source_rows", "target_rows"):
        before, after = getattr(original, name)(rows), getattr(copied, name)(rows)
        assert [row.tolist() for row in before] == [row.tolist() for row in after]


def test_the_environment_says_whether_and_where(
    manifest: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert len(open_nearest(manifest)) == 60
    assert not disk.exists()
    monkeypatch.setenv(VARIABLE, str(disk))
    assert len(open_nearest(manifest)) == 60
    (place,) = disk.glob("shards-*")
    assert (place / "shard-00001.arrow").exists()


def test_it_is_made_once_and_again_when_the_shards_are_others(manifest: Path, disk: Path) -> None:
    copy = copy_to(disk, manifest)
    made = (copy.parent / "shard-00000.arrow").stat().st_ino
    assert copy_to(disk, manifest) == copy
    assert (copy.parent / "shard-00000.arrow").stat().st_ino == made
    shutil.rmtree(manifest.parent)
    make_store(manifest.parents[1], pairs=70, pairs_per_shard=25)
    other = copy_to(disk, manifest)
    assert other != copy
    assert len(open_shards(other)) == 70


def test_processes_of_a_host_share_one(manifest: Path, disk: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from transformer_core.data.sharding.local_copies import copy_to\n"
        "print(copy_to(Path(sys.argv[1]), Path(sys.argv[2])))\n"
    )
    command = [sys.executable, "-c", program, str(disk), str(manifest)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(said) == 1
    place = Path(said.pop()).parent
    assert {path.name for path in disk.iterdir()} == {place.name, f".{place.name}.lock"}


def test_a_copy_that_was_cut_short_is_made_anew(manifest: Path, disk: Path) -> None:
    place = copy_to(disk, manifest).parent
    left_over = place.rename(place.with_name(f".{place.name}.partial"))
    (left_over / "shard-00000.arrow").write_bytes(b"half")
    (left_over / "of another time").touch()
    copy = copy_to(disk, manifest)
    assert not (copy.parent / "of another time").exists()
    assert len(open_shards(copy)) == 60
    assert not left_over.exists()


def test_damaged_shards_are_not_copied(manifest: Path, disk: Path) -> None:
    damaged = manifest.parent / "shard-00002.arrow"
    change(damaged)
    with pytest.raises(ShardError, match="has changed") as found:
        copy_to(disk, manifest)
    assert found.value.file == str(damaged)
    assert not list(disk.glob("shards-*"))
    assert not list(disk.glob(".*.partial"))


def test_a_copy_that_changes_later_is_to_be_removed(manifest: Path, disk: Path) -> None:
    copy = copy_to(disk, manifest)
    change(copy.parent / "shard-00001.arrow")
    with pytest.raises(ShardError, match="has changed") as found:
        open_shards(copy).source_rows([30])
    assert found.value.remedy.startswith(f"remove {copy.parent}: it is a copy")


def test_a_disk_that_cannot_be_written_is_named(manifest: Path, disk: Path) -> None:
    disk.write_text("no folder")
    with pytest.raises(ShardError, match="cannot be copied to") as found:
        copy_to(disk, manifest)
    assert f"unset {VARIABLE}" in found.value.remedy
