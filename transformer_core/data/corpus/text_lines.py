"""The lines of a text file, whatever its compression."""

import gzip
import io
import lzma
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from schemas.config.corpus import ReadingLimits
from transformer_core.data.corpus.corpus_error import CorpusError

BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 18
_LEAST_BLOCK, _MOST_BLOCK = 1 << 4, 1 << 11
"""Compressed bytes that Zstandard gets at a time: they may become 32,768 times as many, but at a
time when as many have become much more, it gets few."""
_USUAL = 64
"""No text becomes more than so many times as long."""
_FREE = 1 << 26
"""Bytes of a file, decompressed, from which on their ratio to its size counts."""
_LIMITS = ReadingLimits()
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile)
_REMEDY_DAMAGE = "get the file again, or check that its ending says how it is compressed"


def open_decompressed(path: Path) -> BinaryIO:
    """A stream of the bytes in ``path``, decompressed by its ending (.gz, .xz, .zst).

    Raises CorpusError for a pipe or a device, which may have no end.
    """
    check_regular(path)
    raw: io.RawIOBase | gzip.GzipFile | lzma.LZMAFile
    match path.suffix.lower():
        case ".gz":
            raw = gzip.open(path, "rb")  # noqa: SIM115
        case ".xz":
            raw = lzma.open(path, "rb")  # noqa: SIM115
        case ".zst":
            raw = _ZstandardFile(path)
        case _:
            return path.open("rb", buffering=_BUFFER)
    return io.BufferedReader(raw, _BUFFER)


def check_regular(path: Path) -> None:
    """CorpusError for a pipe or a device; what is wrong otherwise, opening it says."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        message = "is a pipe or a device, which may have no end"
        raise CorpusError(message, file=path, remedy="write it to a file first")


def read_lines(path: Path, limits: ReadingLimits = _LIMITS) -> Iterator[bytes]:
    r"""The lines of a file, without their end.

    Lines end at ``\n`` alone (one ``\r`` before it belongs to the end), so that other line
    separators inside a sentence do not shift an alignment. A byte-order mark is dropped.

    Raises CorpusError if the file cannot be read, its compression is damaged, or it goes beyond the
    limits.
    """
    number, total, rest = 0, 0, b""
    try:
        with open_decompressed(path) as stream:
            most = most_bytes(path, limits, path.suffix.lower() in (".gz", ".xz", ".zst"))
            # In large pieces, which are split at once: faster than line by line.
            while piece := stream.read(_BUFFER):
                whole = rest + (piece if total else piece.removeprefix(BOM))
                *lines, rest = whole.split(b"\n")
                total += len(piece)
                _check(path, limits, total, most, max(len(rest), len(lines[0]) if lines else 0))
                if b"\r" in whole:
                    lines = [line.removesuffix(b"\r") for line in lines]
                yield from lines
                number += len(lines)
            if rest:
                yield rest.removesuffix(b"\r")
    except _DAMAGE as error:
        message = f"is damaged or cut off after line {number} ({error})"
        raise CorpusError(message, file=path, remedy=_REMEDY_DAMAGE) from error
    except OSError as error:
        raise unreadable(path, error) from error


def most_bytes(path: Path, limits: ReadingLimits, compressed: bool) -> float:
    """How long a file may become."""
    if not compressed:
        return limits.file
    return min(limits.file, max(_FREE, limits.ratio * path.stat().st_size))


def _check(path: Path, limits: ReadingLimits, total: int, most: float, line: int) -> None:
    """Refuse what goes beyond the limits after ``total`` bytes, with the length of a long line."""
    if line > limits.line:
        message = f"has a line of more than {limits.line:,} bytes before byte {total:,}"
        limit = "line"
    elif total > most:
        message = (
            f"goes on after byte {round(most):,}, {most / path.stat().st_size:.0f} times its size"
        )
        limit = "file" if most == limits.file else "ratio"
    else:
        return
    remedy = f"check what the file holds, or raise corpus.limits.{limit}"
    raise CorpusError(message, file=path, remedy=remedy)


def unreadable(path: Path, error: OSError) -> CorpusError:
    """The CorpusError for a file that the system refuses to open or read."""
    reason = (error.strerror or str(error)).lower()
    return CorpusError(
        f"cannot be read: {reason}",
        file=path,
        remedy=f"check the path (relative ones start at {Path.cwd()}) and its permissions",
    )


class _ZstandardFile(io.RawIOBase):
    """Zstandard frames; unlike the reader of the package, it calls a cut end an error."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame = self._decompressor.decompressobj()
        self._within_frame = False
        self._ready = b""
        self._block = _LEAST_BLOCK

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            block = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = self._decompressor.decompressobj()
                self._within_frame = False
            block = block or self._file.read(self._block)
            if not block:
                if self._within_frame:
                    raise EOFError("the last frame is incomplete")
                return 0
            self._within_frame = True
            self._ready = self._frame.decompress(block)
            usual = len(self._ready) <= _USUAL * len(block)
            self._block = min(2 * self._block, _MOST_BLOCK) if usual else _LEAST_BLOCK
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
