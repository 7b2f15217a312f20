"""Kineto traces: old and new formats, exact times, and traces edited by other programs."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from traces import complete, device_in, events_in, kineto, launch, of_rank, on_device, rows_in

from transformer_core.trace.__main__ import main
from transformer_core.trace.breakdown.summary import breakdown_of_files
from transformer_core.trace.events.arrow import table_of
from transformer_core.trace.readers.kineto import read_kineto


def operator(
    name: str, ts: float, dur: float, dims: list[list[int]], kinds: Sequence[str] = ("float",) * 3
) -> dict[str, Any]:
    """An operator that tells its inputs."""
    inputs = {"Input Dims": dims, "Input type": list(kinds)[: len(dims)]}
    return complete("cpu_op", name, ts, dur, **inputs)


ROWS = [launch(1, 3), on_device("kernel", "sgemm", 10, 20, 1)]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("after", [False, True])
def test_the_head_may_stand_before_or_after_the_events(tmp_path, name, after):
    head = {"baseTimeNanoseconds": 10**18} | of_rank(3, 4)
    path = kineto(tmp_path / name, ROWS, after=after, **head)
    (trace,) = read_kineto(path).processes
    assert (trace.rank, trace.ranks, trace.pid) == (3, 4, 42)
    assert rows_in(path)["t0_ns"][0] == 10**18 + 10_000


def test_a_rank_that_no_training_has_is_unknown(tmp_path):
    path = kineto(tmp_path / "trace.json", ROWS, **of_rank(1_500_000, 2_000_000))
    assert (device_in(path).rank, read_kineto(path).processes[0].ranks) == (0, None)


def test_what_is_left_out_before_a_long_head_counts_once(tmp_path):
    """The process groups of a large training take more text than is read at once."""
    groups = [{"pg_name": str(number), "ranks": [0]} for number in range(20_000)]
    begin = on_device("kernel", "sgemm", 40, 0, 2) | {"ph": "B"}
    path = kineto(tmp_path / "trace.json", [*ROWS, begin], after=True, pg_config=groups)
    (note,) = read_kineto(path).notes
    assert note.startswith("1 event was left out")


@pytest.mark.parametrize(
    ("ts", "nanoseconds"),
    [
        ("1694128201435418", 1_694_128_201_435_418_000),  # whole microseconds since 1970
        ("1694128201435418.179", 1_694_128_201_435_418_179),  # beyond a double
        ("4396017018185.845", 4_396_017_018_185_845),
    ],
)
def test_times_are_exact(tmp_path, ts, nanoseconds):
    path = kineto(tmp_path / "trace.json", [on_device("kernel", "k", 0, 1.001, 1)])
    path.write_text(path.read_text().replace('"ts": 0', f'"ts": {ts}'))
    (row,) = events_in(path)
    assert (row["t0_ns"], row["t1_ns"]) == (nanoseconds, nanoseconds + 1001)


def test_old_categories(tmp_path):
    """torch 1.8: capitals, ``stream 7`` as thread, ``Input dims``."""
    old = [
        complete("Operator", "aten::mm", 0, 5, **{"Input dims": [[2, 3], [3, 4]]}),
        complete("Runtime", "cudaLaunchKernel", 1, 1, correlation=5),
        on_device("Kernel", "volta_sgemm", 10, 4, 5) | {"tid": "stream 7"},
        on_device("Memcpy", "Memcpy DtoH (Device -> Pageable)", 13, 2, 6, bytes=8),
        on_device("Memset", "Memset (Device)", 30, 1, 7, bytes=8),
    ]
    device = device_in(kineto(tmp_path / "trace.json", old))
    assert {(a.kind, a.name) for a in device.activities} == {
        ("compute", "contraction"),
        ("memcpy", "d2h"),
        ("memset", "Memset (Device)"),
    }
    assert device.operators[0].flops == 2 * 2 * 3 * 4
    # One microsecond of the first copy is beside the kernel.
    assert (device.span.exposed_copies_ns, device.span.idle_ns) == (2_000, 15_000)


def test_renamed_collective_kernels(tmp_path):
    """By name in any spelling; else by what the trace says of the kernel, else by its launch."""
    comms = {"Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 40}
    rows = [
        complete("user_annotation", "nccl:reduce_scatter", 0, 5),
        launch(4, 1),
        on_device("kernel", "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_f32", 10, 1, 1),
        on_device("kernel", "ncclFutureKernel_v9", 20, 1, 2, **comms, dtype="BFloat16"),
        on_device("kernel", "ncclFutureKernel_v9", 25, 1, 6, **comms, dtype="Float8_e4m3fn"),
        on_device("kernel", "ncclFutureKernel_v9", 30, 1, 3),
        on_device("kernel", "a_name_that_says_nothing", 40, 1, 4),
        on_device("kernel", "void at::native::reduce_kernel<ReduceOp<all_reduce> >()", 50, 1, 5),
    ]
    device = device_in(kineto(tmp_path / "trace.json", rows))
    assert [(c.collective, c.count, c.bytes) for c in device.collectives] == [
        ("all_gather", 2, 80 + 40),
        ("all_reduce", 1, None),
        ("other", 1, None),
        ("reduce_scatter", 1, None),
    ]
    assert device.span.compute_ns == 1000


def test_copies_for_a_collective_are_not_communication(tmp_path):
    rows = [
        complete("cpu_op", "c10d::allgather_", 0, 30),
        complete("user_annotation", "nccl:all_gather", 2, 25),
        complete("cpu_op", "aten::copy_", 5, 4),
        launch(1, 6),
        launch(2, 15),
        on_device("kernel", "copy_kernel", 20, 5, 1),
        on_device("kernel", "renamed", 30, 7, 2),
    ]
    device = device_in(kineto(tmp_path / "trace.json", rows))
    assert (device.span.compute_ns, device.span.communication_ns) == (5000, 7000)


def test_bytes_of_a_collective_from_the_range_that_launched_it(tmp_path):
    dims = {"Input Dims": [[394241]], "Input type": ["float"]}
    for collective, factor in (("all_reduce", 1), ("_allgather_base", 8)):
        rows = [
            complete("user_annotation", f"nccl:{collective}", 0, 5, **dims),
            launch(1, 1),
            on_device("kernel", "ncclKernel_Any", 10, 1, 1),
        ]
        device = device_in(kineto(tmp_path / "trace.json", rows, **of_rank(0, 8)))
        assert [c.bytes for c in device.collectives] == [4 * 394241 * factor]


def test_a_collective_that_only_an_operator_of_pytorch_describes(tmp_path):
    sent = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 10, "Group size": 2}
    rows = [
        complete("cpu_op", "record_param_comms", 0, 5, **sent),
        launch(1, 1),
        on_device("kernel", "ncclKernel_Any", 10, 1, 1),
    ]
    device = device_in(kineto(tmp_path / "trace.json", rows))
    assert [(c.collective, c.bytes) for c in device.collectives] == [("all_reduce", 40)]


def test_without_a_range_backward_is_the_work_of_autograd(tmp_path):
    rows = [
        complete("user_annotation", "ProfilerStep#12", 0, 100),
        complete("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 10, 20, tid=2),
        launch(1, 15, tid=2),
        launch(2, 50),
        on_device("kernel", "sgemm", 60, 5, 1),
        on_device("kernel", "other", 70, 5, 2),
    ]
    table = rows_in(kineto(tmp_path / "trace.json", rows))
    kernel = table["kind"] == "kernel"
    assert table["phase"][kernel].tolist() == ["backward", None]
    assert table["step"][kernel].tolist() == [0, 0]


def test_the_longest_kernel_of_an_operator_does_its_work_once(tmp_path):
    """A preparation, the product itself, and a conversion of its result; another thread launches a
    kernel at the same time."""
    rows = [
        operator("aten::mm", 0, 50, [[4, 5], [5, 6]]),
        *(launch(1, 10), launch(2, 20), launch(3, 30), launch(4, 30, tid=2)),
        on_device("kernel", "prepare_gemm", 100, 5, 1),
        on_device("kernel", "gemm", 110, 40, 2),
        on_device("kernel", "convert_gemm", 150, 5, 3),
        on_device("kernel", "other_gemm", 200, 50, 4),
    ]
    path = kineto(tmp_path / "trace.json", rows)
    assert rows_in(path)["operator"].tolist() == [*["aten::mm"] * 3, None]
    device = device_in(path)
    flops = {kernel.name: kernel.flops for kernel in device.kernel_times}
    assert flops == {"prepare_gemm": 0, "gemm": 240, "convert_gemm": 0, "other_gemm": None}
    (contraction,) = device.operators
    assert (contraction.count, contraction.flops, contraction.counted_ns) == (4, 240, 50_000)


def test_a_step_that_the_program_did_not_take_is_none(tmp_path):
    """torch.profiler begins a step after each one, also after the last of the program."""
    rows = [
        *(complete("user_annotation", f"ProfilerStep#{k}", 100 * k, 100) for k in (3, 4)),
        complete("user_annotation", "ProfilerStep#5", 500, 1),
        *(launch(k, 100 * k + 5) for k in (3, 4)),
        on_device("kernel", "sgemm", 310, 50, 3),
        on_device("kernel", "sgemm", 410, 110, 4),
    ]
    device = device_in(kineto(tmp_path / "trace.json", rows))
    # The last one ends with its kernel, after the mark of the next one.
    assert [step.partition.window_ns for step in device.steps] == [100_000, 120_000]


def test_a_description_of_a_collective_is_not_its_time_on_a_cpu(tmp_path):
    """The host's part of a training on GPUs, recorded without their kernels."""
    about = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float"}
    rows = [
        complete("cpu_op", "aten::mm", 0, 20),
        complete("cpu_op", "record_param_comms", 20, 2, **about),
        complete("cpu_op", "aten::add", 30, 10),
    ]
    device = device_in(kineto(tmp_path / "trace.json", rows))
    assert (device.span.compute_ns, device.span.communication_ns) == (30_000, 0)
    assert device.collectives == []


def test_a_cpu_trace_has_self_times_and_collectives(tmp_path):
    rows = [
        complete("user_annotation", "phase:step", 0, 200),
        complete("user_annotation", "phase:forward", 0, 50),
        operator("aten::linear", 10, 30, [[4, 5], [6, 5], [6]]),
        operator("aten::addmm", 12, 25, [[6], [4, 5], [5, 6]]),
        complete("cpu_op", "c10d::allreduce_", 60, 90),  # waits
        complete("cpu_op", "autograd::engine::evaluate_function: X", 150, 20),
        complete("cpu_op", "aten::mul", 155, 10),
        operator("gloo:all_reduce", 62, 80, [[100]]) | {"cat": "user_annotation", "tid": 9},
        complete("cpu_op", "aten::copy_", 65, 5, tid=9),  # the collective's own
    ]
    device = device_in(kineto(tmp_path / "t.json", rows, **of_rank(0)))
    found = device.steps[0].partition
    assert device.device == "cpu"
    assert (found.window_ns, found.compute_ns) == (200_000, 40_000)
    assert (found.exposed_communication_ns, found.overlap_ns) == (80_000, 0)
    assert (found.exposed_copies_ns, found.exposed_graphs_ns, device.launches) == (None,) * 3
    assert [(c.collective, c.bytes) for c in device.collectives] == [("all_reduce", 400)]
    contraction = device.operators[0]
    # The operator around the product is of its class too, but the product is counted once.
    assert (contraction.time_ns, contraction.flops, contraction.counted_ns) == (30_000, 240, 25_000)


def test_time_of_python_inside_an_operator_is_not_computation(tmp_path):
    rows = [
        complete("cpu_op", "aten::outer", 0, 100),
        complete("user_annotation", "hook", 20, 50),
        complete("cpu_op", "aten::inner", 30, 10),
    ]
    assert device_in(kineto(tmp_path / "t.json", rows)).span.compute_ns == 60_000


def test_the_environment_in_a_trace_is_not_copied(tmp_path):
    secret = "hf_not_a_real_token"
    path = kineto(tmp_path / "trace.json", ROWS, metadata={"env": {"TOKEN": secret}})
    breakdown, reading = breakdown_of_files([path], "mine")
    assert secret not in breakdown.model_dump_json()
    assert secret not in str(table_of(reading.events).to_pylist())


def test_times_are_exact_between_events_without_a_time(tmp_path):
    """A sample that contains only arrows must not lead to times as doubles."""
    ts = 4_458_676_422_880.181
    rows: list[dict[str, Any]] = []
    for place in range(256):
        arrow = {"ph": "s", "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "id": place}
        rows += [arrow, *[on_device("kernel", "k", ts + 9 * place, 1, place)] * (place % 2)]
        rows += [arrow | {"ph": "f"}] * (2 - place % 2)
    (trace,) = read_kineto(kineto(tmp_path / "t.json", rows)).processes
    wanted = [round(Decimal(str(row["ts"])) * 1000) for row in rows if row["ph"] == "X"]
    assert trace.device["t0"].tolist() == wanted


def test_a_note_on_unsupported_accelerators(tmp_path):
    rows = [
        complete("cpu_op", "aten::mm", 0, 5),
        complete("mtia_ccp_events", "dma_request", 1, 9, direction="DEVICE_TO_HOST"),
        complete("mtia_ccp_events", "fc-dtype_Half", 2, 9, correlation=1),
        on_device("kernel", "sgemm", 10, 20, 1),
    ]
    notes = read_kineto(kineto(tmp_path / "t.json", rows)).notes
    assert [
        note
        for note in notes
        if note.startswith("2 events were left out: they come from an unsupported")
    ]


def test_a_window_outside_the_trace(tmp_path, capsys):
    path, window = str(kineto(tmp_path / "t.json", ROWS)), ["--from", "500"]
    assert main([path, *window]) == 1
    said = capsys.readouterr().err
    assert "window of --from and --to holds no device event" in said
    assert "0.020 ms long" in said
    assert main(["perfetto", path, *window, "--output", str(tmp_path / "p.json")]) == 1
    said = capsys.readouterr().err
    assert "has no event between --from and --to" in said
    assert "0.020 ms long" in said
