"""Malformed files: either refused with one sentence and an exit code, or read without the malformed
events, which are counted."""

import os
from pathlib import Path
from typing import Any

import pytest
from traces import (
    Report,
    allocated,
    breakdown_in,
    changed_report,
    complete,
    kineto,
    launch,
    of_rank,
    on_device,
    one_kernel,
    rows_in,
)

from schemas.results import Breakdown, DeviceBreakdown
from transformer_core.trace.__main__ import main
from transformer_core.trace.events.columns import NULL
from transformer_core.trace.events.event_table import Rows, rows_of
from transformer_core.trace.readers.files import read_files
from transformer_core.trace.tables import read_files as read_tables

LAUNCHED = [launch(1, 1), on_device("kernel", "sgemm", 5, 5, 1)]
GOOD = [
    complete("user_annotation", "phase:forward", 0, 20),
    complete("cpu_op", "aten::mm", 0, 5, **{"Input Dims": [[2, 3], [3, 4]]}),
    *LAUNCHED,
    on_device("kernel", "softmax", 12, 3, 2),
]
BAD = {
    "null": None,
    "text": "soon",
    "infinite": float("inf"),
    "not a number": float("nan"),
    "negative": -5,
    "huge": 1e300,
    "far": 9.2e15,
    "true": True,
    "list": [1, "x"],
}
KERNEL_FIELDS = ("name", "cat", "ph", "pid", "tid", "args")
KERNEL_ARGS = ("device", "stream", "correlation", "bytes", "context", "Process Group Ranks")


def read(folder: Path, rows: list[dict[str, Any]], **head: Any) -> Breakdown:
    return breakdown_in(folder, kineto(folder / "trace.json", rows, **head))


def device_of(folder: Path, rows: list[dict[str, Any]]) -> DeviceBreakdown:
    (device,) = read(folder, rows).devices
    return device


def work_of(folder: Path, rows: list[dict[str, Any]]) -> Rows:
    return rows_in(kineto(folder / "trace.json", rows)).work


def broken(place: str, field: str, value: str) -> dict[str, Any]:
    """A kernel of which one field is wrong or missing."""
    row = on_device("kernel", "gelu", 16, 2, 3, **{"Collective name": "allreduce"})
    owner = row["args"] if place == "args" else row
    if value == "missing":
        owner.pop(field, None)
    else:
        owner[field] = BAD[value]
    return row


@pytest.mark.parametrize("value", [*BAD, "missing"])
def test_kernels_with_a_wrong_field_each(tmp_path, value):
    places = [("event", name) for name in KERNEL_FIELDS] + [("args", name) for name in KERNEL_ARGS]
    rows = [broken(place, field, value) for place, field in places]
    found = read(tmp_path, [*GOOD, *rows])
    (device,) = [device for device in found.devices if device.device == "cuda:0"]
    assert device.span.window_ns <= 25_000
    assert 2 <= device.events <= 2 + len(rows)


@pytest.mark.parametrize("value", [*BAD, "missing"])
@pytest.mark.parametrize("field", ["ts", "dur"])
def test_a_kernel_with_an_invalid_time(tmp_path, field, value):
    found = read(tmp_path, [*GOOD, broken("event", field, value)])
    (device,) = found.devices
    if (field, value) == ("ts", "negative"):  # before the begin of the clock, which is arbitrary
        assert (device.events, device.span.window_ns) == (3, 20_000)
        return
    assert (device.events, device.span.window_ns) == (2, 10_000)
    assert any("1 event was left out" in note for note in found.notes), found.notes


@pytest.mark.parametrize("value", [*BAD, "missing"])
def test_an_operator_with_wrong_inputs(tmp_path, value):
    for field in ("Input Dims", "Input type", "Sequence number"):
        args: dict[str, Any] = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
        args.pop(field, None)
        if value != "missing":
            args[field] = BAD[value]
        rows = [complete("cpu_op", "aten::mm", 0, 5, **args), *GOOD[2:]]
        assert device_of(tmp_path, rows).kernels == 2, field


@pytest.mark.parametrize(
    "shapes",
    [
        [[[4, 5], [4, 5]], [6, 5]],
        [[-1, 3], [3, -4]],
        [["a", 3], [3, 4]],
        [[True, 3], [3, 4]],
        [[10**15, 10**15], [10**15, 10**15]],
        [[2**20, 2**20], [2**20, 2**20]],  # the sum over a few would not fit into 64 bits
    ],
)
def test_impossible_shapes_give_no_flops(tmp_path, shapes):
    rows = [complete("cpu_op", "aten::mm", 0, 5, **{"Input Dims": shapes}), *GOOD[2:]]
    assert device_of(tmp_path, rows).operators[0].flops is None


def test_invalid_utf_8(tmp_path):
    path = kineto(tmp_path / "trace.json", GOOD)
    path.write_bytes(path.read_bytes().replace(b"softmax", b"soft\xffmax"))
    assert breakdown_in(tmp_path, path).devices[0].events == 2


KERNELS, LAUNCHES, RANGES, COPIES = (
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"),
    *("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_MEMCPY"),
)
NEEDED = ("start", "end", "deviceId", "streamId")
COLUMNS = {
    KERNELS: (*NEEDED, "correlationId", "globalPid", "contextId", "demangledName"),
    LAUNCHES: ("start", "globalTid", "correlationId"),
    RANGES: ("start", "end", "text", "globalTid", "eventType"),
    COPIES: ("start", "bytes", "copyKind"),
}
CHANGES = {
    "null": 'UPDATE "{}" SET "{}" = NULL',
    "text": 'UPDATE "{}" SET "{}" = \'x\'',
    "gone": 'ALTER TABLE "{}" DROP COLUMN "{}"',
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("table", COLUMNS)
def test_a_column_of_a_report(tmp_path, capsys, table, change):
    output = tmp_path / "out.json"
    for column in COLUMNS[table]:
        statement = CHANGES[change].format(table, column)
        path = changed_report(tmp_path / "report.sqlite", statement)
        output.unlink(missing_ok=True)
        status = main([str(path), "--output", str(output)])
        captured = capsys.readouterr()
        found = Breakdown.model_validate_json(output.read_text()).devices if output.exists() else []
        assert status == (0 if found else 1), column
        assert all(device.span.window_ns < 10_000 for device in found), column
        if table == KERNELS and column in NEEDED and change != "gone":
            assert found
            assert "3 events were left out" in captured.out + captured.err


@pytest.mark.parametrize("table", [*COLUMNS, "StringIds"])
def test_a_missing_table(tmp_path, capsys, table):
    path = changed_report(tmp_path / "report.sqlite", f'DROP TABLE "{table}"')
    assert main([str(path)]) == (1 if table == "StringIds" else 0)
    assert ("has no StringIds" in capsys.readouterr().err) == (table == "StringIds")


def test_a_failed_breakdown_exits_with_1_unless_its_status_is_kept(tmp_path):
    path = kineto(tmp_path / "trace.json", [complete("user_annotation", "phase:step", 0, 10)])
    assert main([str(path)]) == 1
    path.write_text("{")
    found = breakdown_in(tmp_path, path, "--keep-status")
    assert found.status == "failed"
    assert "not a torch.profiler trace" in (found.reason or "")


DEEP = "[" * 5000 + "]" * 5000


@pytest.mark.parametrize(
    "mark",
    [
        "allocated:0:" + "9" * 30,
        "allocated:" + "9" * 25 + ":5",
        "allocated:0:" + "9" * 5000,
        "allocated:\u0663:5",
    ],
)
def test_impossible_marks_of_memory(tmp_path, mark):
    marked = [complete("user_annotation", mark, 0, 9), *LAUNCHED]
    rows = rows_in(kineto(tmp_path / "t.json", marked))
    assert not rows.equal("kind", "memory").any()
    assert rows.equal("kind", "kernel").sum() == 1


def test_impossible_events_of_an_allocator(tmp_path):
    sizes = (64, 2**64 - 4096, 2**62, -1, 128)
    rows = [allocated(10 * place, size) for place, size in enumerate(sizes)]
    module = complete("user_annotation", "layer:model", 1, 90)
    found = read_tables([kineto(tmp_path / "t.json", [module, *rows, *LAUNCHED])])
    assert found.memory["bytes"].tolist() == [64, 128]
    assert any("3 events were left out: no device holds" in note for note in found.breakdown.notes)


@pytest.mark.parametrize(
    ("dims", "ranks"),
    [
        *((dims, 2) for dims in (7, [3, "x", None, [2, True]], {"a": 1}, [[10**30, 4]])),
        # The product of two possible numbers: an all-gather counts the inputs of all ranks.
        ([[2**45]], 2**30),
    ],
)
def test_a_range_of_a_collective_with_odd_inputs(tmp_path, dims, ranks):
    said = {"Input Dims": dims, "Input type": ["float"] * 4}
    rows = [complete("user_annotation", "nccl:all_gather", 0, 9, **said), LAUNCHED[0]]
    rows += [on_device("kernel", "ncclDevKernel_AllGather", 5, 5, 1)]
    found = rows_in(kineto(tmp_path / "trace.json", rows, **of_rank(0, ranks))).work
    assert found["collective"].tolist() == ["all_gather"]
    assert found["bytes"].tolist() == [NULL]


@pytest.mark.parametrize("name", ["\ud800bad", "x\udc00", "back\\\ud800bad"])
def test_lone_surrogates(tmp_path, name):
    whole = on_device("kernel", "\U0001f600", 15, 5, 2)
    found = work_of(tmp_path, [*LAUNCHED, on_device("kernel", name, 10, 5, 2), whole])
    half = name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert found["name"].tolist() == ["sgemm", half, "\U0001f600"]


def test_kernels_without_ids_have_no_launch(tmp_path):
    """CUPTI counts from 1, and 0 stands for none."""
    kernels = [on_device("kernel", "k", 10 + 5 * k, 4, 0) for k in range(3)]
    found = work_of(tmp_path, [launch(0, 0), launch(0, 1), *kernels])
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
def test_operators_of_a_report_with_odd_texts(tmp_path, text):
    report = one_kernel(tmp_path / "r.sqlite", "sgemm", around=text)
    assert rows_in(report.write()).work["operator"].tolist() == ["aten::mm"]


@pytest.mark.parametrize("value", ["NULL", "x'ff'", "7"])
def test_invalid_texts_of_a_report(tmp_path, value):
    report = one_kernel(tmp_path / "r.sqlite", "sgemm")
    report.database.execute(f"UPDATE StringIds SET value = {value}")
    assert rows_in(report.write()).work["name"].tolist() == ["unknown kernel"]


def test_a_kernel_without_its_full_name_has_the_short_one(tmp_path):
    report = one_kernel(tmp_path / "r.sqlite", "ampere_sgemm_32x32_tn")
    report.database.execute("UPDATE StringIds SET value = '' WHERE value LIKE '%_tn'")
    assert rows_in(report.write()).work["name"].tolist() == ["ampere_sgemm"]


@pytest.mark.parametrize("size", [-5, 2**60])
def test_impossible_sizes_are_unknown(tmp_path, size):
    said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": size}
    row = on_device("kernel", "ncclDevKernel_AllReduce", 20, 2, 2, **said, **{"Group size": size})
    copy = on_device("gpu_memcpy", "Memcpy HtoD", 30, 2, 3, bytes=size)
    device = device_of(tmp_path, [*LAUNCHED, row, copy])
    assert device.collectives[0].bytes is None
    assert device.collectives[0].bus_bandwidth is None
    assert all(one.bytes is None for one in device.activities if one.kind == "memcpy")


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
def test_a_head_with_impossible_numbers(tmp_path, head):
    said = on_device("kernel", "ncclDevKernel_AllReduce", 20, 2, 2)
    found = read(tmp_path, [*LAUNCHED, said], **head)
    assert [(one.rank, one.span.window_ns) for one in found.devices] == [(0, 17_000)]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        # Launches without kernels are no trace of a CPU.
        (GOOD[:3], ("has kernel launches (1) but no kernels", "ProfilerActivity.CUDA")),
        (
            [on_device("kernel", "gelu", 20, 2, 2) | {"ph": phase} for phase in "BE"],
            ("2 events were left out: they are separate begins and ends",),
        ),
        ([LAUNCHED[0], LAUNCHED[1] | {"dur": BAD["not a number"]}], ("their time is missing",)),
    ],
)
def test_traces_without_a_kernel(tmp_path, capsys, rows, told):
    assert main([str(kineto(tmp_path / "trace.json", rows))]) == 1
    said = capsys.readouterr().err
    assert [words for words in told if words not in said] == []


def test_a_note_on_launches_whose_kernels_are_missing(tmp_path):
    copy = on_device("gpu_memcpy", "Memcpy HtoD", 30, 2, 3, bytes=8)
    notes = read(tmp_path, [LAUNCHED[0], copy]).notes
    assert any("The trace has kernel launches (1) but no kernels" in note for note in notes)
    assert not any("kernel launches" in note for note in read(tmp_path, LAUNCHED).notes)


def test_two_halves_a_year_apart(tmp_path):
    year = 365 * 86_400 * 1e6
    rows = [
        *(on_device("kernel", "early", 10, 5, 1), allocated(12, 100)),
        *(on_device("kernel", "late", year, 5, 2), allocated(year, 200)),
    ]
    reading = read_files([kineto(tmp_path / "trace.json", rows)])
    assert rows_of(reading.events)["name"].tolist() == ["late", None]
    assert reading.notes[0].startswith("2 events were left out: more than a day long, or away from")


@pytest.mark.parametrize("device", [None, -5, 2**31, 10**40])
def test_impossible_events_are_left_out(tmp_path, device):
    row, why = GOOD[3], "the trace holds them twice"
    if device is not None:
        row, why = on_device("kernel", "gelu", 20, 2, 3, device=device), "no device"
    found = read(tmp_path, [*GOOD, row])
    assert [(one.device, one.events) for one in found.devices] == [("cuda:0", 2)]
    assert any("1 event was left out: " in note and why in note for note in found.notes)


def test_impossible_events_of_a_report_are_left_out(tmp_path):
    report = Report(tmp_path / "report.sqlite")
    report.range("phase:forward", 0, None, pid=1, tid=1)
    far = 9 * 10**18
    for number, (t0, t1) in enumerate([(0, 10), (20, 5), (far, far + 5), (-1, 33), (30, 35)], 1):
        report.kernel(f"k{number}", t0, t1, pid=1, correlation=number)
    found = breakdown_in(tmp_path, report.write())
    assert (found.devices[0].events, found.devices[0].span.window_ns) == (2, 35)
    told = [note for note in found.notes if "1 event was left out" in note]
    for why in ("NVTX ranges that never end", "end before", "begin before the recording"):
        assert sum(why in note for note in told) == 1, found.notes
    assert len(told) == 4


def test_inputs_and_special_files_are_not_overwritten(tmp_path, capsys):
    path, pipe = kineto(tmp_path / "trace.json", LAUNCHED), tmp_path / "pipe"
    os.mkfifo(pipe)
    before, output = path.read_bytes(), str(tmp_path / "out")
    for name, words in (
        (path, "would be overwritten"),
        (path / "out", f"{path / 'out'} cannot be written ("),
        (pipe, "not a regular file"),
    ):
        for command in (
            [str(path), "--output"],
            [str(path), "--events"],
            ["perfetto", str(path), "--output"],
        ):
            assert main([*command, str(name)]) == 1
            assert words in capsys.readouterr().err
    assert path.read_bytes() == before
    assert pipe.is_fifo()
    for words in (
        ["--output", output, "--events", output],
        ["--roofline", output, "--output", output],
    ):
        assert main([str(path), *words]) == 1
        assert "would be overwritten" in capsys.readouterr().err
    assert not Path(output).exists()
