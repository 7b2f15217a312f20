"""Columns that hold numbers of texts: mapping, taking, and turning them into Arrow's columns."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from transformer_core.trace.readers.columns import NULL, Integers, Names, nulls
from transformer_core.trace.readers.spilled import picked


def taken(values: Integers, places: Integers) -> Integers:
    """``values`` at ``places``; null at -1."""
    found = nulls(len(places))
    some = places >= 0
    found[some] = picked(values, picked(places, np.flatnonzero(some)))
    return found


def mapped(names: Names, values: Integers, name: Callable[[str], str | None]) -> Integers:
    """The number of the name that a function gives each text; null stays null."""
    some = values != NULL
    present = np.flatnonzero(np.bincount(values[some])) if some.any() else np.empty(0, np.int64)
    # Texts come into being here: only those that were there are asked for.
    answers = [name(names.texts[number]) for number in present.tolist()]
    if not len(present):
        return nulls(len(values))
    table = nulls(int(present[-1]) + 1)
    table[present] = [NULL if answer is None else names[answer] for answer in answers]
    found = nulls(len(values))
    found[some] = table[values[some]]
    return found


def chosen(names: Names, values: Integers, accept: Callable[[str], object]) -> NDArray[np.bool_]:
    """Where a function accepts the text."""
    yes = mapped(names, values, lambda text: "" if accept(text) else None)
    return yes != NULL
