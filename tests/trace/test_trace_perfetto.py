"""One file of all ranks for a viewer: what the Trace Event Format asks for, clocks, tracks."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from traces import event_table, kineto, mark, on_device, talk, work

from transformer_core.trace.__main__ import main
from transformer_core.trace.events.arrow import write_events
from transformer_core.trace.events.event_table import rows_of
from transformer_core.trace.perfetto import clock_offsets, write

NUMBER = {"type": "number"}
WHOLE = {"type": "integer"}
SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["ph", "name", "pid"],
                "properties": {
                    "ph": {"enum": ["X", "M", "C"]},
                    "name": {"type": "string", "minLength": 1},
                    "cat": {"type": "string"},
                    "pid": WHOLE,
                    "tid": WHOLE,
                    "ts": NUMBER | {"minimum": 0},
                    "dur": NUMBER | {"minimum": 0},
                    "args": {"type": "object"},
                },
                "additionalProperties": False,
                "oneOf": [
                    {"properties": {"ph": {"const": "X"}}, "required": ["ts", "dur", "tid"]},
                    {
                        "properties": {
                            "ph": {"const": "M"},
                            "name": {
                                "enum": [
                                    *("process_name", "process_sort_index"),
                                    *("thread_name", "thread_sort_index"),
                                ]
                            },
                        },
                        "required": ["args"],
                    },
                    {
                        "properties": {
                            "ph": {"const": "C"},
                            "args": {"type": "object", "additionalProperties": NUMBER},
                        },
                        "required": ["ts", "args"],
                    },
                ],
            },
        },
    },
}
"""Of the Trace Event Format, what these files use of it."""


def rank_rows(rank: int, late: int = 0) -> list[dict[str, Any]]:
    usual = {"rank": rank}
    rows = [
        mark("step", 1000, 9000, step=0, **usual),
        mark("forward", 1500, 4000, phase="forward", step=0, **usual),
        mark("model/a", 1600, 2000, kind="module", layer="model/a", thread=1, bytes=8, **usual),
        mark("", 5000, 5500, kind="wait", thread=1, **usual),
        {"kind": "memory", "name": None, "t0_ns": 1700, "t1_ns": 1700, "bytes": 4096, **usual},
        work("gemm", 2000, 3000, operator_class="contraction", operator="aten::mm", **usual),
        work("gelu", 2900, 3400, operator_class="element_wise", **usual),  # crosses the other
        talk("all_reduce", 6000, 7000, bytes=1000, stream=20, **usual),
        talk("all_reduce", 7500, 8000, bytes=1000, stream=20, **usual),
    ]
    for row in rows:
        row["t0_ns"] += late
        row["t1_ns"] += late
    return rows


def drawn(path: Path) -> list[dict[str, Any]]:
    content = json.loads(gzip.decompress(path.read_bytes()))
    jsonschema.validate(content, SCHEMA)
    found: list[dict[str, Any]] = content["traceEvents"]
    return found


def tracks(events: list[dict[str, Any]], rank: int) -> dict[str, list[dict[str, Any]]]:
    names = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name" and event["pid"] == rank
    }
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["pid"] == rank:
            found[names[event["tid"]]].append(event)
    return dict(found)


def test_all_ranks_with_their_tracks(tmp_path: Path) -> None:
    path = tmp_path / "all.json.gz"
    write(path, event_table([*rank_rows(0), *rank_rows(1)]))
    events = drawn(path)
    found = tracks(events, 1)
    assert list(found) == [
        *("steps", "phases", "layers of thread 1", "waits for devices"),
        *("cuda:0 stream 7", "cuda:0 stream 7 (2)", "cuda:0 stream 20"),
        *("cuda:0 contraction", "cuda:0 element_wise", "cuda:0 communication"),
    ]
    (gemm,) = found["cuda:0 stream 7"]
    assert (gemm["name"], gemm["cat"], gemm["ts"], gemm["dur"]) == ("gemm", "compute", 1.0, 1.0)
    assert gemm["args"] == {"operator": "aten::mm"}
    assert found["layers of thread 1"][0]["name"] == "a"
    assert found["layers of thread 1"][0]["args"]["layer"] == "model/a"
    counters = defaultdict(list)
    for event in events:
        if event["ph"] == "C" and event["pid"] == 1:
            counters[event["name"]].append((event["ts"], event["args"]["value"]))
    assert counters["cuda:0 allocated (bytes)"] == [(0.7, 4096)]
    # 1,000 bytes in a microsecond, then in half of one.
    assert counters["cuda:0 communication (bytes/s)"] == [
        *((5.0, 1_000_000_000), (6.0, 0), (6.5, 2_000_000_000), (7.0, 0))
    ]


def test_events_of_a_track_lie_in_each_other_or_apart(tmp_path: Path) -> None:
    path = tmp_path / "all.json.gz"
    crossing = [work("k", t0, t0 + 25) for t0 in range(0, 100, 10)]
    nested = [work("outer", 200, 300), work("inner", 210, 250), work("next", 300, 310)]
    write(path, event_table([*crossing, *nested]))
    lanes = tracks(drawn(path), 0)
    assert sum(map(len, lanes.values())) == 13
    assert len(lanes) == 3
    for events in lanes.values():
        open_ends: list[float] = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            begin, end = event["ts"], event["ts"] + event["dur"]
            while open_ends and open_ends[-1] <= begin + 1e-9:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 1e-9
            open_ends.append(end)


@pytest.mark.parametrize(("late", "expected"), [(0, 0), (300, 0), (5_000_000, -5_000_000)])
def test_clocks_are_set_by_collectives_that_do_not_overlap(late: int, expected: int) -> None:
    rows = rows_of(event_table([*rank_rows(0), *rank_rows(1, late)]))
    first, second = clock_offsets(rows.work)
    assert (first.nanoseconds, second.nanoseconds) == (0, expected)
    assert second.matched == 2


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, output = tmp_path / "events.parquet", tmp_path / "all.json.gz"
    write_events(events, event_table([*rank_rows(0), *rank_rows(1, 5_000_000)]))
    assert main(["perfetto", str(events), "--output", str(output)]) == 0
    assert "rank 1: clock set by -5.000 ms, after 2 collectives" in capsys.readouterr().out
    first = output.read_bytes()
    assert main(["perfetto", str(events), "--output", str(output)]) == 0
    assert output.read_bytes() == first, "the same file for the same events"
    trace = kineto(tmp_path / "trace.json", [on_device("kernel", "sgemm", 0, 5, 1)])
    assert main(["perfetto", str(trace), "--output", str(output)]) == 0
    assert list(tracks(drawn(output), 0)) == ["cuda:0 stream 7", "cuda:0 contraction"]
    plain = tmp_path / "all.json"
    assert main(["perfetto", str(trace), "--output", str(plain)]) == 0
    jsonschema.validate(json.loads(plain.read_text()), SCHEMA)


@pytest.mark.parametrize("name", ["missing.parquet", "text.parquet", "missing.json"])
def test_files_that_cannot_be_drawn(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.parquet").write_text("no table")
    assert main(["perfetto", str(tmp_path / name), "--output", str(tmp_path / "out.json")]) == 1
    assert name in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
