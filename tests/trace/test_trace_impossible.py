"""Numbers that no device has, and files that a command must not write."""

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from traces import Report, complete, kineto, on_device

from schemas.results import Breakdown
from transformer_core.trace.__main__ import main
from transformer_core.trace.readers.files import read_files

GOOD = [
    complete("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1),
    on_device("kernel", "sgemm", 5, 5, 1),
]


def read(folder: Path, *files: Path) -> Breakdown:
    output = folder / "out.json"
    assert main([*map(str, files), "--output", str(output)]) == 0
    return Breakdown.model_validate_json(output.read_text())


@pytest.mark.parametrize("field", ["ts", "dur"])
def test_a_time_of_hundreds_of_digits_is_left_out(tmp_path: Path, field: str) -> None:
    row = {**on_device("kernel", "gelu", 20, 2, 2), field: 10**400}
    found = read(tmp_path, kineto(tmp_path / "trace.json", [*GOOD, row]))
    assert found.devices[0].span.window_ns == 5_000
    assert sum("1 event was left out" in note for note in found.notes) == 1


@pytest.mark.parametrize("device", [-5, 2**31, 10**40])
def test_a_device_that_cannot_be(tmp_path: Path, device: int) -> None:
    row = on_device("kernel", "gelu", 20, 2, 2)
    row["args"]["device"] = device
    found = read(tmp_path, kineto(tmp_path / "trace.json", [*GOOD, row]))
    assert [one.device for one in found.devices] == ["cuda:0"]
    assert "1 event was left out: they name no device" in found.notes


@pytest.mark.parametrize("size", [-5, 2**60])
def test_sizes_that_cannot_be_are_unknown(tmp_path: Path, size: int) -> None:
    said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": size}
    row = on_device("kernel", "ncclDevKernel_AllReduce", 20, 2, 2, **said, **{"Group size": size})
    copy = on_device("gpu_memcpy", "Memcpy HtoD", 30, 2, 3, bytes=size)
    found = read(tmp_path, kineto(tmp_path / "trace.json", [*GOOD, row, copy]))
    assert found.devices[0].collectives[0].bytes is None
    assert found.devices[0].collectives[0].bus_bandwidth is None
    assert all(one.bytes is None for one in found.devices[0].activities if one.kind == "memcpy")


@pytest.mark.parametrize(
    "head",
    [
        {"distributedInfo": {"rank": 10**30, "world_size": 10**30}},
        {"distributedInfo": {"rank": -7, "world_size": 2}},
        {"distributedInfo": {"rank": 9, "world_size": 2}},
        {"baseTimeNanoseconds": 10**30},
        {"baseTimeNanoseconds": 2**63 - 1},
    ],
)
def test_a_head_with_numbers_that_cannot_be(tmp_path: Path, head: dict[str, Any]) -> None:
    said = on_device("kernel", "ncclDevKernel_AllReduce", 20, 2, 2)
    found = read(tmp_path, kineto(tmp_path / "trace.json", [*GOOD, said], **head))
    assert [(one.rank, one.span.window_ns) for one in found.devices] == [(0, 17_000)]


def test_begins_and_ends_apart_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**on_device("kernel", "gelu", 20, 2, 2), "ph": phase} for phase in "BE"]
    assert main([str(kineto(tmp_path / "trace.json", rows))]) == 1
    assert "2 events were left out: they are begins and ends apart" in capsys.readouterr().err


def test_launches_whose_kernels_are_missing_are_told(tmp_path: Path) -> None:
    rows = [GOOD[0], on_device("gpu_memcpy", "Memcpy HtoD", 30, 2, 3, bytes=8)]
    found = read(tmp_path, kineto(tmp_path / "trace.json", rows))
    assert any("1 calls launched kernels" in note for note in found.notes)
    whole = read(tmp_path, kineto(tmp_path / "whole.json", GOOD))
    assert not any("launched kernels" in note for note in whole.notes)


def test_a_kernel_before_the_recording(tmp_path: Path) -> None:
    report = Report(tmp_path / "report.sqlite")
    report.kernel("good", 10, 20, pid=1, correlation=1)
    report.kernel("early", 10, 30, pid=1, correlation=2)
    path = report.write()
    with sqlite3.connect(path) as database:
        database.execute('UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "start" = -1 WHERE "end" = 30')
    database.close()
    found = read(tmp_path, path)
    assert found.devices[0].span.window_ns == 10
    assert "1 event was left out: they begin before the recording" in found.notes


@pytest.mark.parametrize("option", ["--output", "--events"])
def test_a_trace_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    path = kineto(tmp_path / "trace.json", GOOD)
    before = path.read_bytes()
    assert main([str(path), option, str(path)]) == 1
    assert main(["perfetto", str(path), "--output", str(path)]) == 1
    assert path.read_bytes() == before
    assert capsys.readouterr().err.count("would be overwritten") == 2


def test_two_outputs_of_one_name(tmp_path: Path) -> None:
    path, output = kineto(tmp_path / "trace.json", GOOD), str(tmp_path / "out")
    assert main([str(path), "--output", output, "--events", output]) == 1
    assert not Path(output).exists()


def test_a_pipe_stays_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    path = kineto(tmp_path / "trace.json", GOOD)
    assert main([str(path), "--output", str(pipe)]) == 1
    assert main(["perfetto", str(path), "--output", str(pipe)]) == 1
    assert pipe.is_fifo()
    assert capsys.readouterr().err.count("not a regular file") == 2


@pytest.mark.parametrize(
    "words",
    [
        ["--from", "nan"],
        ["--from", "inf"],
        ["--from", "1e30"],
        ["--from", "50", "--to", "10"],
        ["--to", "-5"],
    ],
)
def test_windows_that_cannot_be(tmp_path: Path, words: list[str]) -> None:
    path = str(kineto(tmp_path / "trace.json", GOOD))
    output = tmp_path / "all.json"
    for command in ([path], ["perfetto", path, "--output", str(output)]):
        with pytest.raises(SystemExit) as ended:
            main([*command, *words])
        assert ended.value.code == 2
    assert not output.exists()


@pytest.mark.parametrize("words", [["--allowed", "nan"], ["--allowed", "-1"], ["--top", "0"]])
def test_limits_that_no_difference_can_exceed(tmp_path: Path, words: list[str]) -> None:
    path = str(kineto(tmp_path / "trace.json", GOOD))
    with pytest.raises(SystemExit) as ended:
        main(["diff", path, path, *words])
    assert ended.value.code == 2


def test_two_halves_a_year_apart(tmp_path: Path) -> None:
    year = 365 * 86_400 * 1e6
    rows = [on_device("kernel", "early", 10, 5, 1), on_device("kernel", "late", year, 5, 2)]
    reading = read_files([kineto(tmp_path / "trace.json", rows)])
    assert reading.table.column("name").to_pylist() == ["late"]
    assert "away from the others" in reading.notes[0]
