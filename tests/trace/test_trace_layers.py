"""The tree of modules, and operators by the shapes of their inputs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from traces import complete, event_table, kineto, mark, on_device, work

from schemas.results import LayerUse, Roofline, ShapeUse
from schemas.results.machine import Bandwidth, MatrixRate
from transformer_core.observe.ranges import allocated_mark, mark_layers, torch_range
from transformer_core.trace.breakdown.summary import layers, roofline_share, shapes
from transformer_core.trace.events.event_table import rows_of
from transformer_core.trace.readers.files import read_files


def by_path(rows: list[dict[str, Any]]) -> dict[str, LayerUse]:
    return {layer.path: layer for layer in layers(rows_of(event_table(rows)))}


def test_a_module_has_what_runs_in_those_within() -> None:
    found = by_path(
        [
            work("gemm", 10, 30, layer="model/first", phase="forward", flops=100, launch_ns=1),
            work("gemm", 60, 90, layer="model/first", phase="backward", flops=200, launch_ns=5),
            work("gelu", 30, 35, layer="model", phase="forward", launch_ns=3),
            work("norm", 35, 39, layer="model/second", phase="loss", operator_bytes=8, launch_ns=4),
            work("adam", 95, 99, phase="optimizer"),
            mark("m", 0, 4, kind="module", layer="model", phase="forward", bytes=64),
            mark("m", 1, 2, kind="module", layer="model/first", phase="forward", bytes=16),
            mark("m", 5, 6, kind="module", layer="model/first", phase="backward", bytes=-16),
        ]
    )
    assert list(found) == ["model", "model/first", "model/second"]
    model, first, second = found.values()
    assert (model.forward_ns, model.backward_ns, model.own_ns) == (20 + 5 + 4, 30, 5)
    assert (model.flops, model.bytes, model.held_bytes, model.calls) == (300, 8, 64, 1)
    assert (first.time_ns, first.own_ns, first.calls, first.held_bytes) == (50, 50, 2, 16)
    assert (second.flops, second.bytes, second.calls, second.held_bytes) == (None, 8, None, None)


def test_a_trace_without_modules_has_no_tree() -> None:
    assert layers(rows_of(event_table([work("gemm", 0, 5)]))) == []


def test_backward_belongs_to_the_module_of_forward(tmp_path: Path) -> None:
    def operator(name: str, t0: float, sequence: int, thread: int) -> dict[str, Any]:
        return complete("cpu_op", name, t0, 4, tid=thread, **{"Sequence number": sequence})

    rows = [
        complete("user_annotation", "encoder", 0, 30),
        complete("user_annotation", "linear", 5, 10),
        operator("aten::addmm", 6, 17, 1),
        operator("AddmmBackward0", 50, 17, 2),  # on the thread of autograd
    ]
    for number, begin in ((1, 7), (2, 51)):
        thread = 1 if number == 1 else 2
        launch = {"correlation": number, "tid": thread}
        rows.append(complete("cuda_runtime", "cudaLaunchKernel", begin, 1, **launch))
        rows.append(on_device("kernel", "gemm", begin + 2, 3, number))
    memory = {"Device Type": 1, "Device Id": 0}
    for ts, allocated in ((1, 100), (7, 300), (14, 200)):
        moment = {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "ts": ts, "tid": 1}
        args = memory | {"Total Allocated": allocated}
        rows.append(moment | {"pid": 42, "args": args})
    table = read_files([kineto(tmp_path / "trace.json", rows)]).table
    kernels = [row for row in table.to_pylist() if row["kind"] == "kernel"]
    assert [row["layer"] for row in kernels] == ["encoder/linear", "encoder/linear"]
    found = {layer.path: layer for layer in layers(rows_of(table))}
    assert found["encoder"].other_ns == 6000
    # 100 bytes were allocated when it began, 200 when it ended.
    assert found["encoder/linear"].held_bytes == 100
    assert found["encoder"].held_bytes is None, "nothing was said before it began"
    sizes = [row["bytes"] for row in table.to_pylist() if row["kind"] == "memory"]
    assert sizes == [100, 300, 200]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.alone = torch.nn.Linear(4, 4)  # is not called

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 3:
            raise RuntimeError("three")
        return self.linear(x).relu()


def test_modules_of_a_training_are_ranges(tmp_path: Path) -> None:
    model = torch.nn.Sequential(Block(), Block())
    mark_layers(model, torch_range)
    with torch.profiler.profile(record_shapes=True, profile_memory=True) as profiler:
        model(torch.ones(2, 4)).sum().backward()
        with pytest.raises(RuntimeError, match="three"):
            model(torch.ones(3, 4))
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    found = {layer.path: layer for layer in layers(rows_of(read_files([path]).table))}
    assert list(found) == ["model", "model/0", "model/0/linear", "model/1", "model/1/linear"]
    assert found["model"].calls == 2, "a range ends where a module fails"
    assert found["model/1/linear"].calls == 1
    linear = found["model/0/linear"]
    # Forward, and backward to the weight alone: the input needs no gradient.
    assert linear.flops is not None
    assert linear.flops >= 2 * (2 * 2 * 4 * 4)
    assert found["model/1/linear"].flops > linear.flops
    assert linear.held_bytes is not None
    assert linear.held_bytes >= 2 * 4 * 4


def test_modules_of_a_training_tell_what_they_leave_allocated(tmp_path: Path) -> None:
    sizes = iter((100, 100, 700, 900))
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    mark_layers(model, torch_range, lambda: f"allocated:0:{next(sizes)}")
    with torch.profiler.profile() as profiler:
        model(torch.ones(1, 2))
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    table = read_files([path]).table
    found = {layer.path: layer.held_bytes for layer in layers(rows_of(table))}
    assert found == {"model": 800, "model/0": 600}
    memory = [row for row in table.to_pylist() if row["kind"] == "memory"]
    assert {row["device"] for row in memory} == {"cuda:0"}
    assert allocated_mark(torch.device("cpu")) is None


def test_compiled_modules_are_not_entered() -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2))
    outer = torch.nn.ModuleDict({"compiled": torch.compile(inner), "plain": torch.nn.Linear(2, 2)})
    mark_layers(outer, torch_range)
    assert outer["compiled"]._forward_pre_hooks
    assert outer["plain"]._forward_pre_hooks
    assert not inner[0]._forward_pre_hooks


def test_operators_by_shape() -> None:
    product = {"operator": "aten::mm", "operator_class": "contraction"}
    rows = [
        work("a", 0, 40, shapes="bf16 [8,4] [4,2]", flops=128, operator_bytes=112, **product),
        work("b", 50, 80, shapes="bf16 [8,4] [4,2]", flops=128, operator_bytes=112, **product),
        work("c", 80, 90, shapes="[9,9]", operator="aten::copy_", operator_class="other"),
        work("d", 90, 110),
    ]
    first, second = shapes(rows_of(event_table(rows)))
    assert (first.shapes, first.number_format, first.count) == ("[8,4] [4,2]", "bf16", 2)
    assert (first.time_ns, first.flops, first.bytes, first.share) == (70, 256, 224, 0.7)
    assert (second.number_format, second.flops, second.share) == (None, None, 0.1)
    assert len(shapes(rows_of(event_table(rows)), 1)) == 1


def test_the_share_of_the_roofline() -> None:
    def use(flops: int, size: int, kind: str = "contraction", form: str = "bf16") -> ShapeUse:
        return ShapeUse(
            operator="aten::mm",
            shapes="",
            number_format=form,
            operator_class=kind,
            count=1,
            time_ns=1000,
            share=None,
            flops=flops,
            bytes=size,
        )

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
