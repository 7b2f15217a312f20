"""Time, FLOPs and bytes by class of operators, and backward against forward."""

from numpy.typing import NDArray

from schemas.results.profiles import ForwardBackward, OperatorClass
from transformer_core.trace.events import phases
from transformer_core.trace.events.rows import Rows
from transformer_core.trace.operators import operator_classes as operators
from transformer_core.trace.readers.columns import NULL

_LINEAR = ("mm", "addmm", "linear", "mkldnn_linear", "_addmm_activation", "_scaled_mm")
_ATTENTION = ("bmm", "baddbmm", "scaled_dot_product", "attention")


def operator_classes(rows: Rows) -> list[OperatorClass]:
    """The classes that ran on a device, in the order of :data:`operators.OPERATOR_CLASSES`."""
    durations = rows.durations
    total = int(durations[~rows.missing("operator_class")].sum())
    found = []
    for name in operators.OPERATOR_CLASSES:
        mine = rows.equal("operator_class", name)
        if not mine.any():
            continue
        time = int(durations[mine].sum())
        counted = mine & (rows["flops"] != NULL)
        # Without types there are FLOPs, but no bytes.
        both = counted & (rows["operator_bytes"] != NULL)
        counted = both if both.any() else counted
        flops = int(rows["flops"][counted].sum()) if counted.any() else None
        traffic = int(rows["operator_bytes"][both].sum()) if both.any() else None
        found.append(
            OperatorClass(
                operator_class=name,
                count=int(mine.sum()),
                time_ns=time,
                share=time / total if total else None,
                flops=flops,
                bytes=traffic,
                counted_ns=int(durations[counted].sum()),
                intensity=flops / traffic if flops is not None and traffic else None,
            )
        )
    return found


def forward_backward(rows: Rows) -> list[ForwardBackward]:
    """Backward against forward, by group of operators."""
    durations = rows.durations
    contraction = rows.equal("operator_class", operators.CONTRACTION)
    known = [name for name in rows.texts["operator"] if name is not None]
    forward = rows.equal("phase", phases.FORWARD, phases.LOSS)
    backward = rows.equal("phase", phases.BACKWARD)
    found = []
    for group in ("linear", "attention", operators.NORMALIZATION, operators.ELEMENT_WISE):
        if group in (operators.NORMALIZATION, operators.ELEMENT_WISE):
            mine = rows.equal("operator_class", group)
        else:
            named = [name for name in known if _contraction(name) == group]
            mine = contraction & rows.equal("operator", *named)
        times = [int(durations[mine & phase].sum()) for phase in (forward, backward)]
        ratios = [
            _ratio(rows[column][mine & forward], rows[column][mine & backward])
            for column in ("flops", "operator_bytes")
        ]
        if not any(times):
            continue
        found.append(
            ForwardBackward(
                operators=group,
                forward_ns=times[0],
                backward_ns=times[1],
                ratio=times[1] / times[0] if all(times) else None,
                flops_ratio=ratios[0],
                bytes_ratio=ratios[1],
            )
        )
    return found


def _contraction(operator: str | None) -> str | None:
    """Products with weights apart from those of attention; null for a kernel of no operator."""
    base = (operator or "").rpartition("::")[2]
    if any(part in base for part in _ATTENTION):
        return "attention"
    return "linear" if base in _LINEAR else None


def _ratio(forward: NDArray, backward: NDArray) -> float | None:
    """The sum of what is known backward over forward."""
    first, second = (int(values[values != NULL].sum()) for values in (forward, backward))
    return second / first if first and second else None
