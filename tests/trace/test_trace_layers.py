"""Modules, operators by shapes, source lines, compiled kernels, CUDA graphs, ceilings and memory."""

import re
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import profile
from traces import (
    Report,
    allocated,
    complete,
    event_table,
    events_in,
    kineto,
    launch,
    mark,
    on_device,
    rows_in,
    work,
)

from schemas.results import LayerUse, ShapeUse
from schemas.results.machine import Bandwidth, MatrixRate, Roofline
from tests.records import record
from transformer_core.observe.ranges import allocated_mark, mark_layers, torch_range
from transformer_core.trace import memory
from transformer_core.trace.__main__ import main
from transformer_core.trace.breakdown.summary import layers, roofline_share, shapes
from transformer_core.trace.events import operators
from transformer_core.trace.events.event_table import Rows, rows_of
from transformer_core.trace.events.operators import fused, kernel_class
from transformer_core.trace.tables import read_files as read_tables


def by_path(rows: Rows) -> dict[str, LayerUse]:
    return {layer.path: layer for layer in layers(rows)}


def exported(profiler: profile, folder: Path) -> Path:
    """The file of a trace of torch."""
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    return path


def launched(name: str, at: float, number: int, tid: int = 1, **args: Any) -> list[dict[str, Any]]:
    """An operator that launches one kernel."""
    return [complete("cpu_op", name, at, 4, tid=tid, **args), launch(number, at + 1, tid)]


def test_modules_include_their_children():
    rows = [
        work("gemm", 10, 30, layer="model/first", phase="forward", flops=100, launch_ns=1),
        work("gemm", 60, 90, layer="model/first", phase="backward", flops=200, launch_ns=5),
        work("gelu", 30, 35, layer="model", phase="forward", launch_ns=3),
        work("norm", 35, 39, layer="model/second", phase="loss", operator_bytes=8, launch_ns=4),
        work("adam", 95, 99, phase="optimizer"),
        mark("m", 0, 4, kind="module", layer="model", phase="forward", bytes=64),
        mark("m", 1, 2, kind="module", layer="model/first", phase="forward", bytes=16),
        mark("m", 5, 6, kind="module", layer="model/first", phase="backward", bytes=-16),
    ]
    found = by_path(rows_of(event_table(rows)))
    assert list(found) == ["model", "model/first", "model/second"]
    model, first, second = found.values()
    assert (model.forward_ns, model.backward_ns, model.own_ns) == (20 + 5 + 4, 30, 5)
    assert (model.flops, model.bytes, model.held_bytes, model.calls) == (300, 8, 64, 1)
    assert (first.time_ns, first.own_ns, first.calls, first.held_bytes) == (50, 50, 2, 16)
    assert (second.flops, second.bytes, second.calls, second.held_bytes) == (None, 8, None, None)


def test_backward_belongs_to_the_module_of_forward(tmp_path):
    rows = [
        complete("user_annotation", "encoder", 0, 30),
        complete("user_annotation", "linear", 5, 10),
        *launched("aten::addmm", 6, 1, **{"Sequence number": 17}),
        on_device("kernel", "gemm", 9, 3, 1),
        # On the thread of autograd.
        *launched("AddmmBackward0", 50, 2, tid=2, **{"Sequence number": 17}),
        on_device("kernel", "gemm", 53, 3, 2),
        *(allocated(*moment) for moment in ((1, 100), (7, 300), (14, 200))),
    ]
    path = kineto(tmp_path / "trace.json", rows)
    events = events_in(path)
    assert [row["layer"] for row in events if row["kind"] == "kernel"] == ["encoder/linear"] * 2
    found = by_path(rows_in(path))
    assert found["encoder"].other_ns == 6000
    # 100 bytes were allocated when it began, 200 when it ended.
    assert found["encoder/linear"].held_bytes == 100
    assert found["encoder"].held_bytes is None, "nothing was said before it began"
    assert [row["bytes"] for row in events if row["kind"] == "memory"] == [100, 300, 200]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.alone = torch.nn.Linear(4, 4)  # is not called

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 3:
            raise RuntimeError("three")
        return self.linear(x).relu()


def test_backward_belongs_to_the_operator_that_made_its_gradient(tmp_path):
    """An operator without a gradient has the number of the next one that autograd records."""
    told = {"Sequence number": 7}
    rows = [
        *launched("aten::ne", 1, 1, **told),
        complete("user_annotation", "layer:model/mask", 10, 8),
        *launched("aten::tril", 12, 2, **told),
        complete("user_annotation", "layer:model/embedding", 20, 8),
        *launched("aten::embedding", 22, 3, **told),
        # A checkpoint calls forward again on the thread of autograd, which counts for itself.
        *launched("aten::relu", 32, 4, tid=2, **told),
        complete("cpu_op", "autograd::engine::evaluate_function: X", 40, 9, tid=2, **told),
        *launched("EmbeddingBackward0", 42, 5, tid=2, **told),
        *(on_device("kernel", f"k{number}", 50 + number, 1, number) for number in range(1, 6)),
    ]
    events = events_in(kineto(tmp_path / "trace.json", rows))
    assert {row["name"]: row["layer"] for row in events if row["kind"] == "kernel"} == {
        "k1": None,
        "k2": "model/mask",
        "k3": "model/embedding",
        "k4": None,
        "k5": "model/embedding",
    }


def test_modules_of_a_training_are_ranges(tmp_path):
    model = torch.nn.Sequential(Block(), Block())
    mark_layers(model, torch_range)
    with profile(record_shapes=True, profile_memory=True) as profiler:
        model(torch.ones(2, 4)).sum().backward()
        with pytest.raises(RuntimeError, match="three"):
            model(torch.ones(3, 4))
    found = by_path(rows_in(exported(profiler, tmp_path)))
    assert list(found) == ["model", "model/0", "model/0/linear", "model/1", "model/1/linear"]
    assert found["model"].calls == 2, "a range ends where a module fails"
    assert found["model/1/linear"].calls == 1
    linear = found["model/0/linear"]
    # Forward, and backward to the weight alone: the input needs no gradient.
    assert linear.flops >= 2 * (2 * 2 * 4 * 4)
    assert found["model/1/linear"].flops > linear.flops
    assert linear.held_bytes >= 2 * 4 * 4


def test_a_module_that_others_share_is_one_range(tmp_path):
    table = torch.nn.Embedding(4, 2)
    model = torch.nn.Sequential(torch.nn.Sequential(table), torch.nn.ModuleDict({"table": table}))
    mark_layers(model, torch_range)
    with profile() as profiler:
        model[0](torch.tensor([1]))
        model[1]["table"](torch.tensor([2]))
    found = by_path(rows_in(exported(profiler, tmp_path)))
    assert {path: layer.calls for path, layer in found.items()} == {
        "model": None,
        "model/0": 1,
        "model/0/0": 2,
    }


def test_modules_of_a_training_record_the_memory_that_they_leave_allocated(tmp_path):
    sizes = iter((100, 100, 700, 900))
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    mark_layers(model, torch_range, lambda: f"allocated:0:{next(sizes)}")
    with profile() as profiler:
        model(torch.ones(1, 2))
    rows = rows_in(exported(profiler, tmp_path))
    assert {layer.path: layer.held_bytes for layer in layers(rows)} == {
        "model": 800,
        "model/0": 600,
    }
    assert set(rows["device"][rows.equal("kind", "memory")]) == {"cuda:0"}
    assert allocated_mark(torch.device("cpu")) is None


@pytest.mark.slow
def test_compiled_modules_are_not_entered():
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2))
    outer = torch.nn.ModuleDict({"compiled": torch.compile(inner), "plain": torch.nn.Linear(2, 2)})
    mark_layers(outer, torch_range)
    assert outer["compiled"]._forward_pre_hooks
    assert outer["plain"]._forward_pre_hooks
    assert not inner[0]._forward_pre_hooks


@pytest.mark.slow
def test_modules_that_compile_themselves_are_not_entered_but_those_with_changed_calls_are():
    """As by tune-training, around a call that may be compiled."""

    def marked(model: torch.nn.Module) -> bool:
        model.__dict__["_compiled_call_impl"] = partial(
            lambda call, *given: call(*given), model._compiled_call_impl or model._call_impl
        )
        mark_layers(model, torch_range)
        return bool(model[0]._forward_pre_hooks)

    plain, compiled = (torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(2))
    compiled.compile(backend="eager")
    assert marked(plain)
    assert not marked(compiled)


def test_operators_by_shape():
    product = {"operator": "aten::mm", "operator_class": "contraction"}
    rows = [
        work("a", 0, 40, shapes="bf16 [8,4] [4,2]", flops=128, operator_bytes=112, **product),
        work("b", 50, 80, shapes="bf16 [8,4] [4,2]", flops=128, operator_bytes=112, **product),
        work("c", 80, 90, shapes="[9,9]", operator="aten::copy_", operator_class="other"),
        work("d", 90, 110),
    ]
    first, second = shapes(rows_of(event_table(rows)), 9)
    assert (first.shapes, first.number_format, first.count) == ("[8,4] [4,2]", "bf16", 2)
    assert (first.time_ns, first.flops, first.bytes, first.share) == (70, 256, 224, 0.7)
    assert (second.number_format, second.flops, second.share) == (None, None, 0.1)
    assert len(shapes(rows_of(event_table(rows)), 1)) == 1


def test_the_share_of_the_roofline():
    def use(flops: int, size: int, kind: str = "contraction", form: str = "bf16") -> ShapeUse:
        work = {"operator_class": kind, "number_format": form, "flops": flops, "bytes": size}
        return record(ShapeUse, operator="aten::mm", shapes="", count=1, time_ns=1000, **work)

    roofline = Roofline.model_construct(
        matrix=[
            MatrixRate.model_construct(format="bf16", flops_per_second=1e12),
            MatrixRate.model_construct(format="fp16", flops_per_second=None),
        ],
        memory=[Bandwidth.model_construct(bytes_per_second=1e11)],
    )
    # A microsecond is room for a million operations, or for 100,000 bytes.
    assert roofline_share(use(500_000, 10), roofline) == pytest.approx(0.5)
    assert roofline_share(use(500_000, 80_000), roofline) == pytest.approx(0.8)
    assert roofline_share(use(500_000, 10, "element_wise"), roofline) == pytest.approx(1e-4)
    assert roofline_share(use(500_000, 10, form="fp16"), roofline) is None
    assert roofline_share(use(500_000, 10), roofline.model_copy(update={"memory": []})) is None


TORCH = {
    name.removeprefix("aten::").partition(".")[0]
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("aten::")
}
KNOWN = sorted(
    (name if name in TORCH else f"_{name}") for name in ("_".join(p) for p in operators.PHRASES)
)
PLAIN = ["add", "mul", "relu", "mm", "_softmax", "_to_copy", "gelu", "gelu_backward", "t", "silu"]


@settings(deadline=None)
@given(st.sets(st.sampled_from([*KNOWN, *PLAIN]), min_size=1, max_size=6))
def test_operators_inside_a_compiled_kernel(inside):
    for kind in ("triton_poi", "triton_red", "triton_per", "triton_tem", "cpp"):
        name = f"{kind}_fused_{'_'.join(sorted(inside))}_12"
        assert fused(name) == tuple(sorted(inside))


@pytest.mark.parametrize(
    ("name", "inside", "found"),
    [
        ("triton_per_fused__softmax_add_3", "_softmax add", "normalization"),
        ("triton_poi_fused_add_max_pool2d_with_indices_0", "add max_pool2d_with_indices", None),
        ("triton_poi_fused__to_copy_view_0_0d1d2de", "_to_copy view", "other"),
        ("triton_red_fused_nll_loss_backward_1", "nll_loss_backward", "normalization"),
        ("triton__0d1d2de", "", None),
        ("graph_0_cpp_fused_native_layer_norm_relu_0", "native_layer_norm relu", "normalization"),
        ("cpp_fused_add_tanh_backward_4", "add tanh_backward", "element_wise"),
        ("triton_poi_fused_convert_element_type_0", "convert_element_type", "other"),
        ("triton_red_fused_add_prepare_softmax_online_2", "add prepare_softmax_online", None),
        ("triton_unk_fused_mul_sum_0", "mul sum", "normalization"),
        ("triton_spl_fused_cumsum_exp_3", "cumsum exp", "normalization"),
        ("triton_red_fused_2", "", "normalization"),
        ("triton_for_fused_1", "", "element_wise"),  # an optimizer step, for all tensors
        ("void at::native::vectorized_elementwise_kernel<4>", "", "element_wise"),
    ],
)
def test_names_of_compiled_kernels(name, inside, found):
    assert fused(name) == tuple(inside.split())
    assert found in (None, kernel_class(name))


def test_long_names_are_read_quickly(tmp_path):
    names = "triton_poi_fused_" + "_1" * 99_000 + "!", "a/" * 99_000, "torch/" * 99_000 + "x.py("
    rows = [on_device("kernel", name, 10 * k, 5, k + 1) for k, name in enumerate(names)]
    rows += [complete("python_function", name, 0, 99) for name in names]
    tables = read_tables([kineto(tmp_path / "trace.json", rows)])
    assert sorted(tables.kernels["name"]) == sorted(names)


def test_work_that_the_compiler_counted(tmp_path):
    add, mm = "triton_poi_fused_add_relu_0", "triton_tem_fused_mm_1"
    rows = [
        *launched(add, 0, 1, kernel_backend="triton", kernel_num_gb=0.002),
        on_device("kernel", add, 10, 4, 1),
        *launched(mm, 5, 2, kernel_backend="triton", kernel_num_gb="0.5", kernel_flop=7e9),
        on_device("kernel", mm, 20, 6, 2),
        *launched("triton_poi_fused_mul_2", 30, 3, kernel_num_gb=[1], kernel_flop="x"),
        on_device("kernel", "triton_poi_fused_mul_2", 40, 1, 3),
    ]
    kernels = read_tables([kineto(tmp_path / "trace.json", rows)]).kernels.set_index("name")
    assert kernels.loc[add, "operators"] == ["add", "relu"]
    assert kernels.loc[add, "bytes"] == 2_000_000
    assert kernels.loc[mm, "flops"] == 7_000_000_000
    assert kernels.loc[mm, "operator_class"] == "contraction"
    assert kernels["bytes"].isna().tolist() == [False, False, True]


def test_stacks_and_compiled_kernels_of_torch(tmp_path):
    told = {"kernel_backend": "triton", "kernel_num_gb": 0.25, "kernel_flop": 64, "num_warps": 4}
    with profile(record_shapes=True, with_stack=True) as profiler:
        inputs = [torch.ones(4, 4)]
        with torch._C._profiler._RecordFunctionFast("triton_tem_fused_mm_0", inputs, told):
            torch.ones(1)
    tables = read_tables([exported(profiler, tmp_path)])
    kernels = tables.shapes.set_index("operator")
    assert kernels.loc["triton_tem_fused_mm_0", ["flops", "bytes"]].tolist() == [64, 250_000_000]
    assert any("test_trace_layers.py" in text for text in tables.sources["source"])


def test_graphs_and_their_nodes(tmp_path, capsys):
    nodes = ((0, "gemm", 31, 4), (4, "relu", 32, 1), (5, "gemm", 33, 2))
    rows = [
        on_device("kernel", name, 10 * k + at, dur, k + 1, **{"graph id": 3, "graph node id": node})
        for k in range(2)
        for at, name, node, dur in nodes
    ]
    path = kineto(tmp_path / "trace.json", [*rows, on_device("kernel", "outside", 50, 9, 9)])
    graphs = read_tables([path]).graphs
    assert graphs[["node", "name", "count", "time_ns"]].values.tolist() == [
        [31, "gemm", 2, 8000],
        [33, "gemm", 2, 4000],
        [32, "relu", 2, 2000],
    ]
    assert set(graphs["graph"]) == {3}
    assert set(graphs["launches"]) == {2}
    main([str(path)])
    assert "3 on rank 0 cuda:0: gemm" in capsys.readouterr().out


def test_graphs_of_reports(tmp_path):
    """Older reports name only nodes; graphs recorded as a whole have no nodes, and are a class of
    their own."""
    report = Report(tmp_path / "r.sqlite", "2024")
    report.kernel("gemm", 0, 10, pid=1, correlation=1)
    report.database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET graphNodeId = 77")
    report.graph(5, 5, 30, pid=1, correlation=2)
    (device,) = read_tables([report.write()]).breakdown.devices
    assert (device.span.compute_ns, device.span.exposed_graphs_ns) == (10, 20)
    assert ("graph", "CUDA graph 5", 25) in {(a.kind, a.name, a.time_ns) for a in device.activities}
    whole, alone = device.graphs
    assert (whole.graph, whole.events, whole.time_ns, whole.nodes) == (5, 1, 25, [])
    assert (alone.graph, alone.nodes[0].node, alone.nodes[0].name) == (None, 77, "gemm")


def test_functions_of_the_program_and_their_kernels(tmp_path, capsys):
    rows = [
        complete("python_function", "train.py(3): step", 0, 100),
        complete("python_function", "model.py(9): forward", 10, 20),
        complete("python_function", "torch/nn/modules/linear.py(130): forward", 11, 18),
        complete("python_function", "<built-in function linear>", 12, 10),
        *launched("aten::mm", 13, 1, **{"Sequence number": 4}),
        # Autograd's thread has no frames of the program: the operator in forward tells.
        *launched("MmBackward0", 51, 2, tid=2, **{"Sequence number": 4}),
        launch(3, 90),
        on_device("kernel", "gemm", 20, 6, 1),
        on_device("kernel", "gemm", 60, 7, 2),
        on_device("kernel", "adam", 95, 2, 3),
    ]
    path = kineto(tmp_path / "trace.json", rows)
    sources = read_tables([path]).sources
    assert sources[["source", "kernel", "count", "time_ns"]].values.tolist() == [
        ["model.py(9): forward", "gemm", 2, 13000],
        ["train.py(3): step", "adam", 1, 2000],
    ]
    assert sources["share"].sum() == pytest.approx(1)
    other = kineto(tmp_path / "other.json", [on_device("kernel", "k", 0, 5, 1)])
    main([str(path), str(other)])
    # Of a device, like all times on the page.
    assert re.search(r"^model.py\(9\): forward +0.006 ms", capsys.readouterr().out, re.M)
    main([str(path), "--filter", "adam"])
    assert "model.py(9): forward" not in capsys.readouterr().out


def test_stacks_of_older_traces_belong_to_operators(tmp_path):
    stack = "torch/nn/functional.py(9): linear;a.py(7): forward;a.py(2): main"
    rows = [
        *launched("aten::mm", 0, 1, **{"Call stack": stack}),
        on_device("kernel", "gemm", 5, 5, 1),
    ]
    sources = read_tables([kineto(tmp_path / "trace.json", rows)]).sources
    assert sources["source"].tolist() == ["a.py(7): forward"]


def test_kernels_and_their_ceilings(tmp_path, monkeypatch, capsys):
    inputs = {"Input Dims": [[100, 100], [100, 100]], "Input type": ["float", "float"]}
    rows = [*launched("aten::mm", 0, 1, **inputs), on_device("kernel", "sgemm", 5, 4, 1)]
    path = kineto(tmp_path / "trace.json", [*rows, on_device("kernel", "sgemm", 0, 3, 9)])
    ceilings = tmp_path / "roofline.json"
    rates = {
        "matrix": [record(MatrixRate, format="fp32", shape=[4096] * 3, flops_per_second=1e12)],
        "memory": [record(Bandwidth, operation="copy", bytes_per_second=1e12)],
    }
    machine = {"status": "ok", "device": "H100", "kind": "cuda", "threads": 1, "torch": "2"}
    limits = record(Roofline, **machine, **rates, command="x")
    ceilings.write_text(limits.model_dump_json())
    (kernel,) = read_tables([path], roofline=str(ceilings)).breakdown.devices[0].kernel_times
    assert (kernel.flops, kernel.bytes, kernel.number_format) == (2_000_000, 120_000, "fp32")
    # 2 microseconds of arithmetic at 1 TFLOP/s, in 4 microseconds.
    assert kernel.roofline_share == pytest.approx(0.5)
    # The other kernel was launched before the recording, by whatever operator.
    assert (kernel.count, kernel.time_ns, kernel.counted_ns) == (2, 7_000, 4_000)
    assert main([str(path), "--roofline", str(ceilings)]) == 0
    told = capsys.readouterr().out
    assert "of ceiling" in told
    assert "50%" in told
    monkeypatch.setenv("COLUMNS", "60")
    main([str(path), "--roofline", str(ceilings)])
    assert all(len(line) <= 60 for line in capsys.readouterr().out.splitlines() if "  " in line)
    ceilings.write_text("{}")
    assert main([str(path), "--roofline", str(ceilings)]) == 1
    said = capsys.readouterr().err
    assert "does not contain ceilings" in said
    assert "snakemake --cores all results/machine/roofline.json" in said


def test_memory_over_time(tmp_path, capsys):
    rows = [
        complete("user_annotation", "phase:forward", 0, 50),
        complete("user_annotation", "layer:model/<a>", 20, 20),
        on_device("kernel", "k", 5, 90, 1),
        *(allocated(at, size) for at, size in ((10, 5_000), (30, 999_600_000), (60, 1_000))),
    ]
    path = kineto(tmp_path / "trace.json", rows)
    figure, table = tmp_path / "memory.svg", tmp_path / "events.parquet"
    assert main(["memory", str(path), "--output", str(figure)]) == 0
    told = "rank 0 cuda:0: most 1 GB at 0.030 ms during forward in model/<a>"
    assert told in capsys.readouterr().out
    drawn = ElementTree.fromstring(figure.read_text())
    assert told in [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    again = str(tmp_path / "again.svg")
    assert main(["memory", str(path), "--output", again, "--from", "0.02"]) == 0
    assert told in capsys.readouterr().out, "the time on the scale of --from"
    main([str(path), "--events", str(table)])
    assert main(["memory", str(table), "--output", again]) == 0
    assert Path(again).read_text() == figure.read_text()
    assert read_tables([path]).memory["bytes"].tolist() == [5_000, 999_600_000, 1_000]
    kineto(path, [on_device("kernel", "k", 0, 5, 1)])
    assert main(["memory", str(path), "--output", str(figure)]) == 1
    assert "contains no memory events" in capsys.readouterr().err


def test_a_figure_has_as_many_points_as_columns():
    rows = [
        {"kind": "memory", "t0_ns": t, "t1_ns": t, "bytes": t % 997, "stream": None}
        for t in range(5_000)
    ]
    found = rows_of(event_table([*rows, mark("step", 0, 5_000)]))
    (one,) = memory.series(found)
    text = memory.draw(found, [one])
    assert text.count("V") < 4 * 900
    assert f"most {996} B" in text
