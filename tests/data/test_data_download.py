"""Downloads resume after a break, retry with pauses, and are checked and complete, whatever a server
sends."""

import contextlib
import hashlib
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.config.data import RemoteFile
from transformer_core.data.corpus import download
from transformer_core.data.corpus.download import base_name, fetch, find
from transformer_core.data.corpus.rows import CorpusError

CONTENT = bytes(number * 31 % 251 for number in range(400_000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """A web server whose faults a test sets."""

    url: str = ""
    content: bytes = CONTENT
    break_after: list[int] = field(default_factory=list)  # bytes after which the next answers break
    statuses: list[int] = field(default_factory=list)  # statuses of the next answers
    ranges: bool = True
    shift: int = 0  # bytes by which an answer begins later than requested
    requests: list[str | None] = field(default_factory=list)  # the Range header of each request
    pauses: list[float] = field(default_factory=list)  # seconds before each further attempt

    def file(self, name: str = "train.en.gz", sha256: str = SHA256) -> RemoteFile:
        return RemoteFile(url=f"{self.url}/{name}", sha256=sha256)


@contextlib.contextmanager
def serving(server: socketserver.TCPServer) -> Iterator[str]:
    """Runs a server within the block; yields its host and port."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server():
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: bytes = b"", place: str = "") -> None:
            self.send_response(status)
            if place:
                self.send_header("Content-Range", f"bytes {place}/{len(state.content)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.break_after.pop(0)] if state.break_after else body)

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.requests.append(asked)
            if state.statuses:
                self.answer(state.statuses.pop(0))
            elif not asked or not state.ranges:
                self.answer(200, state.content)
            else:
                start = int(asked.removeprefix("bytes=").removesuffix("-")) + state.shift
                if start >= len(state.content):
                    self.answer(416, place="*")
                else:
                    place = f"{start}-{len(state.content) - 1}"
                    self.answer(206, state.content[start:], place)

        def log_message(self, *arguments: object) -> None:
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as here:
        state.url = f"http://{here}"
        yield state


@pytest.fixture
def get(tmp_path, server, monkeypatch):
    monkeypatch.setattr(download.time, "sleep", server.pauses.append)

    def call(file: RemoteFile, retries: int = 3) -> Path:
        return fetch(file, tmp_path, retries=retries, timeout=5.0)

    return call


def test_a_file_is_downloaded_once(server, get, tmp_path):
    path = get(server.file())
    assert path.read_bytes() == CONTENT
    assert path.name.endswith("-train.en.gz")
    assert get(server.file()) == path
    assert server.requests == [None]
    assert {path.suffix for path in tmp_path.iterdir()} == {".gz", ".lock"}
    path.write_bytes(CONTENT[:-1])
    assert get(server.file()).read_bytes() == CONTENT, "a damaged file is downloaded again"


def test_files_of_one_name_do_not_collide(server, get):
    first = get(server.file("en/train.gz"))
    server.content = b"another"
    second = get(server.file("de/train.gz", hashlib.sha256(b"another").hexdigest()))
    assert (first.read_bytes(), second.read_bytes()) == (CONTENT, b"another")


def test_a_broken_transfer_resumes_where_it_broke(server, get, tmp_path):
    server.break_after = [200_000, 100_000]
    assert get(server.file()).read_bytes() == CONTENT
    assert server.pauses == [1.0, 2.0]
    assert server.requests[0] is None
    offsets = [int(asked[6:-1]) for asked in server.requests[1:] if asked]
    assert 0 < offsets[0] <= 200_000 < offsets[1] <= 300_000
    assert {path.suffix for path in tmp_path.iterdir()} == {".gz", ".lock"}


@pytest.mark.parametrize(("ranges", "shift", "requests"), [(False, 0, 2), (True, 10, 3)])
def test_only_the_requested_rest_is_appended(server, get, ranges, shift, requests):
    """The server ignores Range, or its part begins elsewhere."""
    server.break_after, server.ranges, server.shift = [200_000], ranges, shift
    assert get(server.file()).read_bytes() == CONTENT
    assert [asked is None for asked in server.requests] == [True, False, True][:requests]


@pytest.mark.parametrize(
    ("part", "asked"),
    [
        (CONTENT[:150_000], "bytes=150000-"),
        (CONTENT, "bytes=400000-"),
        (b"x" * 1000, None),  # of another version, so it is deleted
        (b"x" * 500_000, None),
    ],
    ids=["part", "whole", "stale", "stale and longer"],
)
def test_a_partial_file_of_an_earlier_job_is_used_if_it_fits(server, get, tmp_path, part, asked):
    left = tmp_path / f"{SHA256[:12]}-{base_name(server.file().url)}.part"
    left.write_bytes(part)
    assert get(server.file()).read_bytes() == CONTENT
    assert server.requests[-1] == asked


def test_a_wrong_checksum_is_an_error_and_the_file_is_deleted(server, get, tmp_path):
    file = server.file(sha256="0" * 64)
    with pytest.raises(CorpusError) as caught:
        get(file)
    for told in (file.url, "0" * 64, SHA256):
        assert told in str(caught.value)
    assert {path.suffix for path in tmp_path.iterdir()} == {".lock"}
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [503, 429])
def test_requests_to_a_busy_server_are_retried(server, get, status):
    server.statuses = [status] * 3
    assert get(server.file()).read_bytes() == CONTENT
    assert server.pauses == [1.0, 2.0, 4.0]
    server.statuses = [status] * 99
    with pytest.raises(CorpusError, match=rf"attempts: 9\): the server answered {status}"):
        get(server.file("other.gz", "0" * 64), retries=8)
    assert server.pauses[3:] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_a_missing_file_is_not_requested_again(server, get):
    server.statuses = [404] * 9
    with pytest.raises(CorpusError, match="the server answered 404"):
        get(server.file())
    assert len(server.requests) == 1


def test_an_unreachable_server_is_an_error(tmp_path):
    file = RemoteFile(url="http://127.0.0.1:9/a.gz", sha256=SHA256)
    with pytest.raises(CorpusError, match=r"cannot be downloaded \(attempts: 1\)"):
        fetch(file, tmp_path, retries=0, timeout=1.0)


def test_two_jobs_share_one_download(server, get):
    with ThreadPoolExecutor(4) as jobs:
        found = list(jobs.map(get, [server.file()] * 4))
    assert len(set(found)) == len(server.requests) == 1


def test_files_in_a_local_folder_are_checked(tmp_path):
    file = RemoteFile(url="https://example.org/data/train.en.gz?raw=1", sha256=SHA256)
    with pytest.raises(CorpusError, match=f"is not in the folder {tmp_path}"):
        find(file, tmp_path)
    (tmp_path / "train.en.gz").write_bytes(CONTENT)
    assert find(file, tmp_path) == tmp_path / "train.en.gz"
    (tmp_path / "train.en.gz").write_bytes(CONTENT[1:])
    with pytest.raises(CorpusError, match=f"expected {SHA256}"):
        find(file, tmp_path)
    # Under the name that a download has: the files of two addresses may have one name.
    cached = tmp_path / f"{SHA256[:12]}-train.en.gz"
    cached.write_bytes(CONTENT)
    assert find(file, tmp_path) == cached


@pytest.mark.parametrize("told", [True, False])
def test_a_download_without_end_is_refused(server, tmp_path, told):
    server.break_after = [] if told else [399_000]
    with pytest.raises(CorpusError, match=r"is longer than 100,000 bytes") as caught:
        fetch(server.file(), tmp_path, retries=0, timeout=5.0, most=100_000)
    assert "corpus.limits.download" in str(caught.value)
    assert not list(tmp_path.glob("*.part"))


BODY = b"a\n"
OF_BODY = "87428fc522803d31065e7bce3cf03fe475096631e5e07bbd7a0fde60c4cf25c7"


class Scripted(socketserver.BaseRequestHandler):
    """Sends the server's next answer, and repeats the last one."""

    def handle(self) -> None:
        answers = self.server.answers
        with contextlib.suppress(OSError):
            self.request.recv(65_536)
            self.request.sendall(answers.pop(0) if len(answers) > 1 else answers[0])


@contextlib.contextmanager
def scripted(*answers: bytes) -> Iterator[str]:
    """Runs a server that gives these answers; yields its host and port."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Scripted)
    server.answers = list(answers)
    with serving(server) as here:
        yield here


def fetch_body(url: str, folder: Path, **options: Any) -> Path:
    usual = {"retries": 1, "timeout": 5.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download.time, "sleep", lambda _: None)
        return fetch(RemoteFile(url=url, sha256=OF_BODY), folder, **(usual | options))


def test_addresses_that_name_no_file(tmp_path):
    paths = "", "..", "a%00b", "a%0Ab", "x" * 300
    for url in (*(f"http://example.org/{path}" for path in paths), "http://[::1/train.en"):
        with pytest.raises(CorpusError, match="remedy"):
            fetch_body(url, tmp_path)
        with pytest.raises(CorpusError, match="remedy"):
            find(RemoteFile(url=url, sha256=SHA256), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_redirect_to_another_host_is_logged(tmp_path, caplog):
    body = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + BODY
    with scripted(body) as there:
        leads = f"HTTP/1.1 302 Found\r\nLocation: http://a:b@{there}/x\r\n\r\n"
        with scripted(leads.encode()) as here:
            url = f"http://me:secret@{here}/train.en"
            assert fetch_body(url, tmp_path).read_bytes() == BODY
    assert f"http://{here}/train.en redirects to http://{there}/x" in caplog.text
    assert "secret" not in caplog.text
    assert "a:b" not in caplog.text


ENDLESS = {
    "headers": (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a"),
    "informational": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "chunk_lengths": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
    "redirects": (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/", b"a"),
    "body": (b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n", b"a"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_download_takes_a_limited_time(tmp_path, monkeypatch, kind):
    """The server never stops sending a few bytes at a time."""
    monkeypatch.setattr(download, "_LONGEST", 0.3)
    first, again = ENDLESS[kind]
    ended = threading.Event()

    class Endless(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4_096)
            with contextlib.suppress(OSError):
                self.request.sendall(first)
                while not ended.wait(0.01):
                    self.request.sendall(again)

    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Endless)) as here:
        try:
            with pytest.raises(CorpusError, match="hours"):
                fetch_body(f"http://{here}/a", tmp_path)
        finally:
            ended.set()


def test_passwords_are_not_shown(tmp_path, caplog):
    for status in ("404 Not Found", "500 Busy"):
        answer = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()
        with scripted(answer) as here, pytest.raises(CorpusError) as caught:
            fetch_body(f"http://me:secret@{here}/train.en", tmp_path)
        assert f"http://{here}/train.en" in str(caught.value)
        assert "secret" not in str(caught.value) + caplog.text
    assert download.shown("https://me:p@ss@example.org/a@b?c") == "https://example.org/a@b?c"


HEADERS = [
    b"Content-Length: 2", b"Content-Length: -5", b"Content-Length: x", b"Content-Length: 2, 7",
    b"Transfer-Encoding: chunked", b"Content-Encoding: gzip", b"Content-Range: bytes 9-1/1",
    b"Content-Range: bytes */0", b": x", b" folded", b"X-\xff: \xff", b"X: " + b"y" * 70_000,
    b"Location: http://[", b"Location: http://127.0.0.1:70000/", b"Location: //", b"Location: ",
    b"Location: http://a:b@\xff/", b"Location: file:///etc/passwd", b"Location: http://a..b/",
]  # fmt: skip
STATUSES = b"200 OK|206 Part|302 Found|304 Same|416 Range|503 Busy|-1|".split(b"|")
answer = st.builds(
    lambda status, headers, body, cut: b"\r\n".join([b"HTTP/1.1 " + status, *headers, b"", body])[
        :cut
    ],
    st.sampled_from(STATUSES),
    st.lists(st.sampled_from(HEADERS), max_size=4),
    st.sampled_from([BODY, b"", b"2\r\na\n\r\n0\r\n\r\n", b"-1\r\nx", b"f" * 20, b"x" * 9_000]),
    st.one_of(st.none(), st.integers(0, 60)),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(answers=st.lists(answer, min_size=1, max_size=3))
@example([b"HTTP/1.1 302 Found\r\nLocation: http://[\r\n\r\n"])
def test_any_server_gives_the_file_or_an_error(answers):
    said = "remedy"
    with tempfile.TemporaryDirectory() as name, scripted(*answers) as here:
        url, limits = f"http://me:secret@{here}/train.en", {"timeout": 2.0, "most": 5_000}
        try:
            assert fetch_body(url, Path(name), retries=2, **limits).read_bytes() == BODY
        except CorpusError as error:
            said = str(error)
    assert "remedy" in said
    assert "secret" not in said
    assert not set("\x1b\0\r") & set(said)
