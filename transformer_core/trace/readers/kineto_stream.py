"""The text of a Kineto trace of any size, in pieces of whole events."""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from transformer_core.trace.events.process import NotATrace, TraceError, unusable

_CHUNK = 1 << 19
_TRIES = 40
_MARK = b"\xef\xbb\xbf"  # byte order mark, which some editors write before a text
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_END = re.compile(rb"\}(\s*,?\s*\])\s*[,}]")
"""Some programs that cut traces leave a comma after the last event."""
_BETWEEN = re.compile(rb"\s*,\s*(?=\{)")
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile)
_SUSPECT = re.compile(rb"[:\[,]\s*-?(?:[Ii]nf|[Nn]a[Nn])")
_LONGEST = 1 << 26  # more bytes than any event or the rest of a trace has
_NO_NUMBER = re.compile(rb'("(?:[^"\\]|\\.)*")|(-?\b(?:[Ii]nf(?:inity)?|[Nn]a[Nn])\b)')
"""A text, or an invalid JSON number that some profilers write."""
_SURROGATES = re.compile(
    rb"(\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""Lone surrogates; escaped backslashes and complete pairs are matched first."""


_KEY = b'"traceEvents"'
_ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*[{\]]")
_WRITERS = "give a file that export_chrome_trace or tensorboard_trace_handler wrote"


class Damaged(ValueError):
    """The text stops being JSON at some place."""


def repaired(text: bytes) -> bytes:
    """``text`` with null for invalid numbers, and without lone surrogates or invalid UTF-8."""
    if _SUSPECT.search(text):
        text = _NO_NUMBER.sub(lambda found: found[1] or b"null", text)
    if b"\\ud" in text or b"\\uD" in text:
        text = _SURROGATES.sub(lambda found: found[1] or b"\\ufffd", text)
    return text.decode("utf-8", "replace").encode()


def open_trace(path: Path) -> BinaryIO:
    """Opens a trace; decompresses it if it begins like gzip, whatever its name."""
    stream = path.open("rb")
    start = stream.read(2)
    stream.seek(0)
    if start == b"\x1f\x8b":
        return io.BufferedReader(gzip.GzipFile(fileobj=stream), _CHUNK)
    return stream


class EventText:
    """Iterates over the events in pieces, each a result of ``decode``.

    ``decode`` takes a JSON list and raises :class:`msgspec.DecodeError` for anything else; if a piece
    ends inside an event, a shorter one is tried. ``head`` is the rest of the file.
    """

    def __init__(self, path: Path, decode: Any) -> None:
        self.path, self.decode = path, decode
        self.head: dict[str, Any] = {}
        self.seen = 0

    def __iter__(self) -> Iterator[Any]:
        try:
            with open_trace(self.path) as stream:
                yield from self._pieces(stream)
        except RecursionError:
            raise unusable(
                self.path,
                f"holds lists within lists, hundreds deep, after {self.seen:,} events",
                "record it again, or leave out the event",
            ) from None
        except (*_DAMAGE, Damaged) as error:
            reason = str(error).strip().partition("\n")[0]
            raise unusable(
                self.path,
                f"is damaged or cut off after {self.seen:,} events ({reason})",
                "record it again, and let the program end before the file is copied",
            ) from None
        except OSError as error:
            raise unusable(
                self.path,
                f"cannot be read ({error.strerror or error})",
                "check its path and permissions",
            ) from None

    def _pieces(self, stream: BinaryIO) -> Iterator[Any]:
        head, text, tail = self._begin(stream)
        wanted = _CHUNK
        while more := stream.read(_CHUNK):
            text += more
            if len(text) < wanted:
                continue
            events, text = self._whole_events(text)
            if not events and self._ends(text):
                text += stream.read(_LONGEST)
                break
            # If no end of an event is found, later text may hold one.
            wanted = _CHUNK if events else 2 * len(text)
            if wanted > _LONGEST:
                raise Damaged("no event ends where it should")
            if events:
                self.seen += len(events)
                yield events
        events, tail = self._last_events(text + tail)
        self.seen += len(events)
        if events:
            yield events
        self._read_head(head, tail)

    def _begin(self, stream: BinaryIO) -> tuple[bytes, bytes, bytes]:
        """The text before the list of events, the part of the list read so far, and the text to add
        after the list."""
        text, place = bytearray(), 0
        while True:
            more = stream.read(_CHUNK)
            text += more
            if text[257:262] == b"ustar":
                raise NotATrace(self.path, "is a tar archive", "unpack it first: tar -xf")
            # Only the key may have been read; its list may follow in the next read.
            if found := _EVENTS.search(text, place):
                return bytes(text[: found.end()]), bytes(text[found.end() :]), b""
            if _ARRAY.match(text):  # the events alone, without an object around them
                return b'{"traceEvents":[', bytes(text[text.index(b"[") + 1 :]), b"}"
            if not more:
                raise self._foreign(bytes(text))
            if len(text) > _LONGEST:
                reason = f"has no traceEvents in its first {_LONGEST >> 20} MB"
                raise NotATrace(self.path, reason, _WRITERS)
            place = max(place, text.rfind(_KEY), len(text) - len(_KEY))

    def _whole_events(self, text: bytes) -> tuple[Any, bytes]:
        """The events at the beginning of a text, and the rest of the text."""
        end = len(text)
        for _ in range(_TRIES):
            end = text.rfind(b"}", 0, end)
            if end < 0:
                break
            if after := _BETWEEN.match(text, end + 1):
                try:
                    whole = b"".join((b"[", memoryview(text)[: end + 1], b"]"))
                    return self.decode(whole), text[after.end() :]
                except msgspec.DecodeError:
                    continue  # a brace inside an event, or after the last one
        return [], text

    def _ends(self, text: bytes) -> bool:
        for found in islice(_END.finditer(text), _TRIES):
            try:
                self.decode(b"[" + text[: found.start(1)] + b"]")
            except msgspec.DecodeError:
                continue
            return True
        return False

    def _last_events(self, text: bytes) -> tuple[list[Any], bytes]:
        """The events up to the end of their list, and the text after it."""
        if empty := re.match(rb"\s*\]", text):
            return [], text[empty.end() :]
        error = "it ends inside an event"
        if text.lstrip()[:1] not in (b"{", b""):
            error = "its list holds something other than events"
        for found in reversed(list(_END.finditer(text))[-_TRIES:]):
            try:
                return self.decode(b"[" + text[: found.start(1)] + b"]"), text[found.end(1) :]
            except msgspec.DecodeError as problem:
                error = str(problem)
        self.seen += len(self._whole_events(text)[0])
        raise Damaged(error)

    def _read_head(self, head: bytes, tail: bytes) -> None:
        if _EVENTS.search(tail):
            raise unusable(
                self.path, "holds two lists of events (traceEvents)", "make a file of each"
            )
        text = (head + b"]" + tail).removeprefix(_MARK)
        for candidate in (text, repaired(text)):
            try:
                found = msgspec.json.decode(candidate)
                break
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                found = None
        if not isinstance(found, dict):
            raise Damaged("it does not end where it should")
        self.head = found

    def _foreign(self, text: bytes) -> TraceError:
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if text.lstrip()[:1] == b"{" and b'"schemaVersion"' in text:
                raise Damaged(str(error)) from None
        reason = "is not a torch.profiler trace: it has no traceEvents"
        if text.lstrip(_MARK + b" \t\r\n")[:1] == b"[":
            reason = "is not a torch.profiler trace: it is a list, but not of events"
        return NotATrace(self.path, reason, _WRITERS)
