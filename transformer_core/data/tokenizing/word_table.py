"""A table of words and their token ids, looked up in raw UTF-8 by compiled code without the GIL.

A word ends before each space that is followed by a visible character and, where that is asked for,
before punctuation that follows a letter. Whether the ids of a text are those of its words is for
:mod:`transformer_core.data.tokenizing.words` to say.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from transformer_core.data.tokenizing.words import SPACE, SPACES_BEYOND_ASCII


class Found(NamedTuple):
    """The words of n texts, in order, as entries of a table."""

    entries: NDArray[np.int32]
    """[words] entry of each word; -1 where the table does not have it."""
    firsts: NDArray[np.int64]
    """[n + 1] number of the first word of each text."""
    missing: NDArray[np.int64]
    """[missing, 3] number, begin and end of the words without an entry, repeated ones too."""


class WordTable:
    """Distinct words with their ids, up to a fixed number.

    Any number of threads may look up while one adds or learns: entries from ``count`` on have no
    ids yet and are not there for them, and what was added before never moves.

    Args:
        words: most words.
        size: most bytes of all words, and most ids.
        id_type: type of the ids.
        punctuation: whether a word also ends between a letter from a to z, of any case, and one of
            ``. , ! ? ; :``. Otherwise each word has an entry for everything that may follow it.
    """

    def __init__(self, words: int, size: int, id_type: np.dtype, punctuation: bool = False) -> None:
        self.count = 0
        """Entries whose ids are known."""
        self.added = 0
        """All entries."""
        self._punctuation = punctuation
        slots = 1 << (2 * words - 1).bit_length()
        # Unused memory is never taken: the system gives pages as they are touched.
        self._slots = np.zeros(slots, np.int32)
        self._hashes = np.empty(words, np.uint64)
        self._text = np.empty(size, np.uint8)
        self._limits = np.zeros(words + 1, np.int64)
        self._ids = np.empty(size, id_type)
        self._id_limits = np.zeros(words + 1, np.int64)

    def find(self, data: NDArray[np.uint8], limits: NDArray[np.int64]) -> Found:
        """The words of texts; text i is ``data[limits[i]:limits[i + 1]]``."""
        most = int(limits[-1] - limits[0])
        entries = np.empty(most, np.int32)
        firsts = np.empty(len(limits), np.int64)
        missing = np.empty((most, 3), np.int64)
        words, absent = _find(
            data,
            limits,
            self.count,
            self._slots,
            self._hashes,
            self._text,
            self._limits,
            self._punctuation,
            entries,
            firsts,
            missing,
            np.empty(most + 1, np.int64),
            np.empty(most, np.uint64),
        )
        return Found(entries[:words], firsts, missing[:absent])

    def add(self, data: NDArray[np.uint8], found: Found) -> pa.LargeStringArray | None:
        """Enter the missing words of ``found``, which then has no -1; the words that were new.

        They count once :meth:`learn` gets their ids. None if they are too many: the table is then
        useless.
        """
        end = _add(
            data,
            found.missing,
            self.added,
            self._slots,
            self._hashes,
            self._text,
            self._limits,
            found.entries,
        )
        if end < 0:
            return None
        limits = pa.py_buffer(self._limits[self.added : end + 1])
        new = pa.LargeStringArray.from_buffers(end - self.added, limits, pa.py_buffer(self._text))
        self.added = end
        return new

    def learn(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> bool:
        """Take the ids of the next words without ids, in a row; False if they are too many."""
        first, end = int(self._id_limits[self.count]), self.count + len(lengths)
        if first + len(ids) > len(self._ids):
            return False
        self._ids[first : first + len(ids)] = ids
        np.cumsum(lengths, out=self._id_limits[self.count + 1 : end + 1])
        self._id_limits[self.count + 1 : end + 1] += first
        self.count = end
        return True

    def gather(self, found: Found) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of all texts in a row, and [n + 1] where each text begins and ends."""
        offsets = np.empty(len(found.firsts), np.int64)
        _measure(found.entries, found.firsts, self._id_limits, offsets)
        ids = np.empty(offsets[-1], self._ids.dtype)
        _gather(found.entries, self._ids, self._id_limits, ids)
        return ids, offsets


# Compiled at the first use, then kept in __pycache__.
_compiled = njit(nogil=True, cache=True)


@_compiled
def _word(data, begin, stop, punctuation):  # type: ignore[no-untyped-def]
    """Where the word that begins at ``begin`` ends, in a text that ends at ``stop``; and its hash.

    FNV-1a over 64 bits, with the last step of MurmurHash3 to spread what it gives.
    """
    value = np.uint64(0xCBF29CE484222325)
    end = begin
    while end < stop:
        byte = data[end]
        if byte < 0x40 and begin < end:
            if byte == SPACE:
                if end < stop - 1:
                    follows = data[end + 1]
                    # A byte that may be white space stays with the word before it.
                    if follows > SPACE and follows not in SPACES_BEYOND_ASCII:
                        break
            elif punctuation and byte in (0x21, 0x2C, 0x2E, 0x3A, 0x3B, 0x3F):
                before = data[end - 1] | 0x20  # a small letter, if it is one
                if 0x61 <= before <= 0x7A:
                    break
        value = (value ^ np.uint64(byte)) * np.uint64(0x100000001B3)
        end += 1
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    return end, value ^ (value >> np.uint64(33))


@_compiled
def _same(data, begin, end, entry, text, limits):  # type: ignore[no-untyped-def]
    """Whether a word is that of an entry."""
    other = limits[entry]
    if limits[entry + 1] - other != end - begin:
        return False
    while begin < end and data[begin] == text[other]:
        begin += 1
        other += 1
    return begin == end


@_compiled
def _search(data, begin, end, value, known, slots, hashes, text, limits):  # type: ignore[no-untyped-def]
    """Entry of a word below ``known`` (else -1), and the slot where the search ended."""
    mask = len(slots) - 1
    slot = np.int64(value & np.uint64(mask))
    while True:
        entry = slots[slot] - 1
        if entry < 0 or entry >= known:
            return -1, slot
        if hashes[entry] == value and _same(data, begin, end, entry, text, limits):
            return entry, slot
        slot = (slot + 1) & mask


@_compiled
# long: three passes over arrays that they share, compiled as one
def _find(  # type: ignore[no-untyped-def]
    data,
    starts,
    count,
    slots,
    hashes,
    text,
    limits,
    punctuation,
    entries,
    firsts,
    missing,
    begins,
    values,
):
    """Number of words, and of those that are missing; ``begins`` and ``values`` are work space.

    First all words, then all slots, then all comparisons: the processor waits for the memory of
    many words at a time, and not of one after the other.
    """
    words = absent = 0
    for number in range(len(starts) - 1):
        firsts[number] = words
        begin, stop = starts[number], starts[number + 1]
        while begin < stop:
            begins[words] = begin
            begin, values[words] = _word(data, begin, stop, punctuation)
            words += 1
    firsts[len(starts) - 1] = words
    # A word ends where the next one begins, for texts lie one after the other.
    begins[words] = starts[len(starts) - 1]
    mask = np.uint64(len(slots) - 1)
    for word in range(words):
        entries[word] = slots[values[word] & mask] - 1
    for word in range(words):
        entry, value = entries[word], values[word]
        begin, end = begins[word], begins[word + 1]
        found = (
            0 <= entry < count
            and hashes[entry] == value
            and _same(data, begin, end, entry, text, limits)
        )
        if not found:
            entry, _ = _search(data, begin, end, value, count, slots, hashes, text, limits)
            entries[word] = entry
            if entry < 0:
                missing[absent, 0] = word
                missing[absent, 1] = begin
                missing[absent, 2] = end
                absent += 1
    return words, absent


@_compiled
def _add(data, missing, count, slots, hashes, text, limits, entries):  # type: ignore[no-untyped-def]
    """Number of words with the new ones; -1 if they do not fit."""
    for row in range(len(missing)):
        begin, end = missing[row, 1], missing[row, 2]
        _, value = _word(data, begin, end, False)  # a whole word: nothing cuts it
        entry, slot = _search(data, begin, end, value, count, slots, hashes, text, limits)
        if entry < 0:
            entry = count
            first = limits[entry]
            last = first + end - begin
            if entry == len(hashes) or last > len(text):
                return -1
            text[first:last] = data[begin:end]
            hashes[entry] = value
            limits[entry + 1] = last
            count += 1
            slots[slot] = count
        entries[missing[row, 0]] = entry
    return count


@_compiled
def _measure(entries, firsts, id_limits, offsets):  # type: ignore[no-untyped-def]
    total = 0
    for number in range(len(firsts) - 1):
        offsets[number] = total
        for word in range(firsts[number], firsts[number + 1]):
            entry = entries[word]
            total += id_limits[entry + 1] - id_limits[entry]
    offsets[len(firsts) - 1] = total


@_compiled
def _gather(entries, known, id_limits, ids):  # type: ignore[no-untyped-def]
    place = 0
    for word in range(len(entries)):
        entry = entries[word]
        for source in range(id_limits[entry], id_limits[entry + 1]):
            ids[place] = known[source]
            place += 1
