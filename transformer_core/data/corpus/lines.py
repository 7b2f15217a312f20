"""Corpora of lines: text files of any compression, and their rows as text, TSV or JSON Lines."""

import gzip
import io
import json
import lzma
import stat
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from schemas.config.data import ReadingLimits
from transformer_core.data.corpus.rows import CorpusError, Invalid, Pair, Row, not_utf8

BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 18
_LEAST_BLOCK, _MOST_BLOCK = 1 << 4, 1 << 11
"""Compressed bytes that a frame gets at a time: they may become 32,768 times as many, but at a
time when as many have become much more, it gets few."""
_MOST_DICTIONARY = 1 << 28
"""Most memory in bytes that a file may want for decompressing it: `xz -9` wants 65 MiB, and a file may
say 4 GiB."""
_USUAL = 64  # text never expands by more than this factor
_FREE = 1 << 26  # bytes of a file, decompressed, from which on their ratio to its size counts
_LIMITS = ReadingLimits()
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile)
_REMEDY_DAMAGE = "get the file again, or check that its ending says how it is compressed"


def open_decompressed(path: Path) -> BinaryIO:
    """A stream of the bytes in ``path``, decompressed by its ending (.gz, .xz, .zst).

    Raises CorpusError for a pipe or a device, which may have no end.
    """
    check_regular(path)
    raw: io.RawIOBase | gzip.GzipFile
    match path.suffix.lower():
        case ".gz":
            raw = gzip.open(path, "rb")  # noqa: SIM115
        case ".xz":
            raw = _Frames(path, partial(lzma.LZMADecompressor, memlimit=_MOST_DICTIONARY))
        case ".zst":
            raw = _Frames(path, lambda: zstandard.ZstdDecompressor().decompressobj())
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
                if not total and piece[257:262] == b"ustar":
                    remedy = "unpack it (tar xf), and name a file of it"
                    raise CorpusError("is a tar archive, not text", file=path, remedy=remedy)
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
        remedy = _REMEDY_DAMAGE
        if "memory" in str(error).lower():
            message = f"wants more than {_MOST_DICTIONARY:,} bytes of memory to be decompressed"
            remedy = "compress it anew, with a smaller dictionary (xz -9 or less)"
        raise CorpusError(message, file=path, remedy=remedy) from error
    except OSError as error:
        raise unreadable(path, error) from error


def most_bytes(path: Path, limits: ReadingLimits, compressed: bool) -> float:
    """How long a file may become."""
    if not compressed:
        return limits.file
    return min(limits.file, max(_FREE, limits.ratio * path.stat().st_size))


def _check(path: Path, limits: ReadingLimits, total: int, most: float, line: int) -> None:
    """Refuses a file beyond the limits after ``total`` bytes, with the length of a long line."""
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


class _Frames(io.RawIOBase):
    """Frames of Zstandard or streams of xz, one after the other; a cut end is an error."""

    def __init__(self, path: Path, start: Callable[[], Any]) -> None:
        """``start`` makes what decompresses the next frame."""
        self._file = path.open("rb")
        self._start = start
        self._frame: Any = None
        self._ready = b""
        self._block = _LEAST_BLOCK

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            block = b""
            if self._frame is not None and self._frame.eof:
                block = self._frame.unused_data
                self._frame = None
            block = block or self._file.read(self._block)
            if not block:
                if self._frame is not None:
                    raise EOFError("the last frame is incomplete")
                return 0
            if self._frame is None:
                block = block.lstrip(b"\0")  # xz fills up with zeros between streams
                if not block:
                    continue
                self._frame = self._start()
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


def text_rows(source: Path, target: Path, limits: ReadingLimits = _LIMITS) -> Iterator[Row]:
    """Rows of two files, aligned line by line; CorpusError if one has more lines."""
    sources, targets = read_lines(source, limits), read_lines(target, limits)
    for number, (left, right) in enumerate(zip_longest(sources, targets), start=1):
        if left is None or right is None:
            raise _unequal(source, target, number, left is None, sources, targets)
        try:
            yield Pair(number, left.decode(), right.decode())
        except UnicodeDecodeError as error:
            file, line = (source, left) if error.object == left else (target, right)
            yield Invalid(number, str(file), line.decode(errors="replace"), not_utf8(error))


def _unequal(
    source: Path,
    target: Path,
    number: int,
    source_ended: bool,
    sources: Iterator[bytes],
    targets: Iterator[bytes],
) -> CorpusError:
    rest = number + sum(1 for _ in (targets if source_ended else sources))
    source_count, target_count = (number - 1, rest) if source_ended else (rest, number - 1)
    return CorpusError(
        f"has {source_count:,} lines, but {target} has {target_count:,}: "
        "which sentence translates which cannot be known",
        file=source,
        remedy="take the two files from the same release of the corpus; "
        "lines end at a line feed only",
    )


class _InvalidLineError(ValueError):
    """A line is invalid; the message gives the reason."""


def line_rows(
    path: Path,
    parse: Callable[[bytes], tuple[str, str]],
    skip: int,
    limits: ReadingLimits = _LIMITS,
) -> Iterator[Row]:
    """Rows of one file with a pair on each line; the first ``skip`` lines are passed over.

    ``parse`` takes a line to its source and target: :func:`split_columns` or :func:`read_object`.
    """
    for number, line in enumerate(read_lines(path, limits), start=1):
        if number <= skip:
            continue
        try:
            yield Pair(number, *parse(line))
        except UnicodeDecodeError as error:
            yield Invalid(number, str(path), line.decode(errors="replace"), not_utf8(error))
        except _InvalidLineError as error:
            yield Invalid(number, str(path), line.decode(errors="replace"), str(error))


def split_columns(line: bytes, columns: tuple[int, int]) -> tuple[str, str]:
    """Source and target of a line of TSV; ``columns`` count from 1."""
    cells = line.split(b"\t")
    if len(cells) < max(columns):
        raise _InvalidLineError(f"has {len(cells)} columns, column {max(columns)} is asked for")
    source, target = (cells[column - 1] for column in columns)
    return source.decode(), target.decode()


def read_object(line: bytes, fields: tuple[str, str]) -> tuple[str, str]:
    """Source and target of a line of JSON; ``a.b`` is field b of the object in field a."""
    text = line.decode()
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise _InvalidLineError(f"is not JSON ({error})") from error
    source, target = (_text_at(record, field) for field in fields)
    return source, target


def _text_at(record: Any, field: str) -> str:
    node = record
    if not (isinstance(record, dict) and field in record):
        for part in field.split("."):
            if not isinstance(node, dict) or part not in node:
                raise _InvalidLineError(f"has no field {field}")
            node = node[part]
    else:
        node = record[field]
    if not isinstance(node, str):
        raise _InvalidLineError(f"field {field} is {type(node).__name__}, not text")
    if not node.isascii():
        try:
            node.encode()
        except UnicodeEncodeError as error:
            message = f"field {field} holds half of a surrogate pair"
            raise _InvalidLineError(message) from error
    return node
