"""Remote files: downloaded once, resumed after a break, and checked against their SHA-256."""

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import requests
from urllib3.exceptions import HTTPError

from schemas.config.corpus import ReadingLimits, RemoteFile
from transformer_core.common.progress import Progress
from transformer_core.data.corpus.lines import check_regular, unreadable
from transformer_core.data.corpus.rows import CorpusError

LOG = logging.getLogger(__name__)

_BLOCK = 1 << 16
_LONGEST_PAUSE = 60.0
_TEMPORARY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


class _BrokenError(Exception):
    """A transfer that may succeed when it is taken up again."""


def fetch(
    file: RemoteFile,
    folder: Path,
    *,
    retries: int,
    timeout: float,
    most: int = ReadingLimits().download,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """The path of ``file`` in the cache ``folder``, downloaded if it is not there.

    The name starts with the checksum, since files of different addresses may share a base name.
    A broken transfer is taken up ``retries`` times where it broke, after 1, 2, 4, ... seconds;
    ``timeout`` is in seconds without a byte. Two jobs that want one file wait for each other.

    Raises CorpusError if the file cannot be had, has more than ``most`` bytes or another checksum.
    """
    final = folder / f"{file.sha256[:12]}-{base_name(file.url)}"
    part = final.with_name(final.name + ".part")
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(final.with_name(final.name + ".lock")):
        if final.exists():
            if sha256_of(final) == file.sha256:
                return final
            LOG.warning("%s does not have its checksum any more: it is downloaded again", final)
        resumed = part.exists()
        receive = partial(_receive, file.url, part, timeout, most)
        _transfer(file.url, receive, retries, sleep)
        found = sha256_of(part)
        if found != file.sha256 and resumed:
            # What was there may be the beginning of an older version of the file.
            part.unlink()
            _transfer(file.url, receive, retries, sleep)
            found = sha256_of(part)
        if found != file.sha256:
            part.unlink()
            raise CorpusError(
                f"has another SHA-256 than the study says: expected {file.sha256}, got {found}",
                file=file.url,
                remedy="if the file was changed on purpose, write the new sum into the study; "
                "else get it from another address",
            )
        os.replace(part, final)
    return final


def find(file: RemoteFile, folder: Path) -> Path:
    """The local copy of ``file`` in ``folder``, checked; CorpusError if it is not there."""
    path = folder / base_name(file.url)
    check_regular(path)
    if not path.exists():
        raise CorpusError(
            f"is not in the folder {folder}",
            file=path.name,
            remedy=f"copy {file.url} to {path}, or leave corpus.folder out to download it",
        )
    found = sha256_of(path)
    if found != file.sha256:
        raise CorpusError(
            f"has another SHA-256 than the study says: expected {file.sha256}, got {found}",
            file=path,
            remedy=f"copy {file.url} again",
        )
    return path


def base_name(url: str) -> str:
    """The file name at the end of the path of ``url``; CorpusError if there is none."""
    name = PurePosixPath(unquote(urlsplit(url).path)).name
    if not name:
        raise CorpusError("names no file", file=url, remedy="give the address of a file")
    return name


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _transfer(
    url: str, receive: Callable[[], None], retries: int, sleep: Callable[[float], None]
) -> None:
    for attempt in range(retries + 1):
        try:
            return receive()
        except _BrokenError as error:
            reason = error
        if attempt < retries:
            pause = min(2.0**attempt, _LONGEST_PAUSE)
            LOG.warning("%s: %s; trying again in %g s", url, reason, pause)
            sleep(pause)
    raise CorpusError(
        f"cannot be downloaded, {retries + 1} attempts: {reason}",
        file=url,
        remedy="check the network, raise corpus.retries or corpus.timeout (what was received is "
        "kept), or set corpus.folder to a folder that holds the files",
    )


def _receive(url: str, part: Path, timeout: float, most: int) -> None:
    """One request, which goes on at the end of ``part``."""
    offset = part.stat().st_size if part.exists() else 0
    # Without identity a server may compress on the way, and neither lengths nor sums would hold.
    headers = {"Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    try:
        with requests.get(url, headers=headers, stream=True, timeout=timeout) as response:
            mode = _mode(response, url, part, offset)
            if mode is None:
                return
            length = response.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            received = 0
            offset *= mode == "ab"
            _check_size(url, part, offset + (total or 0), most)
            with part.open(mode) as stream, Progress(url, "bytes", total) as progress:
                for block in response.raw.stream(_BLOCK, decode_content=False):
                    _check_size(url, part, offset + received + len(block), most)
                    stream.write(block)
                    received += len(block)
                    progress.update(len(block))
    except (requests.RequestException, HTTPError) as error:
        raise _BrokenError(str(error)) from error
    if total is not None and received != total:
        raise _BrokenError(f"the connection broke after {received:,} of {total:,} bytes")


def _check_size(url: str, part: Path, size: int, most: int) -> None:
    if size > most:
        part.unlink(missing_ok=True)
        raise CorpusError(
            f"goes on after byte {most:,}",
            file=url,
            remedy="check the address, or raise corpus.limits.download",
        )


def _mode(response: requests.Response, url: str, part: Path, offset: int) -> str | None:
    """How to open ``part`` for the answer: append, write anew, or None if it is whole already."""
    status = response.status_code
    content_range = response.headers.get("Content-Range", "")
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
        if content_range == f"bytes */{offset}":
            return None
        part.unlink()
        raise _BrokenError(f"the server refuses to go on at byte {offset:,}")
    if status in _TEMPORARY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise _BrokenError(f"the server answered {status} {response.reason}")
    if status == HTTPStatus.PARTIAL_CONTENT:
        if content_range.startswith(f"bytes {offset}-"):
            return "ab"
        part.unlink(missing_ok=True)
        raise _BrokenError(f"the server sent another part than asked: {content_range!r}")
    if status != HTTPStatus.OK:
        raise CorpusError(
            f"the server answered {status} {response.reason}",
            file=url,
            remedy="correct the address, or set corpus.folder to a folder that holds the files",
        )
    return "wb"
