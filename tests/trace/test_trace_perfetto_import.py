"""The files for Perfetto under the rules of its importer: nothing refused, moved or lost."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfetto_import import Refused, imported
from traces import event_table, mark, talk, training_report, work

from transformer_core.trace.events.arrow import events_of
from transformer_core.trace.events.event_table import Events, rows_of
from transformer_core.trace.perfetto import write
from transformer_core.trace.readers.files import read_files

FOLDER = os.environ.get("TRANSFORMER_STUDY_TRACES")
SAMPLES = {
    "eight ranks": "kineto/param_dlrm_8ranks/*.gz",
    "one rank": "kineto/tracelens_h100_qwen0.5b_1gpu.json.gz",
    "two GPUs": "nsys/nsysai_h100_2gpu_1s.sqlite",
    "a CUDA graph": "nsys/flameox_nsight_2025.5.2_graph.sqlite",
}


def held(path: Path, events: Events) -> None:
    """The slices of streams are the device events, to the nanosecond."""
    found, rows = imported(path), rows_of(events)
    assert len(found.processes) == len(np.unique(rows["rank"]))
    work = rows.work
    shown = Counter((s.name, s.t1 - s.t0) for s in _of_streams(found))
    assert shown == Counter(zip(work["name"].tolist(), work.durations.tolist(), strict=True))


def _of_streams(found: Any) -> list[Any]:
    streams = [key for key, name in found.threads.items() if " stream " in name]
    return [one for key in streams for one in found.slices[key]]


def test_awkward_times_stay_what_they_are(tmp_path: Path) -> None:
    """Ends that touch begins, events without length, nested and crossing ones, after long times."""
    times = [(1, 1_000_001), (1, 1), (1_000_001, 1_000_002), (1_000_002, 4_000_003)]
    times += [(2_000_001, 2_000_001), (2_000_001, 5_000_007), (5_000_007, 5_000_009)]
    late = 86_400 * 10**9
    times += [(late + t0, late + t1) for t0, t1 in times]
    rows = [work(f"k{place}", *time) for place, time in enumerate(times)]
    events = events_of(event_table([*rows, *(row | {"rank": 3} for row in rows)]))
    write(tmp_path / "all.json", events)
    held(tmp_path / "all.json", events)


def test_ranks_are_aligned_where_perfetto_shows_them(tmp_path: Path) -> None:
    rows = []
    for rank, late in ((0, 0), (1, 7_000_000)):
        usual = {"rank": rank, "stream": 20, "bytes": 1000}
        rows += [
            mark("step", late + 500, late + 9000, step=0, rank=rank),
            talk("all_reduce", late + 1000 + 100 * rank, late + 2001, **usual),
            talk("all_reduce", late + 3001, late + 4001 + 7 * rank, **usual),
        ]
    write(tmp_path / "all.json.gz", event_table(rows))
    found = imported(tmp_path / "all.json.gz")
    first, second = (found.track(f"rank {rank}", "cuda:0 stream 20") for rank in range(2))
    for one, other in zip(first, second, strict=True):
        assert min(one.t1, other.t1) > max(one.t0, other.t0)
    values = found.counters[1, "cuda:0 communication (bytes/s) value"]
    assert [value > 0 for _, value in values] == [True, False] * 2


def test_reports_of_nsight_systems(tmp_path: Path) -> None:
    events = read_files([training_report(tmp_path / "r.sqlite", pids=(100, 200))]).events
    write(tmp_path / "all.json", events)
    held(tmp_path / "all.json", events)


@pytest.mark.skipif(not FOLDER, reason="TRANSFORMER_STUDY_TRACES names no folder")
@pytest.mark.parametrize("name", SAMPLES)
def test_real_traces(tmp_path: Path, name: str) -> None:
    events = read_files(sorted(Path(str(FOLDER)).glob(SAMPLES[name]))).events
    write(tmp_path / "all.json", events)
    held(tmp_path / "all.json", events)


CROSSING = {"ph": "X", "name": "a", "pid": 1, "tid": 2, "ts": 0, "dur": 5, "args": {}}
NAMED = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "t"}}
WRONG = {
    "crossing": [NAMED, CROSSING, CROSSING | {"ts": 2.5}],
    "unnamed": [CROSSING],
    "a process of 33 bits": [NAMED, CROSSING, NAMED | {"pid": 2**32}],
    "a duration that is missing": [NAMED, CROSSING | {"dur": None}],
    "a counter of text": [{"ph": "C", "name": "c", "pid": 1, "ts": 0, "args": {"value": "1"}}],
    "a thread that is its process": [NAMED | {"tid": 1}],
}


@pytest.mark.parametrize("name", WRONG)
def test_the_rules_refuse(tmp_path: Path, name: str) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": WRONG[name]}))
    with pytest.raises(Refused):
        imported(tmp_path / "t.json")
