"""Files that are not what they should be: a sentence and an exit code, or the rest and a count."""

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from traces import Report, complete, kineto, on_device, training_report

from schemas.results import Breakdown
from transformer_core.trace.__main__ import main

GOOD = [
    complete("user_annotation", "phase:forward", 0, 20),
    complete("cpu_op", "aten::mm", 0, 5, **{"Input Dims": [[2, 3], [3, 4]]}),
    complete("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1),
    on_device("kernel", "sgemm", 5, 5, 1),
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


def broken(place: str, field: str, value: str) -> dict[str, Any]:
    """A kernel of which one field is wrong or missing."""
    row = on_device("kernel", "gelu", 16, 2, 3, **{"Collective name": "allreduce"})
    owner = row["args"] if place == "args" else row
    if value == "missing":
        owner.pop(field, None)
    else:
        owner[field] = BAD[value]
    return row


def run(folder: Path, capsys: pytest.CaptureFixture[str], *files: Path) -> Breakdown:
    output = folder / "out.json"
    assert main([*map(str, files), "--output", str(output)]) == 0
    return Breakdown.model_validate_json(output.read_text())


@pytest.mark.parametrize("value", [*BAD, "missing"])
def test_kernels_with_a_wrong_field_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    places = [("event", name) for name in KERNEL_FIELDS] + [("args", name) for name in KERNEL_ARGS]
    rows = [broken(place, field, value) for place, field in places]
    found = run(tmp_path, capsys, kineto(tmp_path / "trace.json", [*GOOD, *rows]))
    (device,) = [device for device in found.devices if device.device == "cuda:0"]
    assert device.span.window_ns <= 25_000
    assert 2 <= device.events <= 2 + len(rows)


@pytest.mark.parametrize("value", [*BAD, "missing"])
@pytest.mark.parametrize("field", ["ts", "dur"])
def test_a_kernel_with_a_time_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: str
) -> None:
    path = kineto(tmp_path / "trace.json", [*GOOD, broken("event", field, value)])
    found = run(tmp_path, capsys, path)
    (device,) = found.devices
    if (field, value) == ("ts", "negative"):  # before the begin of the clock, which is arbitrary
        assert (device.events, device.span.window_ns) == (3, 20_000)
        return
    assert (device.events, device.span.window_ns) == (2, 10_000)
    assert any("1 event was left out" in note for note in found.notes), found.notes


@pytest.mark.parametrize("value", [*BAD, "missing"])
@pytest.mark.parametrize("field", ["Input Dims", "Input type", "Sequence number"])
def test_an_operator_with_wrong_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: str
) -> None:
    dims = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
    args = dims if value == "missing" else dims | {field: BAD[value]}
    if value == "missing":
        args = {name: given for name, given in dims.items() if name != field}
    rows = [complete("cpu_op", "aten::mm", 0, 5, **args), *GOOD[2:]]
    found = run(tmp_path, capsys, kineto(tmp_path / "trace.json", rows))
    assert found.devices[0].kernels == 2


SHAPES = {
    "linear of lists": ("aten::linear", [[[4, 5], [4, 5]], [6, 5], [6]]),
    "linear of many": ("aten::linear", [[4, 5], [6, 5, 2], [6]]),
    "linear of one side": ("aten::linear", [[5], [6, 5]]),
    "linear of nothing": ("aten::linear", [[], [], []]),
    "linear of others": ("aten::linear", [[4, 5], [6, 7]]),
    "addmm of two": ("aten::addmm", [[6], [4, 5]]),
    "bmm of batches": ("aten::bmm", [[2, 4, 5], [3, 5, 6]]),
    "mm of vectors": ("aten::mm", [[4], [4]]),
    "attention of three sides": ("aten::_scaled_dot_product_flash_attention", [[2, 3, 4]] * 3),
    "attention of others": (
        "aten::_scaled_dot_product_flash_attention",
        [[2, 3, 4, 8], [2, 3, 4, 9], [2, 3, 5, 8]],
    ),
    "negative sides": ("aten::mm", [[-1, 3], [3, -4]]),
    "sides that are text": ("aten::mm", [["a", 3], [3, 4]]),
    "sides that are true": ("aten::mm", [[True, 3], [3, 4]]),
    "astronomic": ("aten::mm", [[10**15, 10**15], [10**15, 10**15]]),
}
FLOPS = {"linear of one side": 60}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_prove_nothing_give_no_flops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    operator, shapes = SHAPES[name]
    rows = [complete("cpu_op", operator, 0, 5, **{"Input Dims": shapes}), *GOOD[2:]]
    found = run(tmp_path, capsys, kineto(tmp_path / "trace.json", rows))
    assert found.devices[0].operators[0].flops == FLOPS.get(name)


def test_an_event_that_is_there_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(tmp_path, capsys, kineto(tmp_path / "t.json", [*GOOD, GOOD[3]]))
    assert found.devices[0].events == 2
    assert "1 event was left out: the trace holds them twice" in found.notes


def test_launches_without_kernels_are_no_trace_of_a_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(kineto(tmp_path / "t.json", GOOD[:3]))]) == 1
    said = capsys.readouterr().err
    assert "holds 1 launches of kernels, but no kernel" in said
    assert "ProfilerActivity.CUDA" in said


WHOLE = json.dumps({"schemaVersion": 1, "traceEvents": GOOD})
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "text": (b"hello", "not a torch.profiler trace"),
    "list": (WHOLE.partition(": [")[2].encode(), "not a torch.profiler trace"),
    "null": (b"null", "not a torch.profiler trace"),
    "events that are null": (b'{"schemaVersion": 1, "traceEvents": null}', "no traceEvents"),
    "no events": (b'{"schemaVersion": 1, "traceEvents": []}', "no traceEvents"),
    "half": (WHOLE[: len(WHOLE) // 2].encode(), "damaged or cut off"),
    "no end": (WHOLE[:-1].encode(), "damaged or cut off"),
    "two ends": (WHOLE.encode() + b"}", "damaged or cut off"),
    "half of gzip": (gzip.compress(WHOLE.encode() * 9)[:-9], "damaged or cut off"),
    "gzip of nothing": (b"\x1f\x8b", "damaged or cut off"),
    "binary": (bytes(range(256)), "not a torch.profiler trace"),
    "a report itself": (b"NVIDIA Tegra Profiler Report 1.\x0a", "nsys export --type=sqlite"),
    "sqlite's first words": (b"SQLite format 3\0", "damaged, or not a report"),
    "sqlite and noise": (b"SQLite format 3\0" + b"\x07" * 5000, "damaged, or not a report"),
    "deep": (b'{"traceEvents": [' + b"[" * 100_000, "damaged or cut off"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(FILES[name][0])
    assert main([str(path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(str(path)), said
    assert FILES[name][1] in said
    assert said.count("\n") == 1
    assert "None" not in said


def test_gzip_by_any_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(WHOLE.encode()))
    assert run(tmp_path, capsys, path).devices[0].events == 2


def test_characters_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(WHOLE.encode().replace(b"softmax", b"soft\xffmax"))
    assert run(tmp_path, capsys, path).devices[0].events == 2


TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
)
COLUMNS = [
    *(
        (TABLES[0], name)
        for name in ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
    ),
    *((TABLES[0], name) for name in ("contextId", "demangledName")),
    *((TABLES[1], name) for name in ("start", "globalTid", "correlationId")),
    *((TABLES[2], name) for name in ("start", "end", "text", "globalTid", "eventType")),
    *((TABLES[3], name) for name in ("start", "bytes", "copyKind")),
]
NEEDED = {"start", "end", "deviceId", "streamId"}


@pytest.mark.parametrize("change", ["null", "text", "gone"])
@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_a_column_of_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, column: str, change: str
) -> None:
    path = training_report(tmp_path / "report.sqlite")
    with sqlite3.connect(path) as database:
        if change == "gone":
            database.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
        else:
            value = {"null": None, "text": "x"}[change]
            database.execute(f'UPDATE "{table}" SET "{column}" = ?', (value,))
    database.close()
    output = tmp_path / "out.json"
    status = main([str(path), "--output", str(output)])
    captured = capsys.readouterr()
    found = Breakdown.model_validate_json(output.read_text()) if output.exists() else None
    assert status == (0 if found and found.devices else 1)
    assert all(device.span.window_ns < 10_000 for device in (found.devices if found else []))
    if table == TABLES[0] and column in NEEDED and change in ("null", "text"):
        assert found is not None
        assert "3 events were left out" in captured.out + captured.err


@pytest.mark.parametrize("table", [*TABLES, "StringIds"])
def test_a_table_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    path = training_report(tmp_path / "report.sqlite")
    with sqlite3.connect(path) as database:
        database.execute(f'DROP TABLE "{table}"')
    database.close()
    status = main([str(path)])
    assert status == (1 if table == "StringIds" else 0)
    assert ("has no StringIds" in capsys.readouterr().err) == (table == "StringIds")


def test_a_report_that_ends_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(tmp_path / "report.sqlite")
    report.kernel("good", 0, 10, pid=1, correlation=1)
    report.kernel("bad", 20, 5, pid=1, correlation=2)
    report.kernel("far", 9 * 10**18, 9 * 10**18 + 5, pid=1, correlation=3)
    report.kernel("fine", 30, 35, pid=1, correlation=4)
    found = run(tmp_path, capsys, report.write())
    assert (found.devices[0].events, found.devices[0].span.window_ns) == (2, 35)
    assert sum("left out" in note for note in found.notes) == 2


@pytest.mark.parametrize("option", ["--events", "--output"])
def test_an_output_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    path = kineto(tmp_path / "trace.json", GOOD)
    assert main([str(path), option, str(path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"{path / 'out'} cannot be written (")


def test_a_failed_breakdown_exits_with_1_unless_its_status_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = kineto(tmp_path / "trace.json", [complete("user_annotation", "phase:step", 0, 10)])
    assert main([str(path)]) == 1
    damaged = tmp_path / "damaged.json"
    damaged.write_text("{")
    output = tmp_path / "out.json"
    assert main([str(damaged), "--keep-status", "--output", str(output)]) == 0
    found = Breakdown.model_validate_json(output.read_text())
    assert found.status == "failed"
    assert "not a torch.profiler trace" in (found.reason or "")


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert f"{tmp_path} holds no traces" in capsys.readouterr().err
