import pytest
from pair_files import make_store

from schemas.results import DataCheck
from transformer_core.data.sharding.verify import main


@pytest.fixture
def folder(tmp_path):
    make_store(tmp_path, pairs=60, pairs_per_shard=25)
    return tmp_path / "shards"


def run(folder):
    output = folder.parent / "verify.json"
    return main(["--output", str(output), str(folder / "manifest.json")]), output


def test_whole_shards_are_recorded(folder):
    code, output = run(folder)
    assert code == 0
    (split,) = DataCheck.model_validate_json(output.read_text()).splits
    assert (split.split, split.pairs, split.shards) == ("train", 60, 3)
    assert split.bytes == sum(path.stat().st_size for path in folder.glob("*.arrow"))


def test_every_damaged_shard_is_named_with_its_repair(folder, capsys, monkeypatch):
    monkeypatch.setenv("STUDY_OPTIONS", "--configfile=mine.yaml")
    output = run(folder)[1]
    cut, changed = folder / "shard-00000.arrow", folder / "shard-00002.arrow"
    cut.write_bytes(cut.read_bytes()[:-8])
    content = bytearray(changed.read_bytes())
    content[-200] ^= 1
    changed.write_bytes(content)
    assert run(folder)[0] == 2
    message = capsys.readouterr().err
    assert f"{cut}: has {cut.stat().st_size} bytes instead of" in message
    assert f"{changed}: has changed: SHA-256" in message
    manifest = folder / "manifest.json"
    repair = f"snakemake --cores all {manifest} --forcerun {manifest} --configfile=mine.yaml"
    assert message.count(f"remedy: make it again: {repair}") == 2
    assert "shard-00001" not in message
    assert not output.exists(), "an old record vouches for damaged shards"


def test_a_missing_manifest_is_named(folder, capsys):
    (folder / "manifest.json").unlink()
    assert run(folder)[0] == 2
    assert "manifest.json: cannot be read" in capsys.readouterr().err
