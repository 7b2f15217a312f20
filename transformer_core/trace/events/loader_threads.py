"""Threads that feed the training beside it, such as those of DALI or of a pinning DataLoader.

What they copy falls into whatever phase happens to run, and belongs to none.
"""

import numpy as np
from numpy.typing import NDArray

from transformer_core.trace.events.marks import Marks
from transformer_core.trace.events.phases import BACKWARD
from transformer_core.trace.readers.columns import NULL, Integers, Names

Mask = NDArray[np.bool_]

_MOST = 0.9


def of_loaders(
    marks: Marks,
    thread: Integers,
    kernel: Mask,
    in_operator: Mask,
    talks: Mask,
    phase: Integers,
    names: Names,
) -> Mask:
    """The device events that were launched by threads which launch no kernel of the step.

    A thread takes part in the step if it carries ranges of phases or steps, launches from within
    operators, communicates, or launches nearly all its kernels during backward, as the threads of
    autograd do. Without ranges of phases there is nothing to tell apart.
    """
    nobody = np.zeros(len(thread), np.bool_)
    marked = set(marks.phases[3].tolist())
    if not marked:
        return nobody
    backward = names[BACKWARD]
    marks_backward = bool((marks.phases[0] == backward).any())
    own = marked | set(marks.steps[3].tolist())
    found = nobody.copy()
    for number in np.unique(thread[thread != NULL]).tolist():
        mine = thread == number
        kernels = mine & kernel
        if number in own or (mine & in_operator).any() or (mine & talks).any():
            continue
        count = int(kernels.sum())
        if count and not marks_backward:
            continue  # may well be autograd's
        if count and int((kernels & (phase == backward)).sum()) >= _MOST * count:
            continue
        found |= mine
    return found
