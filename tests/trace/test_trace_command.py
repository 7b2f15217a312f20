"""``python -m transformer_core.trace``: files of users, and what goes wrong."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from traces import complete, kineto, on_device, training_report

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
    assert said.startswith("mine: 2 ranks on cuda:0, the whole trace, 0.005 ms")
    assert "computation" in said
    assert "1 cuda:0" in said


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


def step(rank: int, name: str = "sgemm") -> list[dict[str, Any]]:
    """A step of a rank: a product, and an all-reduce for which the other rank waits."""
    talk = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8, "Group size": 2}
    return [
        complete("user_annotation", "ProfilerStep#1", 0, 100),
        complete("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1),
        on_device("kernel", name, 5, 40, 1),
        on_device("kernel", "ncclDevKernel_AllReduce", 50, 30 - 20 * rank, 2, **talk),
    ]


@pytest.fixture
def traces(tmp_path: Path) -> list[str]:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        head = {"distributedInfo": {"rank": rank, "world_size": 2}}
        kineto(folder / f"r{rank}.json.gz", step(rank), **head)
    return [str(folder)]


@pytest.mark.parametrize("columns", [60, 100, 200])
def test_one_page_over_all_ranks_in_the_width_of_the_terminal(
    traces: list[str],
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(traces) == 0
    said = capsys.readouterr()
    assert said.err == ""
    for told in ("2 ranks", "1 step of", "computation", "Bound by", "all_reduce", "sgemm"):
        assert told in said.out
    assert "delay ms" in said.out
    assert all(len(line) <= columns for line in said.out.splitlines())


def test_top_and_filter_change_what_is_printed(
    traces: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*traces, "--top", "1"])
    said = capsys.readouterr().out
    assert "sgemm" in said
    assert "ncclDevKernel" not in said
    assert "and 1 more" in said
    main([*traces, "--filter", "nccl"])
    said = capsys.readouterr().out
    assert "sgemm" not in said
    assert "ncclDevKernel_AllReduce" in said


@pytest.mark.parametrize("words", [["--json"], ["--output", "-"]])
def test_numbers_are_printed(
    traces: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*traces, *words]) == 0
    said = capsys.readouterr()
    assert Breakdown.model_validate_json(said.out).devices[1].rank == 1
    assert said.err == ""


def test_perfetto_prints_its_file(traces: list[str], capfdbinary: Any) -> None:
    assert main(["perfetto", *traces, "--output", "-"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["traceEvents"]


def test_failures_are_said_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = kineto(tmp_path / "n.json", [complete("user_annotation", "phase:step", 0, 5)])
    assert main([str(nothing)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "holds no device event" in said.err


def test_names_cannot_command_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "sg\x1b[31memm\x9b\u202e\nx"
    rows = [on_device("kernel", bad, 0, 5, 1), complete("user_annotation", "\x1b]0;x\x07", 0, 9)]
    path = kineto(tmp_path / "a\x1b[2J.json", rows)
    assert main([str(path), "--name", "\x1bname"]) == 0
    main(["diff", str(path), str(path)])
    main([str(path.with_name("none\x1b.json"))])
    main(["perfetto", str(path), "--output", str(tmp_path / "p\x1b.json")])
    said = capsys.readouterr()
    text = said.out + said.err
    assert "emm" in text
    assert all(character.isprintable() for character in text.replace("\n", ""))
