"""``python -m transformer_core.trace``: files of users, and what goes wrong."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from traces import kineto, on_device, training_report

from schemas.results import Breakdown
from transformer_core.trace.__main__ import main
from transformer_core.trace.events import event_table

KERNEL = [on_device("kernel", "sgemm", 0, 5, 1)]


def read(path: Path) -> Breakdown:
    return Breakdown.model_validate_json(path.read_text())


def run(folder: Path, *arguments: str) -> Breakdown:
    files = ["--events", str(folder / "events.parquet"), "--output", str(folder / "out.json")]
    assert main([*arguments, *files]) == 0
    assert pq.read_schema(folder / "events.parquet").names == list(event_table.COLUMNS)
    return read(folder / "out.json")


def test_traces_of_all_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [
        kineto(tmp_path / f"r{rank}.json", KERNEL, distributedInfo={"rank": rank, "world_size": 2})
        for rank in (1, 0)
    ]
    found = run(tmp_path, *map(str, paths), "--name", "mine")
    assert (found.name, found.status, found.source) == ("mine", "ok", "kineto")
    assert [device.rank for device in found.devices] == [0, 1]
    assert found.viewer_files == [str(path) for path in paths]
    said = capsys.readouterr().out
    assert "rank 1 on cuda:0: the whole trace, 0.005 ms" in said
    assert "compute" in said


def test_traces_that_do_not_say_their_ranks_are_counted(tmp_path: Path) -> None:
    paths = [
        str(kineto(tmp_path / f"{name}.json", [on_device("kernel", name, 0, 5, 1)]))
        for name in "ab"
    ]
    found = run(tmp_path, *paths)
    assert [device.rank for device in found.devices] == [0, 1]
    assert "The traces do not say their ranks: they are counted in order" in found.notes


def test_two_traces_of_one_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = {"distributedInfo": {"rank": 0, "world_size": 2}}
    paths = [
        str(kineto(tmp_path / f"{name}.json", [on_device("kernel", name, 0, 5, 1)], **head))
        for name in "ab"
    ]
    assert main(paths) == 1
    assert "is of rank 0, and so is" in capsys.readouterr().err


def test_one_trace_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(kineto(tmp_path / f"{name}.json", KERNEL)) for name in "ab"]
    assert main(paths) == 1
    assert "is the same as" in capsys.readouterr().err


def test_traces_of_two_profilers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [training_report(tmp_path / "a.sqlite"), kineto(tmp_path / "b.json", KERNEL)]
    assert main([str(path) for path in paths]) == 1
    assert "give files of one profiler" in capsys.readouterr().err


def test_no_files(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "required: FILE" in capsys.readouterr().err
