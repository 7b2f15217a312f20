"""One file of all ranks for a viewer: clocks, tracks, and the rules of Perfetto's importer."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfetto_import import imported
from traces import event_table, kineto, mark, on_device, talk, training_report, work

from transformer_core.trace.__main__ import main
from transformer_core.trace.events.arrow import write_events
from transformer_core.trace.events.clocks import Window, clock_offsets
from transformer_core.trace.events.event_table import Events, rows_of
from transformer_core.trace.events.process import TraceError
from transformer_core.trace.perfetto import write
from transformer_core.trace.readers.files import read_files


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


def test_all_ranks_with_their_tracks(tmp_path):
    path = tmp_path / "all.json.gz"
    write(path, event_table([*rank_rows(0), *rank_rows(1)]))
    found = imported(path)
    assert found.tracks("rank 1") == [
        *("steps", "phases", "layers of thread 1", "waits for devices"),
        *("cuda:0 stream 7", "cuda:0 stream 7 (2)", "cuda:0 stream 20"),
        *("cuda:0 contraction", "cuda:0 element_wise", "cuda:0 communication"),
    ]
    (gemm,) = found.track("rank 1", "cuda:0 stream 7")
    assert (gemm.name, gemm.category, gemm.t0, gemm.t1) == ("gemm", "device compute", 1000, 2000)
    assert gemm.args == {"operator": "aten::mm"}
    (layer,) = found.track("rank 1", "layers of thread 1")
    assert (layer.name, layer.args["layer"]) == ("a", "model/a")
    assert found.counters[1, "cuda:0 allocated (bytes) value"] == [(700, 4096)]
    # 1,000 bytes in a microsecond, then in half of one.
    rates = [(5000, 1_000_000_000), (6000, 0), (6500, 2_000_000_000), (7000, 0)]
    assert found.counters[1, "cuda:0 communication (bytes/s) value"] == rates


@pytest.mark.parametrize(("late", "expected"), [(0, 0), (300, 0), (5_000_000, -5_000_000)])
def test_clocks_are_set_by_collectives_that_do_not_overlap(late, expected):
    rows = rows_of(event_table([*rank_rows(0), *rank_rows(1, late)]))
    first, second = clock_offsets(rows.work)
    assert (first.nanoseconds, second.nanoseconds) == (0, expected)
    assert second.matched == 2


def test_a_window_is_the_same_moment_on_the_clocks_of_all_ranks():
    late = 5_000_000
    events = event_table([*rank_rows(0), *rank_rows(1, late)])
    work = rows_of(Window(0.0052, 0.0066).of(events)).work
    # The first event begins at 1,000 ns: from 6,200 to 7,600 ns.
    found = [
        (rank, *zip(mine["t0_ns"], mine["t1_ns"], strict=True)) for rank, mine in work.parts("rank")
    ]
    assert found == [
        (0, (6200, 7000), (7500, 7600)),
        (1, (late + 6200, late + 7000), (late + 7500, late + 7600)),
    ]


def test_the_command(tmp_path, capsys):
    events, output = tmp_path / "events.parquet", tmp_path / "all.json.gz"
    write_events(events, event_table([*rank_rows(0), *rank_rows(1, 5_000_000)]))
    assert main(["perfetto", str(events), "--output", str(output)]) == 0
    assert "rank 1: clock moved by -5.000 ms, to fit 2 collectives" in capsys.readouterr().err
    # At the same time where Perfetto shows them.
    streams = (imported(output).track(f"rank {rank}", "cuda:0 stream 20") for rank in range(2))
    first, second = ([(one.t0, one.t1) for one in stream] for stream in streams)
    assert first == second
    first = output.read_bytes()
    # The peaks of memory, too.
    assert main(["memory", str(events), "--output", str(tmp_path / "memory.svg")]) == 0
    assert capsys.readouterr().out.count("most 4.1 kB at 0.001 ms") == 2
    assert main(["perfetto", str(events), "--output", str(output)]) == 0
    assert output.read_bytes() == first, "the same file for the same events"
    rows = on_device("kernel", "sgemm", 0, 5, 1), on_device("gpu_memcpy", "Memcpy HtoD", 5, 9, 2)
    trace = kineto(tmp_path / "trace.json", rows)
    for path in (output, tmp_path / "all.json"):
        assert main(["perfetto", str(trace), "--output", str(path)]) == 0
        tracks = ["cuda:0 stream 7", "cuda:0 contraction", "cuda:0 memcpy"]
        assert imported(path).tracks("rank 0") == tracks
        with pytest.raises(TraceError, match="no traceEvents of the profiler"):
            read_files([path])


def test_clocks_that_nothing_compares_are_told(tmp_path, capsys):
    """The times of such ranks may be those of different moments."""
    events, output = tmp_path / "events.parquet", tmp_path / "all.json.gz"
    alone = [row for row in rank_rows(1, 5_000_000) if not row.get("collective")]
    note = "rank 1 has no collective in common with rank 0"
    for rows, told in ((alone, True), (rank_rows(1), False)):
        write_events(events, event_table([*rank_rows(0), *rows]))
        for command in (["perfetto", "--output", str(output)], ["--from", "0.001"]):
            assert main([*command, str(events)]) == 0
            assert (note in " ".join("".join(capsys.readouterr()).split())) == told
    assert main([str(events)]) == 0
    assert note not in capsys.readouterr().out, "without a window, no times of ranks are compared"


def test_files_that_cannot_be_drawn(tmp_path, capsys):
    (tmp_path / "text.parquet").write_text("no table")
    for name in ("missing.parquet", "text.parquet", "missing.json"):
        assert main(["perfetto", str(tmp_path / name), "--output", str(tmp_path / "out.json")]) == 1
        assert name in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def held(path: Path, events: Events) -> None:
    """The slices of streams are the device events, to the nanosecond."""
    found, rows = imported(path), rows_of(events)
    assert len(found.processes) == len(np.unique(rows["rank"]))
    streams = [key for key, name in found.threads.items() if " stream " in name]
    shown = Counter((one.name, one.t1 - one.t0) for key in streams for one in found.slices[key])
    work = zip(rows.work["name"].tolist(), rows.work.durations.tolist(), strict=True)
    assert shown == Counter(work)


def test_awkward_times_stay_exact(tmp_path):
    """Touching, empty, nested and crossing events, also late ones."""
    times = [(1, 1_000_001), (1, 1), (1_000_001, 1_000_002), (1_000_002, 4_000_003)]
    times += [(2_000_001, 2_000_001), (2_000_001, 5_000_007), (5_000_007, 5_000_009)]
    late = 86_400 * 10**9
    times += [(late + t0, late + t1) for t0, t1 in times]
    rows = [work(f"k{place}", *time) for place, time in enumerate(times)]
    events = event_table([*rows, *(row | {"rank": 3} for row in rows)])
    write(tmp_path / "all.json", events)
    held(tmp_path / "all.json", events)


def test_reports_of_nsight_systems(tmp_path):
    events = read_files([training_report(tmp_path / "r.sqlite", pids=(100, 200))]).events
    write(tmp_path / "all.json", events)
    held(tmp_path / "all.json", events)
