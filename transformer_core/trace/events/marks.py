"""The ranges of steps and phases of a process, and what lies within them."""

from functools import cached_property

import numpy as np

from transformer_core.trace.events import phases
from transformer_core.trace.events.texts import mapped, taken
from transformer_core.trace.events.time_intervals import Segments, innermost
from transformer_core.trace.readers.columns import NULL, Integers
from transformer_core.trace.readers.process_trace import ProcessTrace

_NOTHING = np.empty(0, np.int64)


class Marks:
    """Steps and phases by the names of ranges. What the program marks itself counts; what PyTorch
    marks only where it does not."""

    def __init__(self, trace: ProcessTrace) -> None:
        self.trace = trace

    @cached_property
    def steps(self) -> tuple[Integers, Integers, Integers, Integers]:
        """Names (as numbers), begins, ends and threads of the steps, in order of time."""
        return self._found(True)

    @cached_property
    def phases(self) -> tuple[Integers, Integers, Integers, Integers]:
        """Of the phases likewise; the names are those of :data:`phases.PHASES`."""
        return self._found(False)

    def placed(self, times: Integers) -> dict[str, Integers]:
        """Phase and step around each time, of whatever thread."""
        step = self._step.at(times)
        return {
            "phase": taken(self.phases[0], self._phase.at(times)),
            "step": np.where(step >= 0, step, NULL),
        }

    @cached_property
    def _step(self) -> Segments:
        return innermost(self.steps[1], self.steps[2])

    @cached_property
    def _phase(self) -> Segments:
        return innermost(self.phases[1], self.phases[2])

    def _found(self, steps: bool) -> tuple[Integers, Integers, Integers, Integers]:
        names = self.trace.names
        parts: list[tuple[Integers, ...]] = [(_NOTHING,) * 4]
        for rows in (self.trace.ranges, self.trace.operators):
            if not len(rows):
                continue
            found = {
                number: phase
                for number in rows.distinct("name")
                if (phase := phases.phase_of(names.texts[number]))
                and (phase == phases.STEP) == steps
            }
            own = {n for n, p in found.items() if names.texts[n] == phases.label(p)}
            chosen = rows.places("name", own or found)
            labels = mapped(names, rows.take("name", chosen), phases.phase_of)
            parts.append((labels, *(rows.take(name, chosen) for name in ("t0", "t1", "thread"))))
            if own or (steps and found):
                break
        columns = [np.concatenate([part[k] for part in parts]) for k in range(4)]
        order = np.argsort(columns[1], kind="stable")
        name, t0, t1, thread = (column[order] for column in columns)
        return name, t0, t1, thread
