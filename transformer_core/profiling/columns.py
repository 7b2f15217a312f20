"""Compact rows for millions of events: eight bytes a value, every text once."""

from array import array

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

NULL = -(2**63)
"""Stands for null in columns of integers."""


def or_null(value: int | None) -> int:
    """``value`` as a column holds it."""
    return NULL if value is None else value


def nulls(count: int) -> Integers:
    """A column without values."""
    return np.full(count, NULL, np.int64)


class Names:
    """Distinct texts, numbered in order of appearance."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._ids: dict[str, int] = {}

    def id(self, text: str) -> int:
        """The number of ``text``."""
        number = self._ids.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number


class Columns:
    """Rows of integers, kept by column."""

    def __init__(self, *names: str) -> None:
        self._columns = {name: array("q") for name in names}
        self._append = [column.append for column in self._columns.values()]

    def add(self, *values: int) -> None:
        """A row, in the order of the columns."""
        for append, value in zip(self._append, values, strict=True):
            append(value)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: str) -> Integers:
        """A column. It shares the memory of the rows: no row can be added while it is in use."""
        return np.frombuffer(self._columns[name], np.int64) if len(self) else np.empty(0, np.int64)
