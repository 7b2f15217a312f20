"""Files that are not what their seals say are refused by name, whatever their time stamps say."""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from schemas.base import Schema
from schemas.errors import ConfigError
from transformer_core.common.records import check_together, read_record
from transformer_core.common.seals import check, seal, seal_file, seal_of, write_sealed
from transformer_core.common.tables import read_table, write_table


class Speed(Schema):
    """A record."""

    variant: str
    tokens_per_second: float


def record(path: Path, variant: str, *made_from: Path) -> Path:
    text = Speed(variant=variant, tokens_per_second=1234.5).model_dump_json() + "\n"
    write_sealed(path, text, made_from)
    return path


def change(path: Path, old: bytes, new: bytes) -> None:
    """Other contents of the same length and time stamps."""
    stat = path.stat()
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_sealed_record_is_read(tmp_path: Path) -> None:
    found = read_record(record(tmp_path / "results/ddp.json", "ddp"), Speed)
    assert found == Speed(variant="ddp", tokens_per_second=1234.5)


def test_another_number_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = record(tmp_path / "results/ddp.json", "ddp")
    change(path, b"1234.5", b"1334.5")
    with pytest.raises(ConfigError, match="has changed since it was made") as found:
        read_record(path, Speed)
    (problem,) = found.value.problems
    assert problem.file == str(path)
    again = f"make it again: snakemake --cores all {path} --forcerun {path}"
    assert problem.remedy.startswith(f"{again}; ")
    assert problem.remedy.endswith(f"rm {tmp_path}/results/.ddp.json.seal")


def test_results_that_were_copied_without_hidden_files_are_read(tmp_path: Path) -> None:
    here = record(tmp_path / "results/ddp.json", "ddp")
    there = record(tmp_path / "there/results/ddp.json", "other")
    here.write_bytes(there.read_bytes())
    with pytest.raises(ConfigError, match="copied it here without its hidden files"):
        read_record(here, Speed)
    seal_file(here).unlink()  # what the remedy says
    assert read_record(here, Speed) == Speed(variant="other", tokens_per_second=1234.5)
    seal_file(there).unlink()
    assert read_record(there, Speed) == Speed(variant="other", tokens_per_second=1234.5)


def test_a_copy_of_another_record_is_refused_by_name(tmp_path: Path) -> None:
    ddp = record(tmp_path / "results/pairs/single/ddp.json", "ddp")
    amp = record(tmp_path / "results/pairs/single/amp_bf16.json", "amp_bf16")
    shutil.copy2(ddp, amp)
    with pytest.raises(ConfigError, match="has changed since it was made"):
        read_record(amp, Speed)
    shutil.copy2(seal_file(ddp), seal_file(amp))
    with pytest.raises(ConfigError, match=f"is of pairs/single/ddp.json: it was copied to {amp}"):
        read_record(amp, Speed)


def test_results_may_be_moved(tmp_path: Path) -> None:
    record(tmp_path / "results/pairs/single/ddp.json", "ddp")
    (tmp_path / "results").rename(tmp_path / "results-default")
    assert read_record(tmp_path / "results-default/pairs/single/ddp.json", Speed).variant == "ddp"


@pytest.mark.parametrize("position", [0, 10, 30, -2])
def test_a_damaged_seal_is_refused(tmp_path: Path, position: int) -> None:
    path = record(tmp_path / "results/ddp.json", "ddp")
    content = bytearray(seal_file(path).read_bytes())
    content[position] ^= 1
    seal_file(path).write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        check(path)


def test_a_file_without_a_seal_is_taken_as_it_is(tmp_path: Path) -> None:
    path = record(tmp_path / "results/ddp.json", "ddp")
    seal_file(path).unlink()
    change(path, b"1234.5", b"1334.5")
    assert read_record(path, Speed).tokens_per_second == 1334.5


def test_records_of_different_inputs_are_refused_together(tmp_path: Path) -> None:
    results = tmp_path / "results"
    spec = results / "runs/ddp/spec.json"
    write_sealed(spec, "{}\n")
    before = record(results / "pairs/single/ddp.json", "ddp", spec)
    check_together([spec, before])
    write_sealed(spec, '{"steps": 2}\n')
    after = record(results / "runs/ddp/metrics.json", "ddp", spec)
    check_together([spec, after])
    with pytest.raises(ConfigError, match="was made from another runs/ddp/spec"):
        check_together([before, spec])
    with pytest.raises(ConfigError, match=f"another runs/ddp/spec.json than {before}") as found:
        check_together([before, after])
    assert found.value.problems[0].file == str(after)


def test_a_seal_from_text_is_that_of_the_file(tmp_path: Path) -> None:
    path = record(tmp_path / "results/ddp.json", "ddp")
    assert seal_of(path, path.read_text()) == seal_file(path).read_text()


def test_a_changed_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results/steps.parquet"
    write_table(path, pa.table({"step": [1, 2], "loss": [5.0, 4.0]}), compression="none")
    assert read_table(path, ["loss"]).column("loss").to_pylist() == [5.0, 4.0]
    content = path.read_bytes()
    path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    with pytest.raises(ConfigError, match="has changed"):
        read_table(path)
    path.write_bytes(b"PAR1")
    seal(path)
    with pytest.raises(ConfigError, match=str(path)):
        read_table(path)
