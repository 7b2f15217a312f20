"""Texts and numbers that programs write by mistake: none of them may end the reading."""

import json
from pathlib import Path
from typing import Any

import pytest
from traces import Report, complete, kineto, on_device

from schemas.errors import ConfigError
from schemas.results import Breakdown
from transformer_core.trace.__main__ import main
from transformer_core.trace.events.columns import NULL
from transformer_core.trace.events.event_table import rows_of
from transformer_core.trace.readers.files import read_files

DEEP = "[" * 5000 + "]" * 5000
LAUNCHED = [
    complete("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1),
    on_device("kernel", "sgemm", 5, 5, 1),
]


@pytest.mark.parametrize(
    "mark",
    [
        "allocated:0:" + "9" * 30,
        "allocated:" + "9" * 25 + ":5",
        "allocated:0:" + "9" * 5000,
        "allocated:\u0663:5",
    ],
)
def test_marks_of_memory_that_cannot_be(tmp_path: Path, mark: str) -> None:
    rows = rows_of(
        read_files(
            [kineto(tmp_path / "t.json", [complete("user_annotation", mark, 0, 9), *LAUNCHED])]
        ).table
    )
    assert not rows.equal("kind", "memory").any()
    assert rows.equal("kind", "kernel").sum() == 1


@pytest.mark.parametrize("dims", [7, [3, "x", None, [2, True]], {"a": 1}, [[10**30, 4]]])
def test_a_range_of_a_collective_with_odd_inputs(tmp_path: Path, dims: Any) -> None:
    said = {"Input Dims": dims, "Input type": ["float"] * 4}
    rows = [complete("user_annotation", "nccl:all_reduce", 0, 9, **said), LAUNCHED[0]]
    rows += [on_device("kernel", "ncclDevKernel_AllReduce", 5, 5, 1)]
    found = rows_of(read_files([kineto(tmp_path / "t.json", rows)]).table).work
    assert found["collective"].tolist() == ["all_reduce"]
    assert found["bytes"].tolist() == [NULL]


@pytest.mark.parametrize("name", ["\ud800bad", "x\udc00", "back\\\ud800bad"])
def test_half_a_character(tmp_path: Path, name: str) -> None:
    whole = on_device("kernel", "\U0001f600", 15, 5, 2)
    rows = [*LAUNCHED, on_device("kernel", name, 10, 5, 2), whole]
    found = rows_of(read_files([kineto(tmp_path / "t.json", rows)]).table).work
    half = name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert found["name"].tolist() == ["sgemm", half, "\U0001f600"]


def test_lists_within_lists(tmp_path: Path) -> None:
    path = kineto(tmp_path / "t.json", LAUNCHED)
    deep = f'{{"ph": "X", "cat": "kernel", "args": {DEEP}}}, '
    path.write_text(path.read_text().replace('"traceEvents": [', '"traceEvents": [' + deep))
    with pytest.raises(ConfigError, match="lists within lists, hundreds deep"):
        read_files([path])


def test_kernels_without_ids_have_no_launch(tmp_path: Path) -> None:
    """CUPTI counts from 1, and 0 stands for none."""
    rows = [complete("cuda_runtime", "cudaLaunchKernel", k, 1, correlation=0) for k in range(3)]
    rows += [on_device("kernel", "k", 10 + 5 * k, 4, 0) for k in range(3)]
    found = rows_of(read_files([kineto(tmp_path / "t.json", rows)]).table).work
    assert found["launch_ns"].tolist() == [NULL] * 3


@pytest.mark.parametrize(
    "text",
    [
        f"aten::mm, seq = {'9' * 5000}, sizes = [[2, 3], [3, 4]]",
        f"aten::mm, seq = {'9' * 30}, sizes = [[2, 3], [3, 4]]",
        f"aten::mm, seq = 1, sizes = {DEEP}",
        f"aten::mm, seq = 1, sizes = [[{'9' * 5000}, 3], [3, 4]]",
    ],
)
def test_operators_of_a_report_with_odd_texts(tmp_path: Path, text: str) -> None:
    report = Report(tmp_path / "r.sqlite")
    report.range(text, 0, 500, pid=7, tid=1)
    report.launch(1, 100, pid=7, tid=1)
    report.kernel("sgemm", 200, 400, pid=7, correlation=1)
    found = rows_of(read_files([report.write()]).table).work
    assert found["operator"].tolist() == ["aten::mm"]


def test_a_payload_of_lists_within_lists(tmp_path: Path) -> None:
    report = Report(tmp_path / "r.sqlite")
    report.range("ncclAllReduce", 0, 500, pid=7, tid=1, payload={"message size [bytes]": 8})
    report.database.execute("UPDATE NVTX_EVENTS SET jsonText = ?", (DEEP,))
    report.launch(1, 100, pid=7, tid=1)
    report.kernel("ncclDevKernel_AllReduce", 200, 400, pid=7, correlation=1)
    assert rows_of(read_files([report.write()]).table).work["bytes"].tolist() == [NULL]


@pytest.mark.parametrize("value", ["NULL", "x'ff'", "7"])
def test_texts_of_a_report_that_are_none(tmp_path: Path, value: str) -> None:
    report = Report(tmp_path / "r.sqlite")
    report.kernel("sgemm", 200, 400, pid=7, correlation=1)
    report.database.execute(f"UPDATE StringIds SET value = {value}")
    found = rows_of(read_files([report.write()]).table)
    assert found["name"].tolist() == ["unknown kernel"]


def test_why_a_report_has_no_kernels(tmp_path: Path) -> None:
    report = Report(tmp_path / "r.sqlite")
    report.launch(1, 100, pid=7, tid=1)
    report.kernel("sgemm", 400, 200, pid=7, correlation=1)
    with pytest.raises(ConfigError, match=r"no kernel \(1 event was left out: they end before"):
        read_files([report.write()])


def reduced(ts: float, dur: float, ranks: list[int]) -> dict[str, Any]:
    """An all-reduce of 1,000 numbers in a group."""
    said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1000}
    said |= {"Out msg nelems": 1000, "Group size": len(ranks), "Process Group Ranks": str(ranks)}
    return on_device("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", ts, dur, int(ts), **said)


def test_a_rank_in_two_groups_of_different_sizes(tmp_path: Path) -> None:
    """The group of all four twice, with a pair's between; by hand."""
    files = []
    for rank in range(4):
        pair = [0, 1] if rank < 2 else [2, 3]
        rows = [
            reduced(100, 100 + 10 * rank, [0, 1, 2, 3]),
            reduced(400, 50 + 5 * (rank % 2), pair),
        ]
        rows += [reduced(600, 40 - rank, [0, 1, 2, 3])]
        head = {"distributedInfo": {"rank": rank, "world_size": 4}}
        files.append(kineto(tmp_path / f"{rank}.json", rows, **head))
    output = tmp_path / "out.json"
    assert main([*map(str, files), "--output", str(output)]) == 0
    found = [
        one.collectives[0]
        for one in Breakdown.model_validate(json.loads(output.read_text())).devices
    ]
    assert [one.transfer_ns for one in found] == [187_000] * 4  # 100 + 50 + 37
    assert [one.waiting_ns for one in found] == [3_000, 17_000, 21_000, 35_000]
    moved = 2 * 4000 * 2 * 3 / 4 + 4000 * 2 * 1 / 2
    assert found[0].bus_bandwidth == pytest.approx(moved / 187e-6)
