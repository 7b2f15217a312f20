"""What of traces is read and listed: windows, kernels by name, event tables, files side by side."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from traces import complete, kineto, mark, on_device
from traces import event_table as table_of

from schemas.results import Breakdown
from transformer_core.trace.__main__ import main
from transformer_core.trace.events.arrow import events_of, integers, numbers, strings
from transformer_core.trace.events.arrow import table_of as arrow_table
from transformer_core.trace.events.event_table import Events, Window
from transformer_core.trace.events.process import TraceError
from transformer_core.trace.readers import files as reading
from transformer_core.trace.readers.files import read_files

ROWS = [
    complete("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1),
    on_device("kernel", "gemm_large", 0, 2000, 1),
    on_device("kernel", "gemm_small", 2000, 1000, 2),
    on_device("kernel", "softmax", 3000, 1000, 3),
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return kineto(tmp_path / "trace.json", ROWS)


def run(trace: Path, *arguments: str) -> Breakdown:
    output = trace.with_name("out.json")
    assert main([str(trace), "--output", str(output), *arguments]) == 0
    return Breakdown.model_validate_json(output.read_text())


def test_a_window_cuts_what_lies_across_its_edges(trace: Path) -> None:
    (device,) = run(trace, "--from", "1", "--to", "2.5").devices
    assert {kernel.name: kernel.time_ns for kernel in device.kernel_times} == {
        "gemm_large": 1_000_000,
        "gemm_small": 500_000,
    }
    assert device.span.window_ns == device.span.compute_ns == 1_500_000


def test_moments_and_launches_in_a_window() -> None:
    rows = [
        *({"kind": "memory", "name": "m", "t0_ns": t, "t1_ns": t, "bytes": t} for t in (0, 10, 20)),
        mark("forward", 0, 30, phase="forward"),
        {"name": "k", "class": "compute", "t0_ns": 12, "t1_ns": 15, "launch_ns": 3},
    ]
    found = arrow_table(Window(10e-6, 20e-6).of(events_of(table_of(rows)))).to_pylist()
    assert [(row["kind"], row["t0_ns"], row["t1_ns"]) for row in found] == [
        ("memory", 10, 10),
        ("range", 10, 20),
        ("kernel", 12, 15),
    ]
    assert found[-1]["launch_ns"] == 3


def test_a_window_without_events(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trace), "--from", "9000"]) == 1
    assert "holds no device event" in capsys.readouterr().err


def test_kernels_by_name(trace: Path) -> None:
    (device,) = run(trace, "--filter", "^gemm").devices
    assert [kernel.name for kernel in device.kernel_times] == ["gemm_large", "gemm_small"]
    assert device.kernel_times[0].share == 0.5, "of all kernels, listed or not"
    (device,) = run(trace, "--top", "1").devices
    assert [kernel.name for kernel in device.kernel_times] == ["gemm_large"]


@pytest.mark.parametrize("wrong", [("--filter", "("), ("--top", "0"), ("--from", "early")])
def test_wrong_choices(trace: Path, wrong: tuple[str, str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(trace), *wrong])


def test_an_event_table_stands_for_its_traces(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head: dict[str, Any] = {"distributedInfo": {"rank": 3, "world_size": 8}}
    trace = kineto(trace, [*ROWS, on_device("kernel", "backwards", 9, -1, 4)], **head)
    table = tmp_path / "events.parquet"
    first = run(trace, "--events", str(table))
    assert any("1 event was left out: they end before" in note for note in first.notes)
    again = run(table)
    same = {"viewer_files": [], "name": ""}
    assert again.model_copy(update=same) == first.model_copy(update=same)
    assert main(["diff", str(trace), str(table)]) == 0
    with pytest.raises(TraceError, match="is a table of Parquet: give an event table alone"):
        read_files([trace, table])


def _view_outside(table: pa.Table) -> pa.Table:
    """Texts whose numbers point behind the last of them."""
    place = table.schema.get_field_index("name")
    outside = pa.DictionaryArray.from_arrays(
        pa.array([99] * len(table), pa.int32()), pa.array(["a"]), safe=False
    )
    return table.set_column(place, "name", outside)


@pytest.mark.parametrize(
    "damage", [_view_outside, lambda table: table.drop_columns(["t0_ns"]), lambda _: None]
)
def test_event_tables_of_strangers(trace: Path, tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "events.parquet"
    table = damage(read_files([trace]).table)
    if table is None:
        path.write_bytes(b"PAR1" + bytes(64))
    else:
        with pytest.MonkeyPatch.context() as patch:
            # As a file cannot hold the first of these, what stands for its reader returns it.
            patch.setattr(pq, "read_table", lambda _: table)
            path.touch()
            with pytest.raises(TraceError, match="is not an event table"):
                read_files([path])
        return
    with pytest.raises(TraceError, match="is not an event table"):
        read_files([path])


def test_large_files_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = [{"distributedInfo": {"rank": rank, "world_size": 2}} for rank in range(2)]
    paths = [
        kineto(tmp_path / f"{k}.json", [on_device("kernel", f"k{k}", 0, 5, 1)], **head)
        for k, head in enumerate(heads)
    ]
    here = read_files(paths).table
    monkeypatch.setattr(reading, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr(reading, "_cores", lambda: 2)
    assert read_files(paths).table.to_pylist() == here.to_pylist()
    paths[1].write_text(json.dumps({"traceEvents": 3}))
    with pytest.raises(TraceError, match=r"1\.json is not a torch"):
        read_files(paths)


def test_reading_a_trace_imports_no_pandas(trace: Path) -> None:
    """It would take as long as reading a small trace, and as much memory."""
    code = "import sys; from transformer_core.trace.__main__ import main; main(sys.argv[1:])"
    code += "; print('pandas' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(trace)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_arrays_to_arrow_and_back() -> None:
    values, absent = np.arange(12), np.arange(12) % 5 == 0
    array = integers(values, pa.int32(), absent)
    assert array.to_pylist() == [None if n % 5 == 0 else n for n in range(12)]
    assert numbers(array.slice(3, 4), -1).tolist() == [3, 4, -1, 6]
    assert numbers(integers(values, pa.int64()).slice(10), -1).tolist() == [10, 11]
    assert strings(["ä", "", "b"]).to_pylist() == ["ä", "", "b"]
    assert strings([]).to_pylist() == numbers(pa.nulls(0, pa.int64()), 0).tolist() == []
    assert numbers(pa.nulls(3, pa.int64()), -7).tolist() == [-7, -7, -7]


def test_an_empty_table_has_no_window() -> None:
    assert len(Window(1.0, 2.0).of(Events())) == 0
