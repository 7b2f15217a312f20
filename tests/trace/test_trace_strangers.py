"""What traces of others hold that those at hand do not: found in public sample traces."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from traces import complete, kineto, on_device

from schemas.errors import ConfigError
from transformer_core.trace.__main__ import main
from transformer_core.trace.events.event_table import rows_of
from transformer_core.trace.readers.files import read_files
from transformer_core.trace.readers.kineto import read_kineto


def test_times_are_exact_between_events_without_a_time(tmp_path: Path) -> None:
    """A sample of the events that meets only arrows must not decide that doubles will do."""
    ts = 4_458_676_422_880.181
    rows: list[dict[str, Any]] = []
    for place in range(256):
        arrow = {"ph": "s", "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "id": place}
        rows += [arrow, *[on_device("kernel", "k", ts + 9 * place, 1, place)] * (place % 2)]
        rows += [arrow | {"ph": "f"}] * (2 - place % 2)
    (trace,) = read_kineto(kineto(tmp_path / "t.json", rows)).processes
    wanted = [round(Decimal(str(row["ts"])) * 1000) for row in rows if row["ph"] == "X"]
    assert trace.device["t0"].tolist() == wanted


def test_launches_of_other_runtimes_are_joined(tmp_path: Path) -> None:
    for runtime in ("xpu_runtime", "privateuse1_driver"):
        launch = complete(runtime, "urEnqueueKernelLaunch", 1, 1, correlation=5)
        path = kineto(tmp_path / f"{runtime}.json", [launch, on_device("kernel", "k", 10, 4, 5)])
        assert rows_of(read_files([path]).table)["launch_ns"].tolist() == [1000]


def test_accelerators_that_are_not_read_are_told(tmp_path: Path) -> None:
    rows = [
        complete("cpu_op", "aten::mm", 0, 5),
        complete("mtia_ccp_events", "dma_request", 1, 9, direction="DEVICE_TO_HOST"),
        complete("mtia_ccp_events", "fc-dtype_Half", 2, 9, correlation=1),
        on_device("kernel", "sgemm", 10, 20, 1),
    ]
    notes = read_kineto(kineto(tmp_path / "t.json", rows)).notes
    assert [note for note in notes if note.startswith("2 events were left out: an accelerator's")]


ROWS = [on_device("kernel", "sgemm", 10, 20, 1)]


def whole(tmp_path: Path) -> bytes:
    return kineto(tmp_path / "whole.json", ROWS).read_bytes()


@pytest.mark.parametrize(
    ("before", "after"), [(b"", b",]"), (b"", b" , \n]"), (b"\xef\xbb\xbf", b"]")]
)
def test_what_other_programs_leave_in_a_text(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(before + whole(tmp_path).removesuffix(b"]}") + after + b"}")
    assert rows_of(read_files([path]).table)["t0_ns"].tolist() == [10_000]


@pytest.mark.parametrize(
    ("mark", "told"),
    [
        (b"PK\x03\x04", "is a zip archive: unpack it first: unzip"),
        (b"\x28\xb5\x2f\xfd", "is packed with zstd"),
        (b"\xfd7zXZ\x00", "is packed with xz"),
        (b"BZh", "is packed with bzip2"),
        (b"\xff\xfe", "is text of UTF-16"),
    ],
)
def test_what_must_be_unpacked_is_told(tmp_path: Path, mark: bytes, told: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(mark + whole(tmp_path))
    with pytest.raises(ConfigError, match=told):
        read_files([path])


def test_a_folder_stands_for_its_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    for rank in range(2):
        kineto(ranks / f"{rank}.json", ROWS, distributedInfo={"rank": rank, "world_size": 2})
    assert main([str(ranks)]) == 0
    assert "\n1 cuda:0" in capsys.readouterr().out
    assert main(["perfetto", str(ranks), "--output", str(tmp_path / "all.json")]) == 0
    (tmp_path / "none").mkdir()
    assert main([str(tmp_path / "none")]) == 1
    assert "holds no traces" in capsys.readouterr().err


def test_a_window_beside_the_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(kineto(tmp_path / "t.json", ROWS)), "--from", "500"]) == 1
    assert "window of --from and --to holds no device event" in capsys.readouterr().err


def test_kernels_that_were_left_out_are_not_said_to_be_missing(tmp_path: Path) -> None:
    rows = [complete("cuda_runtime", "cudaLaunchKernel", 3, 1, correlation=1), *ROWS]
    path = kineto(tmp_path / "t.json", rows)
    path.write_text(path.read_text().replace('"dur": 20', '"dur": NaN'))
    with pytest.raises(ConfigError, match="1 event was left out: their time is missing"):
        read_files([path])
