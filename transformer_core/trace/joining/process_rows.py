"""What the rows of device and host share: operators, collectives and phases of one process.

Columns of texts hold numbers of names until the table is made.
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from transformer_core.trace.events.joins import leaves
from transformer_core.trace.events.layers import Layers
from transformer_core.trace.events.marks import Marks
from transformer_core.trace.operators import operator_classes
from transformer_core.trace.operators.collective_names import collective_named, message_bytes
from transformer_core.trace.readers.columns import NULL, Integers, nulls
from transformer_core.trace.readers.process_trace import ProcessTrace


class ProcessRows:
    """A process, with what several columns need."""

    def __init__(self, trace: ProcessTrace) -> None:
        self.trace = trace
        self.names = trace.names
        self.marks = Marks(trace)
        self.layers = Layers(trace)

    @cached_property
    def messages(self) -> tuple[Integers, Integers, Integers]:
        """Bytes, size of the group and group of the collectives that have ranges; null where
        unknown."""
        rows, ranks = self.trace.collectives, self.trace.ranks
        group = self.with_usual_group(rows["group"])
        sizes = rows["group_size"].copy()
        unknown = sizes == NULL
        sizes[unknown] = self.group_sizes(group[unknown])
        if ranks is not None:
            sizes[(sizes == NULL) & (group == NULL)] = ranks
        found = [
            size
            if whole or size == NULL
            else message_bytes(
                collective_named(self.names.texts[name]), size, None, None if n == NULL else n
            )
            for size, whole, name, n in zip(
                rows["bytes"].tolist(),
                rows["whole"].tolist(),
                rows["name"].tolist(),
                sizes.tolist(),
                strict=True,
            )
        ]
        return np.array([NULL if v is None else v for v in found], np.int64), sizes, group

    def with_usual_group(self, group: Integers) -> Integers:
        """Groups, with that of the process where a collective does not name its own."""
        usual = self.trace.usual_group
        return group.copy() if usual is None else np.where(group == NULL, self.names[usual], group)

    def group_sizes(self, group: Integers) -> Integers:
        """How many ranks the groups have; null where unknown."""
        counts = [
            NULL if n == NULL or (text := self.names.texts[n])[:1] == "#" else text.count(",") + 1
            for n in group.tolist()
        ]
        return np.array(counts, np.int64)

    @cached_property
    def _kinds(self) -> dict[int, int]:
        """The classes of operators by the numbers of their names."""
        texts, names = self.names.texts, self.trace.operators.distinct("name")
        return {n: self.names[operator_classes.operator_class(texts[n])] for n in names}

    def operator_classes(self, operator: Integers) -> Integers:
        """The class of the operator of each row; null for none (-1)."""
        return self._of_operator("name", operator, self._kinds)

    def operator_names(self, operator: Integers) -> Integers:
        """Its name likewise."""
        return self._of_operator("name", operator, None)

    def _of_operator(
        self, column: str, operator: Integers, made: Mapping[int, int] | None
    ) -> Integers:
        found, some = nulls(len(operator)), operator >= 0
        values = self.trace.operators.take(column, operator[some])
        if made is not None:
            present, place = np.unique(values, return_inverse=True)
            values = np.array([made[n] for n in present.tolist()], np.int64)[place]
        found[some] = values
        return found

    def work(self, operator: Integers, t0: Integers) -> tuple[Integers, Integers]:
        """FLOPs and bytes of the operator of each row (-1 for none): all of them on its first
        row, 0 on the others, null where its shapes do not tell."""
        order = np.lexsort((t0, operator))
        order = order[operator[order] >= 0]
        order = order[self._leaves(operator[order])]
        chosen = operator[order]
        first = np.ones(len(chosen), np.bool_)
        first[1:] = chosen[1:] != chosen[:-1]
        calls = self.trace.operators.take("call", chosen)
        columns = []
        for values in ([w.flops for w in self.trace.work], [w.bytes for w in self.trace.work]):
            known = np.array([NULL if v is None or v >= 2**62 else v for v in values], np.int64)
            of_call = known[calls] if len(chosen) else nulls(0)
            column = nulls(len(operator))
            column[order] = np.where(first | (of_call == NULL), of_call, 0)
            columns.append(column)
        return columns[0], columns[1]

    def shapes(self, operator: Integers) -> Integers:
        """The shapes of the inputs of the operator of each row, as text."""
        numbers = {k: self.names[t] if t else NULL for k, t in enumerate(self.trace.shapes)}
        return self._of_operator("call", operator, numbers)

    def _leaves(self, operator: Integers) -> NDArray[np.bool_]:
        # All others have no arithmetic and no traffic that is known.
        working = ("CONTRACTION", "NORMALIZATION", "ELEMENT_WISE")
        wanted = [self.names[getattr(operator_classes, name)] for name in working]
        present, place = np.unique(operator, return_inverse=True)
        return leaves(self.trace.operators, present, self._kinds, wanted)[place]
