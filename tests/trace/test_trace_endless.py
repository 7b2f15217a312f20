"""Files that would take endless time or memory, or are not traces, are refused."""

import gzip
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from traces import (
    changed_report,
    complete,
    kineto,
    launch,
    of_rank,
    on_device,
    table_in,
    training_report,
)

from schemas.errors import ConfigError
from transformer_core.trace.__main__ import main
from transformer_core.trace.readers import kineto_events, nsys
from transformer_core.trace.readers.files import read_files
from transformer_core.trace.readers.nsys import read_nsys

COUNTING = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"


@pytest.mark.parametrize("table", ["StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"])
def test_views_in_place_of_tables_are_refused(tmp_path, table):
    path = changed_report(
        tmp_path / "report.sqlite",
        f'DROP TABLE "{table}"',
        f'CREATE VIEW "{table}" AS {COUNTING} SELECT x AS id, x AS start, x AS "end", 1 AS deviceId, '
        "1 AS streamId, 59 AS eventType, 1 AS globalTid, 'x' AS value, 'x' AS text FROM c",
    )
    with pytest.raises(ConfigError, match=f"has a view in place of the table {table}"):
        read_nsys(path)


def test_reading_stops_if_it_takes_too_much_work(tmp_path, monkeypatch):
    monkeypatch.setattr(nsys._Report, "_spent", lambda report: True)
    monkeypatch.setattr(nsys, "_WORK_AT_ONCE", 1)
    with pytest.raises(ConfigError, match="takes more work to read than its size explains"):
        read_nsys(training_report(tmp_path / "report.sqlite"))


def test_a_text_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(nsys, "_LONGEST_TEXT", 1 << 20)
    long = "UPDATE NVTX_EVENTS SET text = hex(zeroblob(600000)) WHERE _rowid_ = 3"
    path = changed_report(tmp_path / "report.sqlite", long)
    with pytest.raises(ConfigError, match="holds a text of more than 1 MB in NVTX_EVENTS"):
        read_nsys(path)


def test_long_texts_are_read_a_few_at_once(tmp_path, monkeypatch):
    long = "UPDATE NVTX_EVENTS SET text = 'layer:' || hex(zeroblob(2000)) WHERE _rowid_ > 4"
    path = changed_report(tmp_path / "report.sqlite", long)
    whole = table_in(path)
    monkeypatch.setattr(nsys, "_LONGEST_TEXT", 6000)
    assert table_in(path).equals(whole)


ROW = 'INSERT INTO NVTX_EVENTS (start, "end", eventType, globalTid, text, textId) VALUES '
ODD = {
    "rows far from each other": "UPDATE NVTX_EVENTS SET _rowid_ = _rowid_ * 1000000000000",
    "rows before the first": "UPDATE NVTX_EVENTS SET _rowid_ = -_rowid_",
    "separators in texts": "UPDATE NVTX_EVENTS SET text = replace(text, ', sizes', char(31, 30) || ', sizes')",
    "a number of no text": f"{ROW} (5, 6, 59, 1, NULL, 99999999)",
    "a time with a point": f"{ROW} (5.5, 6, 59, 1, 'x', NULL)",
    "a time in words": f"{ROW} ('noon', '1,2', 59, 1, 'x', NULL)",
}


def test_unusual_rows_do_not_change_others(tmp_path):
    usual = table_in(training_report(tmp_path / "usual.sqlite"))
    for name, statement in ODD.items():
        odd = table_in(changed_report(tmp_path / "report.sqlite", statement))
        kept = [column for column in usual.column_names if column != "operator"]
        if name == "rows before the first":
            kept = ["t0_ns", "t1_ns", "kind", "phase"]
        for column in kept:
            one, other = (table.column(column).to_pylist() for table in (usual, odd))
            assert sorted(map(str, one)) == sorted(map(str, other)), (name, column)


KERNEL = json.dumps(on_device("kernel", "sgemm", 1, 2, 1))
OPERATOR = json.dumps(complete("cpu_op", "aten::mm", 1, 5))


def packed(name: str, content: bytes) -> bytes:
    """A tar archive of one file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


SPACES = b" " * 300_000
WHOLE = f'{{"schemaVersion": 1, "traceEvents": [{KERNEL}]}}'.encode()
REFUSED = {
    "empty": (b"", "is empty"),
    "text": (b"hello", "not a torch.profiler trace"),
    "null": (b"null", "not a torch.profiler trace"),
    "events that are null": (b'{"schemaVersion": 1, "traceEvents": null}', "no traceEvents"),
    "no events": (b'{"schemaVersion": 1, "traceEvents": []}', "no traceEvents"),
    "no events of the profiler": (
        b'{"traceEvents": [{"ph": "X", "name": "fusion", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}',
        "no traceEvents of the profiler",
    ),
    "half": (WHOLE[: len(WHOLE) // 2], "damaged or cut off"),
    "no end": (WHOLE[:-1], "damaged or cut off"),
    "two ends": (WHOLE + b"}", "damaged or cut off"),
    "half of gzip": (gzip.compress(WHOLE * 9)[:-9], "damaged or cut off"),
    "gzip of nothing": (b"\x1f\x8b", "damaged or cut off"),
    "a report itself": (b"NVIDIA Tegra Profiler Report 1.\x0a", "nsys export --type=sqlite"),
    "sqlite's first words": (b"SQLite format 3\0", "damaged, or not a report"),
    "sqlite and noise": (b"SQLite format 3\0" + b"\x07" * 5000, "damaged, or not a report"),
    "deep": (b'{"traceEvents": [' + b"[" * 100_000, "damaged or cut off"),
    "deep and whole": (
        f'[{KERNEL}, {{"args": {"[" * 20_000 + "]" * 20_000}}}]'.encode(),
        "contains lists nested hundreds deep",
    ),
    "a zip archive": (b"PK\x03\x04" + WHOLE, "is a zip archive: unpack it first: unzip"),
    "zstd": (b"\x28\xb5\x2f\xfd" + WHOLE, "is compressed with zstd"),
    "text of UTF-32": (b"\xff\xfe\0\0" + WHOLE, "is UTF-32 text"),
    "text of UTF-16": (b"\xff\xfe" + WHOLE, "is UTF-16 text"),
    "spaces before the events": (b'{"traceEvents"' + SPACES + WHOLE[1:], "no traceEvents in"),
    "spaces within gzip": (gzip.compress(b'{"a":' + 10 * SPACES), "no traceEvents in its first"),
    "a text that never ends": (b'{"traceEvents": [{"name": "' + b"x" * 900_000, "cut off"),
    "two lists of events": (WHOLE[:-1] + b"," + WHOLE[21:], "holds two lists of events"),
    "a list of numbers": (b"[1, 2, 3]", "it is a list, but not of events"),
    "events that are numbers": (b'{"traceEvents": [1, 2]}', "something other than events"),
    "a tar archive": (packed("trace.json", WHOLE), "is a tar archive: unpack it first"),
    "a packed tar archive": (gzip.compress(packed("trace.json", WHOLE)), "is a tar archive"),
    "a table": (b"PAR1" + bytes(9), "is a Parquet table"),
    "an accelerator that is not read": (
        f"[{OPERATOR}, {KERNEL.replace('kernel', 'mtia_ccp_events')}]".encode(),
        "comes from an accelerator whose events are not supported",
    ),
    "ranks in one file": (
        json.dumps([launch(1, 3), launch(1, 3) | {"pid": 43}, json.loads(KERNEL)]).encode(),
        "holds events of 2 processes",
    ),
    "many devices": (
        json.dumps([on_device("kernel", "k", 1, 2, k, device=k) for k in range(2_049)]).encode(),
        "names 2,049 devices, more than the limit of 2,048",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_refused(tmp_path, name, monkeypatch, capsys):
    monkeypatch.setattr(kineto_events, "_LONGEST", 200_000)
    monkeypatch.setattr(kineto_events, "_CHUNK", 50_000)
    path = tmp_path / "trace.json"
    path.write_bytes(REFUSED[name][0])
    assert main([str(path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(str(path)), said
    assert REFUSED[name][1] in said
    assert said.count("\n") == 1
    assert "None" not in said


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="is not a regular file and may never end"):
            read_files([path])


@pytest.mark.parametrize("field", ["ts", "dur"])
@pytest.mark.parametrize("value", ["1e999999999", "1e-999999999", "-1e999999999"])
def test_times_with_endless_digits(tmp_path, field, value):
    bad = KERNEL.replace(f'"{field}": {1 if field == "ts" else 2}', f'"{field}": {value}')
    exact = KERNEL.replace('"ts": 1', '"ts": 5000000000000.5')
    path = tmp_path / "trace.json"
    path.write_text(f"[{KERNEL}, {bad}, {bad}, {exact}]")
    assert 1 <= table_in(path).num_rows <= 3


@pytest.mark.parametrize("head", ["", "\ufeff", " \n" * 9])
@pytest.mark.parametrize("end", ["", ",", " , \n"])
def test_bare_lists_and_edited_traces_are_read(tmp_path, head, end):
    path = tmp_path / "trace.json"
    events = f"[{KERNEL}{end}]"
    for text in (f"{head}{events}", f'{head}{{"traceEvents": {events}}}'):
        for content in (text.encode(), gzip.compress(text.encode())):
            path.write_bytes(content)
            assert table_in(path).num_rows == 1


def test_an_xpu(tmp_path):
    """Its contexts are texts and its queues have their own name; a copy names host memory M."""
    told = {"context": "0x000055d08918fc78", "sycl queue": 64, "l0 queue": "0x1", "device": 0}
    rows = [
        complete("user_annotation", "xccl:all_reduce", 20, 9),
        complete("xpu_runtime", "urEnqueueKernelLaunch", 1, 1, correlation=1),
        complete("xpu_runtime", "urEnqueueKernelLaunch", 21, 1, correlation=2),
    ]
    for name, at, number in (("gemm_kernel", 5, 1), ("a_name_that_says_nothing", 30, 2)):
        rows.append(
            complete("kernel", name, at, 5, correlation=number, tid=64, **told) | {"pid": 0}
        )
    copy = complete("gpu_memcpy", "Memcpy M2D (Memory -> Device)", 50, 5, tid=64, **told)
    table = table_in(kineto(tmp_path / "trace.json", [*rows, copy | {"pid": 0}]))
    for column, found in {
        "device": ["xpu:0"] * 3,
        "stream": [64] * 3,
        "context": [0x55D08918FC78] * 3,
        "class": ["compute", "communication", "memcpy"],
        "collective": [None, "all_reduce", None],
        "copy_kind": [None, None, "h2d"],
    }.items():
        assert table.column(column).to_pylist() == found
    path = kineto(tmp_path / "trace.json", [json.loads(OPERATOR), *rows[:3]])
    with pytest.raises(ConfigError, match="but no kernels"):
        table_in(path)


def ranks(folder: Path, prefix: str, ranks: int, begin: int) -> list[str]:
    """The traces of a training."""
    names = [f"{prefix}{rank}.json" for rank in range(ranks)]
    for rank, name in enumerate(names):
        kernel = on_device("kernel", prefix, begin + rank, 5, 1)
        kineto(folder / name, [kernel], **of_rank(rank, ranks))
    return names


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3)])
def test_two_trainings_in_a_folder_are_refused(tmp_path, sizes):
    first = ranks(tmp_path, "x", sizes[0], 10)
    second = ranks(tmp_path, "a", sizes[1], 5000)
    with pytest.raises(ConfigError, match="these are 2 recordings") as refused:
        read_files([tmp_path])
    assert f"({', '.join(first)}; {', '.join(second)})" in str(refused.value)
    assert len(table_in(*(tmp_path / name for name in second))) == sizes[1]


def test_other_files_in_a_folder_are_left_out(tmp_path, capsys):
    ranks(tmp_path, "r", 2, 0)
    (tmp_path / "config.json").write_text('{"learning_rate": 1}')
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "logs.gz").write_bytes(gzip.compress(b"epoch 1"))
    for name in ("README.md", "report1.nsys-rep", ".hidden.json", "one.json", "same.json"):
        (tmp_path / name).write_text("x")
    reading = read_files([tmp_path])
    assert [path.name for path in reading.files] == ["r0.json", "r1.json"]
    told = "\n".join(reading.notes)
    for words in (
        "config.json was left out: it is not a torch.profiler trace",
        "empty.json was left out: it is empty",
        "logs.gz was left out",
        "left out, since their names do not end in .json, .gz, .sqlite: README.md, report1.nsys-rep",
        "nsys export --type=sqlite",
    ):
        assert words in told
    assert "hidden" not in told
    assert main(["perfetto", str(tmp_path), "--output", str(tmp_path / "all.json.gz")]) == 0
    assert "note: empty.json was left out: it is empty" in capsys.readouterr().err
    for name, words in (("config.json", "not a torch"), ("report1.nsys-rep", "nsys export")):
        with pytest.raises(ConfigError, match=words):
            read_files([tmp_path / name])
    half = tmp_path / "r0.json"
    half.write_bytes(half.read_bytes()[:-9])
    with pytest.raises(ConfigError, match="damaged or cut off"):
        read_files([tmp_path])


def test_a_folder_without_any_trace(tmp_path):
    (tmp_path / "report1.nsys-rep").write_text("x")
    with pytest.raises(ConfigError, match=r"holds no traces .*report1.*nsys export --type=sqlite"):
        read_files([tmp_path])
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"holds no traces: .*config\.json is not a torch"):
        read_files([tmp_path])
