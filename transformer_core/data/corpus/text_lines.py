"""Files of the data room: written whole or not at all, read as lines whatever their compression."""

import gzip
import hashlib
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import zstandard

BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 18
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile)
_REMEDY_DAMAGE = "get the file again, or check that its ending says how it is compressed"


class CorpusError(ValueError):
    """A corpus that cannot be used: where it is wrong, the value found there, and what to do."""

    def __init__(
        self,
        message: str,
        *,
        file: str | Path,
        remedy: str,
        line: int | None = None,
        value: str | None = None,
    ) -> None:
        self.file = str(file)
        self.line = line
        self.value = value
        self.remedy = remedy
        text = f"{where(self.file, line)}: {message}"
        if value is not None:
            text += f"\n    value:  {snippet(value)!r}"
        super().__init__(f"{text}\n    remedy: {remedy}")


def where(file: str, line: int | None) -> str:
    """``file:line``, or the file alone where no line is known."""
    return file if line is None else f"{file}:{line}"


def snippet(text: str, limit: int = 80) -> str:
    """The beginning of ``text``, at most ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` that takes its place if the block ends without an error.

    The folder is made where it is missing; after an error the temporary file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of the contents of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def open_decompressed(path: Path) -> BinaryIO:
    """A stream of the bytes in ``path``, decompressed by its ending (.gz, .xz, .zst)."""
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
    # One buffer in C over all of them: iterating over lines is several times faster.
    return io.BufferedReader(raw, _BUFFER)


def read_lines(path: Path) -> Iterator[bytes]:
    r"""The lines of a file, without their end.

    Lines end at ``\n`` alone (one ``\r`` before it belongs to the end), so that other line
    separators inside a sentence do not shift an alignment. A byte-order mark is dropped.

    Raises CorpusError if the file cannot be read or its compression is damaged.
    """
    number = 0
    try:
        with open_decompressed(path) as stream:
            for number, line in enumerate(stream, start=1):
                if number == 1:
                    line = line.removeprefix(BOM)
                    if not line:  # nothing but a byte-order mark
                        return
                yield line.removesuffix(b"\n").removesuffix(b"\r")
    except _DAMAGE as error:
        message = f"is damaged or cut off after line {number} ({error})"
        raise CorpusError(message, file=path, remedy=_REMEDY_DAMAGE) from error
    except OSError as error:
        raise unreadable(path, error) from error


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

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            block = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = self._decompressor.decompressobj()
                self._within_frame = False
            block = block or self._file.read(_BUFFER)
            if not block:
                if self._within_frame:
                    raise EOFError("the last frame is incomplete")
                return 0
            self._within_frame = True
            self._ready = self._frame.decompress(block)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
