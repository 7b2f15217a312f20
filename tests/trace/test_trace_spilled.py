"""What waits in files comes back as it was: from memory, from a disk, or from one without room."""

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from traces import complete, event_table, kineto, on_device, work

from transformer_core.common.tables import read_table
from transformer_core.trace.events.arrow import events_of, write_events
from transformer_core.trace.events.columns import NULL, Columns, Spill, Spilled
from transformer_core.trace.events.event_table import Events, rows_of

LARGE = 200_000


@pytest.mark.parametrize("in_memory", [0, 1000, 1 << 30])
def test_arrays_come_back(in_memory: int) -> None:
    kinds = (np.uint8, np.uint16, np.uint32, np.int64)
    arrays = [np.arange(1000 * k, 1000 * k + 300).astype(kind) for k, kind in enumerate(kinds)]
    spill = Spill(in_memory)
    kept = [spill.keep(values) for values in arrays]
    for values, one in zip(arrays, kept, strict=True):
        for again in (one, pickle.loads(pickle.dumps(one))):
            found = again.read() if isinstance(again, Spilled) else again
            assert found.dtype == values.dtype
            assert found.tolist() == values.tolist()


def test_columns_beyond_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Spill(0)
    monkeypatch.setattr("transformer_core.trace.events.columns.spill", lambda: few)
    values = np.random.default_rng(5).integers(0, 2**40, LARGE)
    values[::7] = NULL
    columns = Columns("a", "b")
    columns.extend(LARGE, a=values, b=3)
    assert (columns["a"] == values).all()
    assert (columns["b"] == 3).all()
    places = np.array([LARGE - 1, 5, 70_000, 5])
    assert (columns.take("a", places) == values[places]).all()
    columns.keep(values != NULL)
    assert (columns["a"] == values[values != NULL]).all()


def full(*arguments: object, **more: object) -> None:
    raise OSError(28, "No space left on device")


def test_without_room_on_the_disk_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", full)
    for name in ("some room", "none"):
        assert list(Spill(0).keep(np.arange(5))) == [0, 1, 2, 3, 4], name
        monkeypatch.setattr(tempfile, "TemporaryFile", full)


ANONYMOUS = """
import sys, threading, time
from transformer_core.trace.__main__ import main
peak, done = 0, threading.Event()
def watch():
    global peak
    while not done.wait(0.002):
        text = open("/proc/self/status").read()
        peak = max(peak, int(text.partition("RssAnon:")[2].split()[0]))
watch_it = threading.Thread(target=watch)
watch_it.start()
main([sys.argv[1]])
done.set()
watch_it.join()
print(peak)
"""


def peak(path: Path) -> int:
    """Peak of anonymous memory of a process that reads a trace, in KiB."""
    done = subprocess.run(
        [sys.executable, "-c", ANONYMOUS, str(path)], capture_output=True, text=True, check=True
    )
    return int(done.stdout.splitlines()[-1])


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="needs Linux",
)
def test_operators_and_launches_take_no_memory(tmp_path: Path) -> None:
    """Of the host's events there may be as many as one likes; those of the device are few."""
    kernels = [on_device("kernel", "sgemm", 10, 20, 1)]
    small = kineto(tmp_path / "small.json", kernels)
    rows = [complete("cpu_op", f"aten::op{k % 50}", 3 * k, 2, tid=k % 3) for k in range(400)]
    rows += [complete("cuda_runtime", "cudaMalloc", 3 * k, 1, correlation=k) for k in range(400)]
    text = kineto(tmp_path / "part.json", rows).read_text()
    events = text[text.index("[") + 1 : text.rindex("]")]
    large = tmp_path / "large.json"
    whole = small.read_text()
    large.write_text(whole.replace('"traceEvents": [', '"traceEvents": [' + (events + ",") * 1500))
    # 600,000 operators of six columns and as many launches of three.
    assert large.stat().st_size > 100_000_000
    assert peak(large) - peak(small) < 16_000


def test_a_table_is_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = event_table([work(f"k{n % 5}", 10 * n, 10 * n + n) for n in range(50)])
    events = events_of(rows)
    write_events(tmp_path / "whole.parquet", events)
    monkeypatch.setattr("transformer_core.trace.events.arrow._ROWS", 16)
    write_events(tmp_path / "parts.parquet", events)
    write_events(tmp_path / "none.parquet", Events())
    whole, parts = (read_table(tmp_path / f"{name}.parquet") for name in ("whole", "parts"))
    assert parts.column("name").num_chunks > 1
    assert parts.to_pylist() == whole.to_pylist() == rows.to_pylist()
    assert read_table(tmp_path / "none.parquet").schema == rows.schema
    # What reads it again numbers the texts of each part anew.
    assert list(rows_of(parts)["name"]) == [row["name"] for row in rows.to_pylist()]
