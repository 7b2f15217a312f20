"""What happens to files: bits flip, ends are missing, blocks are zeros, files are mixed up.

Each function does it to a file and leaves its time stamps as they were.
"""

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from transformer_core.common.seals import seal_file

Damage = Callable[[Path, Sequence[Path], random.Random], None]
"""Damages a file; the others are of the same kind."""


def _edit(change: Callable[[bytearray, random.Random], bytearray]) -> Damage:
    def damage(path: Path, others: Sequence[Path], chance: random.Random) -> None:
        _put(path, bytes(change(bytearray(path.read_bytes()), chance)))

    return damage


def _put(path: Path, content: bytes) -> None:
    stat = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _flip(content: bytearray, chance: random.Random) -> bytearray:
    if content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return content


def _scatter(content: bytearray, chance: random.Random) -> bytearray:
    for _ in range(chance.randint(2, 20)):
        content = _flip(content, chance)
    return content


def _cut(content: bytearray, chance: random.Random) -> bytearray:
    return content[: chance.randrange(max(1, len(content)))]


def _zeros(content: bytearray, chance: random.Random) -> bytearray:
    """A block of the file system that was never written."""
    start = chance.randrange(max(1, len(content))) // 512 * 512
    size = min(chance.choice((512, 4096, len(content))), len(content) - start)
    content[start : start + size] = bytes(size)
    return content


def _grow(content: bytearray, chance: random.Random) -> bytearray:
    return content + chance.randbytes(chance.randint(1, 64))


def _digit(content: bytearray, chance: random.Random) -> bytearray:
    """Another number, as an editor would leave it."""
    digits = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    if digits:
        place = chance.choice(digits)
        content[place] = 48 + (content[place] - 48 + chance.randint(1, 9)) % 10
    return content


def _swap(path: Path, others: Sequence[Path], chance: random.Random) -> None:
    if others:
        _put(path, chance.choice(others).read_bytes())


def _swap_with_seal(path: Path, others: Sequence[Path], chance: random.Random) -> None:
    if others:
        other = chance.choice(others)
        _put(path, other.read_bytes())
        if seal_file(other).exists():
            shutil.copy2(seal_file(other), seal_file(path))


def _flip_seal(path: Path, others: Sequence[Path], chance: random.Random) -> None:
    if seal_file(path).exists():
        _put(seal_file(path), bytes(_flip(bytearray(seal_file(path).read_bytes()), chance)))


KINDS: dict[str, Damage] = {
    "bit_flipped": _edit(_flip),
    "bits_flipped": _edit(_scatter),
    "cut_off": _edit(_cut),
    "zeros": _edit(_zeros),
    "grown": _edit(_grow),
    "digit_changed": _edit(_digit),
    "of_another_run": _swap,
    "of_another_run_with_seal": _swap_with_seal,
    "seal_flipped": _flip_seal,
}
