"""Compact rows for millions of events: eight bytes a value, every text once."""

from array import array
from collections.abc import Iterable

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


class Names(dict[str, int]):
    """Distinct texts, numbered in order of appearance: ``names[text]`` is the number."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self.texts)
        self.texts.append(text)
        return number

    def of(self, texts: Iterable[str]) -> Integers:
        """The numbers of many texts."""
        return np.fromiter(map(self.__getitem__, texts), np.int64)


class Columns:
    """Rows of integers, kept by column."""

    def __init__(self, *names: str) -> None:
        self._columns = {name: array("q") for name in names}

    def add(self, *values: int) -> None:
        """A row, in the order of the columns."""
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def extend(self, count: int, **values: Integers | int) -> None:
        """Many rows; a column for which there is one number has it in all, one not named null."""
        for name, column in self._columns.items():
            found = values.pop(name, NULL)
            if isinstance(found, int):
                found = np.full(count, found, np.int64)
            assert len(found) == count, name
            column.frombytes(np.ascontiguousarray(found, np.int64).view(np.uint8).data)
        assert not values, f"no such columns: {', '.join(values)}"

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Leave out the rows where ``mask`` is false."""
        for name in self._columns:
            kept = self[name][mask]
            self._columns[name] = array("q")
            self._columns[name].frombytes(kept.view(np.uint8).data)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: str) -> Integers:
        """A column. It shares the memory of the rows: no row can be added while it is in use."""
        return np.frombuffer(self._columns[name], np.int64) if len(self) else np.empty(0, np.int64)
