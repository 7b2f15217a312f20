"""Reads corpora line by line: plain text, TSV and JSON Lines, compressed or not."""

import gzip
import io
import json
import lzma
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
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
"""Compressed bytes to decompress at a time. Data can expand 32,768-fold, so after a suspicious block
we continue with small ones."""
_MOST_DICTIONARY = 1 << 28
"""Memory limit of decompression in bytes: `xz -9` needs 65 MiB, but a file may demand 4 GiB."""
_USUAL = 64  # text never expands by more than this factor
_FREE = 1 << 26  # decompressed bytes that any file may have, whatever its compression ratio
_LIMITS = ReadingLimits()
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile)
_NO_TEXT = {
    b"\xff\xfe\0\0": ("UTF-32", "convert it: iconv -f UTF-32 -t UTF-8 OLD > NEW"),
    b"\0\0\xfe\xff": ("UTF-32", "convert it: iconv -f UTF-32 -t UTF-8 OLD > NEW"),
    b"\xff\xfe": ("UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW"),
    b"\xfe\xff": ("UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW"),
    b"\x1f\x8b": ("compressed by gzip", "end its name in .gz"),
    b"\xfd7zXZ\0": ("compressed by xz", "end its name in .xz"),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "end its name in .zst"),
    b"BZh91AY&SY": ("compressed by bzip2", "unpack it: bunzip2 -k OLD"),
    b"PK\x03\x04": ("a zip archive", "unpack it (unzip), and name one of its files"),
    b"PAR1\x15": (
        "a Parquet file",
        "use corpus: {kind: parquet}; for documents, end its name in .parquet",
    ),
    b"ARROW1\0": ("an Arrow file", "use corpus: {kind: datasets}; for documents, write Parquet"),
}
"""How files begin that are mistaken for text, with what they are and a remedy."""
_REMEDY_DAMAGE = "get the file again, or check that its ending matches its compression"


def open_decompressed(path: Path) -> BinaryIO:
    """Opens ``path`` as a binary stream, decompressed according to its ending (.gz, .xz, .zst).

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
            frames = zstandard.ZstdDecompressor(max_window_size=_MOST_DICTIONARY)
            raw = _Frames(path, frames.decompressobj)
        case _:
            return path.open("rb", buffering=_BUFFER)
    return io.BufferedReader(raw, _BUFFER)


def check_regular(path: Path) -> None:
    """Raises CorpusError for a pipe or a device; other faults show when the file is opened."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        message = "is a pipe or a device, which may have no end"
        raise CorpusError(message, file=path, remedy="write it to a file first")


def read_lines(path: Path, limits: ReadingLimits = _LIMITS) -> Iterator[bytes]:
    r"""Yields the lines of a file, without their ends.

    Lines end at ``\n`` alone (or ``\r\n``), so that other line separators inside a sentence do not
    shift an alignment. A byte-order mark is dropped.

    Raises CorpusError if the file cannot be read, its compression is damaged, or it exceeds the
    limits.
    """
    number, total, rest = 0, 0, b""
    try:
        with open_decompressed(path) as stream:
            most = most_bytes(path, limits, path.suffix.lower() in (".gz", ".xz", ".zst"))
            # Splitting large pieces is faster than reading line by line.
            while piece := stream.read(_BUFFER):
                if not total:
                    _check_text(path, piece)
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
            message = f"needs more than {_MOST_DICTIONARY:,} bytes of memory for decompression"
            remedy = (
                "compress it again with a smaller dictionary (xz -9, or zstd --long=28, or less)"
            )
        raise CorpusError(message, file=path, remedy=remedy) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _check_text(path: Path, start: bytes) -> None:
    """Raises CorpusError if a file begins like one of another format than UTF-8 text."""
    found = next((what for first, what in _NO_TEXT.items() if start.startswith(first)), None)
    if start[257:262] == b"ustar":
        found = "a tar archive", "unpack it (tar xf), and name one of its files"
    # Without a byte-order mark: a Latin letter is one byte other than zero, and one or three zeros.
    even, odd = (2 * start[n::2].count(0) > len(start[n::2]) for n in (0, 1))
    if found is None and even != odd:
        order, inner = ("BE", start[1::4]) if even else ("LE", start[2::4])
        name = "UTF-32" if 2 * inner.count(0) > len(inner) else "UTF-16"
        found = name, f"convert it: iconv -f {name}{order} -t UTF-8 OLD > NEW"
    if found:
        raise CorpusError(f"is {found[0]}, not text in UTF-8", file=path, remedy=found[1])


def most_bytes(path: Path, limits: ReadingLimits, compressed: bool) -> float:
    """How many bytes of decompressed text a file may have."""
    if not compressed:
        return limits.file
    return min(limits.file, max(_FREE, limits.ratio * path.stat().st_size))


def _check(path: Path, limits: ReadingLimits, total: int, most: float, line: int) -> None:
    """Raises CorpusError if the ``total`` bytes so far, or the longest ``line``, exceed a limit."""
    if line > limits.line:
        message = f"has a line of more than {limits.line:,} bytes before byte {total:,}"
        raise beyond("line", message, path)
    if total > limits.file:
        raise beyond("file", f"has more than {limits.file:,} bytes", path)
    if total > most:
        times = f"{most / path.stat().st_size:.0f} times its size"
        raise beyond("ratio", f"has more than {round(most):,} bytes, {times}", path)


def beyond(limit: str, message: str, path: Path) -> CorpusError:
    """The error for a file that exceeds ``limit``, a field of the corpus's limits."""
    remedy = f"check the file, or raise corpus.limits.{limit}"
    return CorpusError(message, file=path, remedy=remedy)


def unreadable(path: Path, error: OSError) -> CorpusError:
    """Builds the CorpusError for a file that the system refuses to open or read."""
    reason = (error.strerror or str(error)).lower()
    return CorpusError(
        f"cannot be read: {reason}",
        file=path,
        remedy=f"check the path (relative ones start at {Path.cwd()}) and its permissions",
    )


class _Frames(io.RawIOBase):
    """Decompresses consecutive Zstandard frames or xz streams; a truncated one is an error."""

    def __init__(self, path: Path, start: Callable[[], Any]) -> None:
        """``start`` makes the decompressor of the next frame."""
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
                block = block.lstrip(b"\0")  # xz pads streams with zeros
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
    """Yields the rows of two aligned files; CorpusError if one has more lines than the other."""
    sources, targets = read_lines(source, limits), read_lines(target, limits)
    for number, (left, right) in enumerate(zip_longest(sources, targets), start=1):
        if left is None or right is None:
            longer = number + sum(1 for _ in (targets if left is None else sources))
            counts = (number - 1, longer) if left is None else (longer, number - 1)
            lines = "line" if counts[0] == 1 else "lines"
            raise CorpusError(
                f"has {counts[0]:,} {lines}, but {target} has {counts[1]:,}, so their "
                "sentences cannot be paired",
                file=source,
                remedy="take the two files from the same release of the corpus; "
                "only a line feed ends a line",
            )
        try:
            yield Pair(number, left.decode(), right.decode())
        except UnicodeDecodeError as error:
            file, line = (source, left) if error.object == left else (target, right)
            yield Invalid(number, str(file), line.decode(errors="replace"), not_utf8(error))


class _InvalidLineError(ValueError):
    """Raised for an invalid line; the message gives the reason."""


def line_rows(
    path: Path,
    parse: Callable[[bytes], Sequence[str]],
    skip: int,
    limits: ReadingLimits = _LIMITS,
) -> Iterator[Row]:
    """Yields the rows of a file with a pair on each line, except its first ``skip`` lines.

    ``parse`` returns source and target of a line: :func:`split_columns` or :func:`read_object`.
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


def split_columns(line: bytes, columns: tuple[int, int]) -> list[str]:
    """Source and target of a line of TSV; ``columns`` count from 1."""
    cells = line.split(b"\t")
    if len(cells) < max(columns):
        raise _InvalidLineError(f"has no column {max(columns)}, only {len(cells)}")
    return [cells[column - 1].decode() for column in columns]


def read_object(line: bytes, fields: tuple[str, ...]) -> list[str]:
    """The texts in ``fields`` of a line of JSON; ``a.b`` is field b of the object in field a."""
    text = line.decode()
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        why = f"{error.msg} in column {error.colno}"
        raise _InvalidLineError(f"is not JSON ({why})") from error
    except (ValueError, RecursionError) as error:  # ValueError for numbers of too many digits
        raise _InvalidLineError(f"is not JSON ({error})") from error
    return [_text_at(record, field) for field in fields]


def _text_at(record: Any, field: str) -> str:
    node = record
    whole = isinstance(record, dict) and field in record
    for part in [field] if whole else field.split("."):
        if not isinstance(node, dict) or part not in node:
            there = ", ".join(name[:40] for name in [*node][:8]) if isinstance(node, dict) else ""
            raise _InvalidLineError(f"has no field {field}{there and f', only {there}'}")
        node = node[part]
    if not isinstance(node, str):
        raise _InvalidLineError(f"field {field} is {type(node).__name__}, not text")
    if not node.isascii():
        try:
            node.encode()
        except UnicodeEncodeError as error:
            message = f"field {field} holds half of a surrogate pair"
            raise _InvalidLineError(message) from error
    return node
