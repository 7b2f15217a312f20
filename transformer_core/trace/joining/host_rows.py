"""Rows of a CPU: the self time of operators, and the collectives beside them."""

import numpy as np

from transformer_core.trace.events import event_table
from transformer_core.trace.events.texts import chosen, mapped
from transformer_core.trace.events.time_intervals import innermost
from transformer_core.trace.joining.process_rows import ProcessRows
from transformer_core.trace.operators import operator_classes
from transformer_core.trace.operators.collective_names import collective_named
from transformer_core.trace.readers.columns import Integers, nulls

_NOTHING = np.empty(0, np.int64)


def host_rows(rows: ProcessRows) -> dict[str, Integers]:
    """The columns of what the CPU of a process did."""
    mine, talks, names = rows.trace.operators, rows.trace.collectives, rows.names
    sizes, group_sizes, groups = rows.messages
    t0, t1, operator = _self_times(rows)
    flops, traffic = rows.work(operator, t0)
    count, begin = len(talks), np.concatenate([t0, talks["t0"]])
    name = mine["name"][operator]
    thread = np.concatenate([mine["thread"][operator], talks["thread"]])

    def both(of_operators: str, of_collectives: str) -> Integers:
        numbers = names[of_operators], names[of_collectives]
        return np.repeat(np.array(numbers, np.int64), [len(t0), count])

    def beside(of_operators: Integers) -> Integers:
        return np.concatenate([of_operators, nulls(count)])

    def of_talks(values: Integers) -> Integers:
        return np.concatenate([nulls(len(t0)), values])

    return {
        "device": both("cpu", "cpu"),
        "stream": thread,
        "t0_ns": begin,
        "t1_ns": np.concatenate([t1, talks["t1"]]),
        "kind": both("operator", "operator"),
        "name": np.concatenate([name, talks["name"]]),
        "class": both(event_table.COMPUTE, event_table.COMMUNICATION),
        "collective": of_talks(mapped(names, talks["name"], collective_named)),
        "bytes": of_talks(sizes),
        "group_size": of_talks(group_sizes),
        "group": of_talks(groups),
        "thread": thread,
        "launch_ns": begin,
        "operator": beside(name),
        "shapes": beside(rows.shapes(operator)),
        "operator_class": np.concatenate(
            [
                rows.operator_classes(operator),
                np.full(count, names[operator_classes.COMMUNICATION]),
            ]
        ),
        "layer": rows.layers.at(thread, begin),
        **rows.marks.placed(begin),
        "flops": beside(flops),
        "operator_bytes": beside(traffic),
    }


def _self_times(rows: ProcessRows) -> tuple[Integers, Integers, Integers]:
    """Begin, end and operator of every stretch in which a CPU computes."""
    mine, ranges = rows.trace.operators, rows.trace.ranges
    works = chosen(rows.names, mine["name"], _computes)
    talking = np.unique(rows.trace.collectives["thread"])
    parts = [(_NOTHING, _NOTHING, _NOTHING)]
    # What the thread of a collective copies is part of the collective.
    of_mine, of_marks = ([rows[name] for name in ("thread", "t0", "t1")] for rows in (mine, ranges))
    for thread in np.setdiff1d(of_mine[0], talking).tolist():
        place = np.flatnonzero(of_mine[0] == thread)
        marks = np.flatnonzero(of_marks[0] == thread)
        # A range inside an operator is Python again: its own time is not computation.
        cut = innermost(
            np.concatenate([of_mine[1][place], of_marks[1][marks]]),
            np.concatenate([of_mine[2][place], of_marks[2][marks]]),
        )
        owned = cut.owner < len(place)
        operator = place[cut.owner[owned]]
        kept = works[operator]
        parts.append((cut.t0[owned][kept], cut.t1[owned][kept], operator[kept]))
    t0, t1, operator = (np.concatenate([part[k] for part in parts]) for k in range(3))
    return t0, t1, operator


def _computes(name: str) -> bool:
    """Whether the self time of an operator is computation: not waiting for others, nor the
    autograd engine's own."""
    if "Compiled" in name:
        return True
    if "::" not in name or operator_classes.operator_class(name) == operator_classes.COMMUNICATION:
        return False
    return not name.startswith(("autograd::", "torch::autograd::"))
