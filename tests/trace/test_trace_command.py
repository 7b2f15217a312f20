"""``python -m transformer_core.trace`` and its ``diff``: what is read, listed, printed and compared."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from traces import (
    breakdown_in,
    complete,
    kineto,
    launch,
    of_rank,
    on_device,
    table_in,
    training_report,
)

from schemas.results import Breakdown
from transformer_core.trace.__main__ import main
from transformer_core.trace.compare import (
    REGRESSION,
    Change,
    difference,
    lists_all_kernels,
    read_profile,
)
from transformer_core.trace.events import event_table
from transformer_core.trace.events.process import TraceError
from transformer_core.trace.readers import files as reading
from transformer_core.trace.readers.files import read_files

KERNEL = [on_device("kernel", "sgemm", 0, 5, 1)]


def test_traces_of_all_ranks(tmp_path, capsys):
    paths = [kineto(tmp_path / f"r{rank}.json", KERNEL, **of_rank(rank)) for rank in (1, 0)]
    events = tmp_path / "events.parquet"
    found = breakdown_in(tmp_path, *paths, "--name", "mine", "--events", events)
    assert pq.read_schema(events).names == list(event_table.COLUMNS)
    assert (found.name, found.status, found.source) == ("mine", "ok", "kineto")
    assert [device.rank for device in found.devices] == [0, 1]
    assert found.viewer_files == [str(path) for path in paths]
    said = capsys.readouterr().out
    assert said.startswith("mine: 2 ranks on cuda:0, the whole trace, 0.005 ms")
    assert "computation" in said
    assert "1 cuda:0" in said


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    command = [sys.executable, "-m", "transformer_core.trace"]
    command += [str(kineto(tmp_path / "trace.json", KERNEL))]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    running.stdout.close()
    assert running.communicate(timeout=100)[1] == b""


def test_traces_that_do_not_say_their_ranks_are_counted(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in (10, 2, 0):
        kineto(folder / f"rank{rank}.json", [on_device("kernel", f"k{rank}", 0, 5, 1)])
    found = breakdown_in(tmp_path, folder)
    named = [(device.rank, device.kernel_times[0].name) for device in found.devices]
    assert named == [(0, "k0"), (1, "k2"), (2, "k10")]
    assert "The traces do not say their ranks: they are counted in order" in found.notes


def test_traces_of_different_trainings_are_refused(tmp_path, capsys):
    usual = kineto(tmp_path / "usual.json", KERNEL, **of_rank(0))
    other = kineto(tmp_path / "other.json", [on_device("kernel", "b", 0, 5, 1)], **of_rank(0))
    again = kineto(tmp_path / "again.json", KERNEL, **of_rank(0))
    # A schedule that repeats writes a file for each cycle, without a rank if there is only one.
    cycles = [
        str(
            kineto(tmp_path / f"{at}.json", [launch(1, at), on_device("kernel", "b", at + 1, 5, 1)])
        )
        for at in (0, 100)
    ]
    assert main(cycles) == 1
    assert "100.json is of rank 0, and so is" in capsys.readouterr().err
    alone = kineto(tmp_path / "alone.json", [on_device("kernel", "c", 9, 5, 1)])
    for path, words in (
        (other, "is of rank 0, and so is"),
        (again, "is the same as"),
        (alone, "is of an unknown number of ranks, and"),
        (training_report(tmp_path / "report.sqlite"), "give files of one profiler"),
    ):
        assert main([str(usual), str(path)]) == 1
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("columns", [60, 100, 200])
def test_one_page_over_all_ranks_in_the_width_of_the_terminal(traces, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main([str(traces)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    told = "2 ranks", "2 steps of", "computation", "Bound by", "all_reduce", "delay ms"
    assert [words for words in told if words not in said.out] == []
    # Counts and times are those of one device.
    assert re.search(r"^sgemm +2 +0\.050 ", said.out, re.MULTILINE)
    assert said.out.startswith("trace: 2 ranks")
    assert all(len(line) <= columns for line in said.out.splitlines())


def test_top_and_filter_change_what_is_printed(traces, capsys):
    main([str(traces), "--top", "1"])
    said = capsys.readouterr().out
    assert "sgemm" in said
    assert "ncclDevKernel" not in said
    assert "and 1 more" in said
    main([str(traces), "--filter", "nccl"])
    said = capsys.readouterr().out
    assert "sgemm" not in said
    assert "ncclDevKernel_AllReduce" in said


def test_numbers_are_printed(traces, capfdbinary):
    for words in (["--json"], ["--output", "-"]):
        assert main([str(traces), *words]) == 0
        said = capfdbinary.readouterr()
        assert Breakdown.model_validate_json(said.out).devices[1].rank == 1
        assert said.err == b""
    assert main(["perfetto", str(traces), "--output", "-"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["traceEvents"]


def test_file_names_that_are_not_utf_8(traces, tmp_path):
    for path in traces.iterdir():
        path.rename(traces / os.fsdecode(b"\xff" + os.fsencode(path.name)))
    (traces / os.fsdecode(b"\xff.json")).write_text("{}")
    found = breakdown_in(tmp_path, traces)
    assert [Path(file).name for file in found.viewer_files] == ["?r0.json.gz", "?r1.json.gz"]
    assert "?.json was left out" in found.notes[0]


def test_names_cannot_control_the_terminal(tmp_path, capsys):
    bad = "sg\x1b[31memm\x9b\u202e\nx"
    rows = [on_device("kernel", bad, 0, 5, 1), complete("user_annotation", "\x1b]0;x\x07", 0, 9)]
    path = kineto(tmp_path / "a\x1b[2J.json", rows)
    assert main([str(path), "--name", "\x1bname"]) == 0
    main(["diff", str(path), str(path)])
    main([str(path.with_name("none\x1b.json"))])
    main(["perfetto", str(path), "--output", str(tmp_path / "p\x1b.json")])
    main([str(path), "--json"])
    said = capsys.readouterr()
    text = said.out + said.err
    assert "emm" in text
    assert all(character.isprintable() for character in text.replace("\n", ""))


ROWS = [
    launch(1, 0),
    on_device("kernel", "gemm_large", 0, 2000, 1),
    on_device("kernel", "gemm_small", 2000, 1000, 2),
    on_device("kernel", "softmax", 3000, 1000, 3),
]


@pytest.fixture
def trace(tmp_path):
    return kineto(tmp_path / "trace.json", ROWS)


def test_a_window_cuts_events_at_its_edges(trace, tmp_path):
    (device,) = breakdown_in(tmp_path, trace, "--from", "1", "--to", "2.5").devices
    times = {kernel.name: kernel.time_ns for kernel in device.kernel_times}
    assert times == {"gemm_large": 1_000_000, "gemm_small": 500_000}
    assert device.span.window_ns == device.span.compute_ns == 1_500_000


def test_steps_keep_their_numbers_in_a_window(tmp_path):
    rows = [
        row
        for step in range(4)
        for row in (
            complete("user_annotation", f"iteration{step + 7}", 100 * step, 40),
            complete("user_annotation", "step", 100 * step + 1, 30),  # the program's own, inside
            launch(step + 1, 100 * step + 2),
            on_device("kernel", "k", 100 * step + 10, 80, step + 1),
        )
    ]
    path = kineto(tmp_path / "trace.json", rows)
    for words, numbers in (([], [0, 1, 2, 3]), (["--from", "0.15"], [2, 3])):
        (device,) = breakdown_in(tmp_path, path, *words).devices
        found = [(s.step, s.partition.window_ns, s.partition.compute_ns) for s in device.steps]
        # A step lasts until its kernel ends, long after its range.
        assert found == [(number, 90_000, 80_000) for number in numbers]


def test_kernels_by_name(trace, tmp_path):
    (device,) = breakdown_in(tmp_path, trace, "--filter", "^gemm").devices
    assert [kernel.name for kernel in device.kernel_times] == ["gemm_large", "gemm_small"]
    assert device.kernel_times[0].share == 0.5, "of all kernels, listed or not"


def test_an_event_table_stands_for_its_traces(trace, tmp_path):
    kineto(trace, [*ROWS, on_device("kernel", "backwards", 9, -1, 4)], **of_rank(3, 8))
    table = tmp_path / "events.parquet"
    first = breakdown_in(tmp_path, trace, "--events", table)
    assert any("1 event was left out: they end before" in note for note in first.notes)
    again = breakdown_in(tmp_path, table)
    same = {"viewer_files": [], "name": ""}
    assert again.model_copy(update=same) == first.model_copy(update=same)
    assert main(["diff", str(trace), str(table)]) == 0
    # What is said of all events is not said of those in a window.
    found = [breakdown_in(tmp_path, path, "--to", "2").notes for path in (trace, table)]
    assert found[0] == found[1] == [note for note in first.notes if "no launch" not in note]
    with pytest.raises(TraceError, match="is a Parquet table: give a single event table"):
        read_files([trace, table])


def test_event_tables_of_other_programs(trace, tmp_path, monkeypatch):
    path = tmp_path / "events.parquet"
    path.write_bytes(b"PAR1" + bytes(64))
    with pytest.raises(TraceError, match="is not an event table"):
        read_files([path])
    table = table_in(trace)
    for about in (b"[1]", b'{"notes": null}', b'{"format": 3}'):
        pq.write_table(table.replace_schema_metadata({b"about": about}), path)
        with pytest.raises(TraceError, match="is not an event table"):
            read_files([path])
    # Numbers of texts that do not exist.
    numbers = pa.array([99] * len(table), pa.int32())
    outside = pa.DictionaryArray.from_arrays(numbers, pa.array(["a"]), safe=False)
    place = table.schema.get_field_index("name")
    for odd in (table.set_column(place, "name", outside), table.drop_columns(["t0_ns"])):
        # A file cannot hold the first of these, so the reader is replaced.
        monkeypatch.setattr(pq, "read_table", lambda _, odd=odd: odd)
        with pytest.raises(TraceError, match="is not an event table"):
            read_files([path])


def killed(path: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_large_files_are_read_in_parallel(traces, monkeypatch):
    with monkeypatch.context() as mac:
        mac.delattr(reading.os, "sched_getaffinity")
        here = table_in(traces)
    monkeypatch.setattr(reading, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr(reading.os, "sched_getaffinity", lambda process: {0, 1})
    assert table_in(traces).to_pylist() == here.to_pylist()
    with monkeypatch.context() as out_of_memory:
        out_of_memory.setattr(reading, "_read_one", killed)
        with pytest.raises(TraceError, match=r"r0\.json\.gz cannot be read: the process that read"):
            read_files([traces])
    damaged = traces / "r1.json.gz"
    damaged.write_text(json.dumps({"traceEvents": 3}))
    with pytest.raises(TraceError, match=r"r1\.json\.gz is not a torch"):
        read_files([traces / "r0.json.gz", damaged])


FIRST = {"sgemm": (10, 40), "gelu_kernel": (55, 5)}
SECOND = {"sgemm": (10, 20), "softmax_kernel": (35, 5)}


def profile(path: Path, kernels: dict[str, tuple[int, int]], steps: Sequence[int]) -> Path:
    """A trace of steps of so many microseconds, one after another."""
    rows: list[dict[str, Any]] = []
    begin = number = 0
    for length in steps:
        rows.append(complete("user_annotation", "phase:step", begin, length))
        rows.append(complete("user_annotation", "phase:forward", begin, length - 5))
        for name, (t0, time) in kernels.items():
            number += 1
            kernel = on_device("kernel", name, begin + t0, time, number)
            rows += [launch(number, begin + 1), kernel]
        begin += length
    return kineto(path, rows)


@pytest.fixture
def pair(tmp_path):
    return (
        profile(tmp_path / "first.json", FIRST, (100, 100)),
        profile(tmp_path / "second.json", SECOND, (60, 60, 60)),
    )


def by_name(changes: Sequence[Change]) -> dict[str, float]:
    return {change.name: round(change.difference_ms * 1e3, 6) for change in changes}


def test_the_parts_explain_the_step(pair):
    found = difference(*map(read_profile, pair))
    assert found.step.first_ms == pytest.approx(0.1)
    assert found.step.second_ms == pytest.approx(0.06)
    parts = by_name(found.parts)
    assert (parts["computation"], parts["idle"]) == (-20, -20)
    assert sum(parts.values()) == -40
    assert {part.name for part in found.explanation} == {"computation", "idle"}
    kernels = by_name(found.kernels)
    assert list(kernels) == ["sgemm", "gelu_kernel", "softmax_kernel"]
    assert kernels == {"sgemm": -20, "gelu_kernel": -5, "softmax_kernel": 5}
    assert by_name(found.operators) == {"contraction": -20, "element_wise": -5, "normalization": 5}
    assert by_name(found.phases) == {"forward": -20}


def test_exit_codes_and_the_last_line(pair, capsys):
    first, second = map(str, pair)
    for words, code, verdict in (
        ([first, second], 0, "A step takes 40.0 % less"),
        ([second, first], REGRESSION, "A step takes 66.7 % longer, more than the 5 % allowed"),
        ([second, first, "--allowed", "70"], 0, "A step takes 66.7 % longer, of the 70 % allowed"),
        ([first, first], 0, "A step takes as long"),
    ):
        assert main(["diff", *words]) == code
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == verdict
        # No step copies or communicates.
        assert not [line for line in lines if "copies" in line or "communication" in line]


def test_kernels_missing_from_an_incomplete_list_are_left_out(pair, tmp_path, capsys):
    output = tmp_path / "out.json"
    breakdown_in(tmp_path, pair[0], "--top", "1")
    some, whole = read_profile(output), read_profile(pair[0])
    assert not lists_all_kernels(some)
    assert lists_all_kernels(whole)
    assert by_name(difference(some, whole).kernels) == {"sgemm": 0}
    assert by_name(difference(whole, some).kernels) == {"sgemm": 0}
    # Of two devices, one does not list the other kernel.
    (short_one,), (long_one,) = some.devices, whole.devices
    mixed = whole.model_copy(update={"devices": [long_one, short_one]})
    twice = whole.model_copy(update={"devices": [long_one, long_one]})
    assert by_name(difference(twice, mixed).kernels) == {"sgemm": 0}
    capsys.readouterr()
    main(["diff", str(output), str(pair[0])])
    assert f"note: {output} lists only its longest kernels" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("difff a b", "difff is not a file; did you mean the command diff?"),
        ("diff a b --allowed -3", "'-3' is not a number of at least 0"),
        ("diff a b --allowed inf", "'inf' is not a number of at least 0"),
        ("diff a b --top 0", "'0' is not a whole number of at least 1"),
        ("", "required: FILE"),
        ("--nonsense", "unrecognized arguments: --nonsense"),
        ("diff --nonsense", "unrecognized arguments: --nonsense"),
        ("diff a", "required: second"),
        ("memory --nonsense", "unrecognized arguments: --nonsense"),
        ("perfetto a", "required: --output"),
        ("a --filter (", "'(' is not a regular expression"),
        ("a --from x", "'x' is not a number of milliseconds"),
        ("a --to 1e30", "'1e30' is not a number of milliseconds"),
        ("a --to -5", "--to must be later than --from"),
        ("perfetto a --output b --from 50 --to 10", "--to must be later"),
    ],
)
def test_wrong_arguments(words, told, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert told in capsys.readouterr().err


def test_a_breakdown_stands_for_its_traces(pair, tmp_path):
    output = tmp_path / "mine" / "breakdown.json"
    assert main([str(pair[0]), "--name", "mine", "--output", str(output)]) == 0
    assert read_profile(output.parent) == read_profile(output)
    found = difference(read_profile(output), read_profile(pair[0]))
    assert found.step.difference_ms == 0
    assert found.explanation == []
    assert all(change.difference_ms == 0 for change in found.kernels)


def test_profiles_that_cannot_be_compared(tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    nothing = kineto(tmp_path / "n.json", [complete("user_annotation", "phase:step", 0, 5)])
    old = tmp_path / "breakdown.json"
    old.write_text('{"name": "x", "source_version": null, "unknown": 1}')
    for path, words in (
        (empty, "holds no traces"),
        (nothing, "has nothing to compare"),
        (old, "is a breakdown that is damaged or of another version"),
        (tmp_path / "none.json", "cannot be read"),
    ):
        assert main(["diff", str(path), str(path)]) == 1
        assert words in capsys.readouterr().err


def run_of(path: Path, steps: int, time: int = 10) -> Path:
    """A trace without marks: ``steps`` kernels of ``time`` microseconds with pauses between them."""
    rows = [on_device("kernel", "sgemm", 30 * k, time, k + 1) for k in range(steps)]
    return kineto(path, [*rows, on_device("kernel", "last", 30 * steps, 0, steps + 1)])


def test_without_steps_the_same_work_is_compared(tmp_path, capsys):
    """A recording that is three times as long is not slower."""
    short_one, long_one = run_of(tmp_path / "a.json", 10), run_of(tmp_path / "b.json", 30)
    assert main(["diff", str(short_one), str(long_one)]) == 0
    said = capsys.readouterr().out
    assert "mark no steps: times are for the work of the first" in said
    assert "the second did 3 times as much" in said
    assert said.endswith("The same work takes as long\n")
    slower = run_of(tmp_path / "c.json", 30, 15)
    found = difference(read_profile(short_one), read_profile(slower))
    assert by_name(found.kernels)["sgemm"] == pytest.approx(50)
    other = kineto(tmp_path / "d.json", [on_device("kernel", "gemv", 0, 5, 1)])
    assert main(["diff", str(short_one), str(other)]) == 0
    said = capsys.readouterr().out
    assert "share no kernel: their totals are compared" in said
    assert said.endswith("Step lengths cannot be compared\n")
    # Without marks, a trace holds what ran outside of steps, too.
    rows = [
        row
        for k in range(10)
        for row in (
            launch(k + 1, 100 * k + 1),
            on_device("kernel", "sgemm", 100 * k + 10, 90, k + 1),
        )
    ]
    steps = [complete("user_annotation", "phase:step", 100 * k, 100) for k in range(2)]
    sides = kineto(tmp_path / "e.json", [*steps, *rows]), kineto(tmp_path / "f.json", rows)
    found = difference(*map(read_profile, sides)).step
    assert [found.first_ms, found.second_ms] == pytest.approx([0.2, 0.198])
