"""Downloads remote files once, resumes broken transfers, and checks SHA-256 sums."""

import logging
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from threading import Thread
from urllib.parse import unquote, urljoin, urlsplit

import requests
from urllib3.exceptions import HTTPError

from schemas.config.data import ReadingLimits, RemoteFile
from transformer_core.common.files import locked, sha256
from transformer_core.common.progress import Progress
from transformer_core.data.corpus.lines import check_regular, unreadable
from transformer_core.data.corpus.rows import CorpusError, snippet

LOG = logging.getLogger(__name__)

_BLOCK = 1 << 16
_LONGEST_PAUSE = 60.0
_LONGEST = 86_400.0
"""Limit in seconds for all attempts at a file, even if the server keeps sending a few bytes."""
_LONGEST_NAME = 200
_MOST_REDIRECTS = 5
_TEMPORARY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


class _BrokenError(Exception):
    """A transfer that may succeed when it is resumed."""


def fetch(
    file: RemoteFile,
    folder: Path,
    *,
    retries: int,
    timeout: float,
    most: int = ReadingLimits().download,
) -> Path:
    """Returns the path of ``file`` in the cache ``folder``, and downloads the file if necessary.

    The name starts with the checksum, since files from different addresses may share a base name.
    A broken transfer is resumed up to ``retries`` times, after 1, 2, 4, ... seconds. ``timeout`` is
    the longest silence in seconds; the whole download may take a day. Jobs that want the same file
    wait for each other. A redirect to another host is logged.

    Raises CorpusError if the download fails, or if the file has more than ``most`` bytes or a
    different checksum.
    """
    final = _cached(file, folder)
    part = final.with_name(final.name + ".part")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(final.with_name(final.name + ".lock")):
        if final.exists():
            if sha256_of(final) == file.sha256:
                return final
            LOG.warning("%s no longer matches its checksum; downloading it again", final)
        end = time.monotonic() + _LONGEST
        receive = partial(
            _within, end, file.url, partial(_receive, file.url, part, timeout, most, end)
        )
        # The partial file may come from an older version: on a mismatch, start once from scratch.
        for _ in range(1 + part.exists()):
            _transfer(file.url, receive, retries)
            found = sha256_of(part)
            if found == file.sha256:
                os.replace(part, final)
                return final
            part.unlink()
    remedy = "if the file was changed on purpose, write the new checksum into the study; "
    raise _other_sum(file, found, shown(file.url), f"{remedy}otherwise use another address")


def find(file: RemoteFile, folder: Path) -> Path:
    """Returns the local copy of ``file`` in ``folder``, under its own name or as :func:`fetch` names it;
    CorpusError if it is missing or changed."""
    path = folder / base_name(file.url)
    if (cached := _cached(file, folder)).exists():
        path = cached
    check_regular(path)
    if not path.exists():
        raise CorpusError(
            f"is not in the folder {folder}",
            file=path.name,
            remedy=f"copy {shown(file.url)} to {path}, or leave corpus.folder out to download it",
        )
    found = sha256_of(path)
    if found != file.sha256:
        raise _other_sum(file, found, path, f"copy {shown(file.url)} again")
    return path


def _cached(file: RemoteFile, folder: Path) -> Path:
    return folder / f"{file.sha256[:12]}-{base_name(file.url)}"


def _other_sum(file: RemoteFile, found: str, path: str | Path, remedy: str) -> CorpusError:
    message = f"has a different SHA-256 from the study's: expected {file.sha256}, got {found}"
    return CorpusError(message, file=path, remedy=remedy)


def base_name(url: str) -> str:
    """Returns the last part of the path of ``url``; CorpusError if it cannot be a file name."""
    try:
        name = PurePosixPath(unquote(urlsplit(url).path)).name
    except ValueError as error:  # a host that is no IPv6 address
        raise _refused(url, f"is not an address ({error})") from error
    if name in ("", "..") or not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
        message = "does not end in a usable file name: it is empty, has unprintable characters, or "
        message += f"is longer than {_LONGEST_NAME} bytes"
        remedy = "give the address of a file, or use a kind of corpus that reads local files"
        raise CorpusError(message, file=snippet(shown(url), 200), remedy=remedy)
    return name


def shown(url: str) -> str:
    """Removes user and password from an address, for messages."""
    return re.sub(r"(?<=://)[^/?#\s]*@", "", url)


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file; CorpusError if it is unreadable, a pipe or a device."""
    check_regular(path)
    try:
        return sha256(path)
    except OSError as error:
        raise unreadable(path, error) from error


def _transfer(url: str, receive: Callable[[], None], retries: int) -> None:
    for attempt in range(retries + 1):
        try:
            return receive()
        except _BrokenError as error:
            reason = error
        if attempt < retries:
            pause = min(2.0**attempt, _LONGEST_PAUSE)
            LOG.warning("%s: %s; trying again in %g s", shown(url), reason, pause)
            time.sleep(pause)
    raise CorpusError(
        f"cannot be downloaded (attempts: {retries + 1}): {reason}",
        file=shown(url),
        remedy="check the network, raise corpus.retries or corpus.timeout (the received part is "
        "kept), or set corpus.folder to a folder that holds the files",
    )


def _within(end: float, url: str, receive: Callable[[], None]) -> None:
    """Calls ``receive`` in a thread and gives up on it at ``end``. A server may send its headers, or
    the length of a chunk, byte by byte, and requests only limits the wait for each byte."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            receive()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    wait([done], max(end - time.monotonic(), 0))
    if not done.done():
        raise _too_late(url)
    done.result()


def _receive(url: str, part: Path, timeout: float, most: int, end: float) -> None:
    """Makes one request, which continues at the end of ``part``."""
    offset = part.stat().st_size if part.exists() else 0
    # A server that compresses the transfer would invalidate lengths and checksums.
    headers = {"Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    try:
        with _answer(url, headers, timeout) as response:
            mode = _mode(response, url, part, offset)
            if mode is None:
                return
            length = response.headers.get("Content-Length")
            stated = length is not None and re.fullmatch(r"[0-9]{1,18}", length)
            total = int(length) if length and stated else None
            received = 0
            offset *= mode == "ab"
            _check_size(url, part, offset + (total or 0), most)
            with part.open(mode) as stream, Progress(shown(url), "bytes", total) as progress:
                for block in response.raw.stream(_BLOCK, decode_content=False):
                    _check_size(url, part, offset + received + len(block), most)
                    if time.monotonic() > end:
                        raise _too_late(url)
                    stream.write(block)
                    received += len(block)
                    progress.update(len(block))
    except (requests.RequestException, HTTPError) as error:
        raise _BrokenError(shown(str(error))) from error
    if total is not None and received != total:
        raise _BrokenError(f"the connection broke after {received:,} of {total:,} bytes")


def _answer(url: str, headers: dict[str, str], timeout: float) -> requests.Response:
    """The response of a server, after following its redirects."""
    place = url
    for _ in range(_MOST_REDIRECTS + 1):
        try:
            response = requests.get(
                place, headers=headers, stream=True, timeout=timeout, allow_redirects=False
            )
        except ValueError as error:  # requests parses the redirect's target
            if isinstance(error, requests.RequestException):
                raise
            raise _refused(url, "redirects to something that is not a web address") from error
        if not response.is_redirect:
            return response
        response.close()
        there = _redirect(place, response.headers["Location"], url)
        if urlsplit(there).netloc != urlsplit(place).netloc:
            LOG.warning("%s redirects to %s", shown(place), snippet(shown(there), 200))
        place = there
    raise _refused(url, f"redirects more than {_MOST_REDIRECTS} times")


def _redirect(place: str, location: str, url: str) -> str:
    """The absolute target of a redirect; CorpusError if it is not a usable web address."""
    try:
        there = urljoin(place, location)
        usable = urlsplit(there).scheme in ("http", "https") and urlsplit(there).hostname
    except ValueError:
        usable = False
    if not usable:
        target = snippet(shown(location))
        raise _refused(url, f"redirects to {target!r}, which is not a web address")
    if urlsplit(place).scheme == "https" != urlsplit(there).scheme:
        raise _refused(url, f"redirects to {snippet(shown(there), 200)}, which is not encrypted")
    return there


def _refused(url: str, message: str) -> CorpusError:
    remedy = "correct the address, or set corpus.folder to a folder that holds the files"
    return CorpusError(message, file=shown(url), remedy=remedy)


def _too_late(url: str) -> CorpusError:
    remedy = "run the same command again to resume, or set corpus.folder to a folder that holds "
    message = f"is still incomplete after {_LONGEST / 3_600:g} hours"
    return CorpusError(message, file=shown(url), remedy=f"{remedy}the files")


def _check_size(url: str, part: Path, size: int, most: int) -> None:
    if size > most:
        part.unlink(missing_ok=True)
        raise CorpusError(
            f"is longer than {most:,} bytes",
            file=shown(url),
            remedy="check the address, or raise corpus.limits.download",
        )


def _mode(response: requests.Response, url: str, part: Path, offset: int) -> str | None:
    """The mode to open ``part`` with: append, overwrite, or None if it is already complete."""
    status = response.status_code
    content_range = response.headers.get("Content-Range", "")
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
        if content_range == f"bytes */{offset}":
            return None
        part.unlink()
        raise _BrokenError(f"the server refuses to resume at byte {offset:,}")
    if status in _TEMPORARY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise _BrokenError(f"the server answered {status} {response.reason}")
    if status == HTTPStatus.PARTIAL_CONTENT:
        if content_range.startswith(f"bytes {offset}-"):
            return "ab"
        part.unlink(missing_ok=True)
        raise _BrokenError(f"the server sent a range that was not requested: {content_range!r}")
    if status != HTTPStatus.OK:
        raise _refused(url, f"the server answered {status} {response.reason}")
    return "wb"
