"""Corpora from strangers: broken on purpose or by accident, they are refused by name."""

import contextlib
import gzip
import http.server
import io
import lzma
import os
import socketserver
import struct
import subprocess
import sys
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.config.data import (
    DatasetsCorpus,
    ParquetCorpus,
    ReadingLimits,
    RemoteFile,
    TextsCorpus,
)
from tests.orders import run_job
from transformer_core.data.corpus import download
from transformer_core.data.corpus.lines import read_lines
from transformer_core.data.corpus.readers import open_split
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.corpus.tables import one_table
from transformer_core.data.tokenizing.existing import read_file, read_sentencepiece

FIELDS = ("source", "target")


def refused(rows: Callable[[], Any], *words: str) -> None:
    with pytest.raises(CorpusError) as caught:
        for _ in rows() or ():
            pass
    for word in (*words, "remedy"):
        assert word in str(caught.value), str(caught.value)


# Arrow files whose texts lie where nothing is


def view(length: int, buffer: int, offset: int) -> bytes:
    return struct.pack("<i4sii", length, b"abcd", buffer, offset)


def column(kind: pa.DataType, places: bytes, text: bytes = b"x" * 40) -> pa.Array:
    return pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(places), pa.py_buffer(text)])


TEXTS = pa.array(["a", "b"])
NOWHERE = {
    "view into a missing buffer": column(pa.string_view(), view(30, 7, 0) + view(30, 0, 0)),
    "view beyond its buffer": column(pa.string_view(), view(30, 0, 10**6) + view(30, 0, 0)),
    "negative offset": column(pa.large_string(), struct.pack("<3q", 0, -5, 10)),
    "offset beyond the text": column(pa.string(), struct.pack("<3i", 0, 10**6, 5)),
    "index beyond the dictionary": pa.DictionaryArray.from_arrays(
        pa.array([0, 9], pa.int32()), TEXTS, safe=False
    ),
    "dictionary with a negative offset": pa.DictionaryArray.from_arrays(
        pa.array([0, 1], pa.int32()), column(pa.string(), struct.pack("<3i", 0, -9, 5)), safe=False
    ),
}


# In a process of its own: reading what lies nowhere would end it.
READ = """
import sys
from pathlib import Path
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.corpus.tables import one_table

for path in map(Path, sys.argv[1:]):
    try:
        list(one_table(path, ("struct.text" if "struct" in path.name else "source", "target")))
    except CorpusError as error:
        print(error)
"""


def test_texts_that_lie_nowhere(tmp_path: Path) -> None:
    paths = []
    for name, source in NOWHERE.items():
        for kind in ("source", "struct"):
            columns = [source, TEXTS]
            if kind == "struct":
                columns[0] = pa.StructArray.from_arrays([source], names=["text"])
            batch = pa.record_batch(columns, names=[kind, "target"])
            paths.append(tmp_path / f"{name} of {kind}.arrow")
            with pa.ipc.new_stream(paths[-1], batch.schema) as writer:
                writer.write_batch(batch)
    done = subprocess.run([sys.executable, "-c", READ, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done
    for path in paths:
        assert f"{path}: is no Arrow file, or damaged after row 0" in done.stdout


def test_a_text_that_is_not_utf8_is_a_bad_row_only(tmp_path: Path) -> None:
    path = tmp_path / "train.arrow"
    bad = column(pa.string(), struct.pack("<3i", 0, 2, 4), b"\xff\xfeok")
    for source in (bad, pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), bad)):
        batch = pa.record_batch([source, TEXTS], names=FIELDS)
        with pa.ipc.new_file(path, batch.schema) as writer:
            writer.write_batch(batch)
        first, second = one_table(path, FIELDS)
        assert "is not UTF-8" in first.message  # type: ignore[union-attr]
        assert second.source == "ok"  # type: ignore[union-attr]


@pytest.mark.parametrize("ending", [".arrow", ".parquet"])
def test_two_columns_of_one_name(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"train{ending}"
    table = pa.table([TEXTS, TEXTS, TEXTS], names=["source", "source", "target"])
    if ending == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    refused(lambda: one_table(path, FIELDS), str(path), "has several columns source")


# Text that is none, or has no end


def test_a_text_without_a_blank_line(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt.gz"
    path.write_bytes(gzip.compress(b"a line of a text without an end\n" * 100_000))
    corpus = TextsCorpus(
        kind="documents", name="x", train=str(path), validation="v", test="t", ends="blank_line"
    )
    refused(
        lambda: open_split(corpus, "train").rows(),
        str(path),
        "a text of more than 1,048,576 bytes from line 1 on",
        "corpus.limits.line",
    )


def test_an_xz_file_with_a_large_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    small = lzma.compress(b"a\n" * 10, filters=filters)
    path.write_bytes(small)
    assert list(read_lines(path)) == [b"a"] * 10
    # Byte 15 of the block's head is the size of the dictionary: 40 stands for 4 GiB - 1.
    head = bytearray(small[12:24])
    assert head[4] == 16
    head[4] = 40
    head[8:12] = struct.pack("<I", zlib.crc32(bytes(head[:8])))
    path.write_bytes(small[:12] + bytes(head) + small[24:])
    refused(lambda: read_lines(path), str(path), "268,435,456 bytes of memory", "xz -9")


def test_several_streams_of_xz_with_padding(tmp_path: Path) -> None:
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(b"a\nb\n") + bytes(8) + lzma.compress(b"c\n") + bytes(4))
    assert list(read_lines(path)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_an_archive_is_no_text(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"train.en{ending}"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("train.en"))
    path.write_bytes(gzip.compress(archive.getvalue()) if ending else archive.getvalue())
    refused(lambda: read_lines(path), str(path), "is a tar archive", "unpack it")


def tsv(folder: Path, content: bytes, **filters: str) -> int:
    """Read a TSV file with a job."""
    (folder / "a.tsv").write_bytes(content)
    corpus = {"kind": "tsv", "name": "x"}
    corpus |= {split: str(folder / "a.tsv") for split in ("train", "validation", "test")}
    files = {"pairs": folder / "p.arrow", "report": folder / "p.json"}
    return run_job("read_corpus", corpus=corpus, filter=filters, split="train", **files)


def test_a_nul_character_is_told_or_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = b"a\tb\nc\0d\te\n"
    assert tsv(tmp_path, content) == 1
    said = capsys.readouterr().err
    assert "a.tsv:2: has a NUL character" in said
    assert "filter.invalid: skip" in said
    assert tsv(tmp_path, content, invalid="skip") == 0
    assert '"invalid":1' in (tmp_path / "p.json").read_text().replace(" ", "").replace("\n", "")


@pytest.mark.parametrize("name", ["pipe", "/dev/zero"])
def test_a_pipe_or_a_device_is_no_file(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / name
    for read in (
        read_lines,
        read_file,
        read_sentencepiece,
        download.sha256_of,
        lambda file: one_table(file, FIELDS),
    ):
        refused(lambda read=read: read(path), str(path), "is a pipe or a device")  # type: ignore[misc]


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    refused(lambda: read_lines(path), "file name too long")
    refused(lambda: one_table(path, FIELDS), "remedy")
    corpus = DatasetsCorpus(kind="datasets", name="x", folder=str(path))
    refused(lambda: open_split(corpus, "train").rows(), "file name too long")


# Servers


Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str], Answer]], str]]:
    """Starts servers that answer to a path; gives their addresses."""
    started: list[tuple[http.server.ThreadingHTTPServer, threading.Thread]] = []

    def start(answer: Callable[[str], Answer]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, body = answer(self.path)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        started.append((server, thread))
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


CONTENT = b"a\n"
SHA256 = "87428fc522803d31065e7bce3cf03fe475096631e5e07bbd7a0fde60c4cf25c7"


def fetch(url: str, folder: Path) -> Path:
    file = RemoteFile(url=url, sha256=SHA256)
    return download.fetch(file, folder, retries=1, timeout=5.0, sleep=lambda _: None)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/",
        "http://example.org/..",
        "http://example.org/a%00b",
        "http://example.org/a%0Ab",
        f"http://example.org/{'x' * 300}",
        "http://[::1/train.en",
    ],
)
def test_addresses_that_name_no_file(tmp_path: Path, url: str) -> None:
    refused(lambda: fetch(url, tmp_path), "remedy")
    refused(lambda: download.find(RemoteFile(url=url, sha256=SHA256), tmp_path), "remedy")
    assert not list(tmp_path.iterdir())


def test_a_redirect_to_another_host_is_logged(
    tmp_path: Path, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    there = serve(lambda path: (200, {"Content-Length": "2"}, CONTENT))
    here = serve(lambda path: (302, {"Location": f"http://a:b@{there}/x"}, b""))
    assert fetch(f"http://me:secret@{here}/train.en", tmp_path).read_bytes() == CONTENT
    assert f"http://{here}/train.en leads to http://{there}/x" in caplog.text
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
def test_a_download_takes_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A server that never stops sending, a little at a time."""
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

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        refused(lambda: fetch(f"http://127.0.0.1:{server.server_address[1]}/a", tmp_path), "hours")
        ended.set()
        server.shutdown()


def test_passwords_are_not_shown(
    tmp_path: Path, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for status in (404, 500):
        here = serve(lambda path, status=status: (status, {"Content-Length": "0"}, b""))
        with pytest.raises(CorpusError) as caught:
            fetch(f"http://me:secret@{here}/train.en", tmp_path)
        assert f"http://{here}/train.en" in str(caught.value)
        assert "secret" not in str(caught.value) + caplog.text
    assert download.shown("https://me:p@ss@example.org/a@b?c") == "https://example.org/a@b?c"


SMALL = ReadingLimits(line=2**18)


def table(source: Any) -> pa.Table:
    return pa.table({"source": source, "target": pa.array(["b"] * len(source))})


def repeated(text: str, rows: int) -> pa.DictionaryArray:
    """A column that has one long text in every row, and holds it once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))


def write_arrow(path: Path, source: Any, compression: str | None = None) -> None:
    found = table(source)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(path, found.schema, options=options) as writer:
        writer.write_table(found)


def parquet(path: Path, limits: ReadingLimits = SMALL) -> Iterator[Any]:
    corpus = ParquetCorpus(
        kind="parquet", name="x", train=str(path), validation="v", test="t", limits=limits
    )
    return open_split(corpus, "train").rows()


def datasets(folder: Path, limits: ReadingLimits = SMALL) -> Iterator[Any]:
    corpus = DatasetsCorpus(kind="datasets", name="x", folder=str(folder), limits=limits)
    return open_split(corpus, "train").rows()


_READ = """
import sys
from pathlib import Path
from schemas.config.data import ReadingLimits
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.corpus.tables import one_table

try:
    for _ in one_table(Path(sys.argv[1]), ("source", "target"), ReadingLimits(memory=2**26)):
        pass
except CorpusError as error:
    print(error)
"""


def too_large(path: Path) -> None:
    """Read in a process of its own, which has no memory left from writing, it is refused."""
    assert path.stat().st_size < 50_000
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(path)], capture_output=True, text=True, check=True
    )
    for word in (str(path), "67,108,864 bytes of memory after row 0", "corpus.limits.memory"):
        assert word in done.stdout, done


@pytest.mark.parametrize("store_schema", [True, False])
def test_a_dictionary_with_one_long_text(tmp_path: Path, store_schema: bool) -> None:
    path = tmp_path / "dictionary.parquet"
    pq.write_table(table(repeated("x" * 200_000, 1_000)), path, store_schema=store_schema)
    too_large(path)


def test_an_arrow_batch_larger_than_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "train.arrow"
    write_arrow(path, repeated("x" * 100_000_000, 1), "zstd")
    too_large(path)


def test_one_long_text(tmp_path: Path) -> None:
    path = tmp_path / "long.parquet"
    pq.write_table(table(pa.array(["a", "b", "x" * 300_000, "c"])), path)
    refused(
        lambda: parquet(path), str(path), "300,000 bytes in column source of row 3", "limits.line"
    )


def test_more_text_than_the_file_may_hold(tmp_path: Path) -> None:
    path = tmp_path / "ratio.parquet"
    pq.write_table(table(repeated("x" * 5_000, 20_000)), path, store_schema=False)
    refused(
        lambda: parquet(path), str(path), "goes on after row", "byte 67,108,864", "limits.ratio"
    )


def test_rows_that_hold_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty.parquet"
    pq.write_table(table(pa.nulls(600_000, pa.string())), path)
    assert path.stat().st_size < 50_000
    limits = ReadingLimits(file=2**20)
    refused(lambda: parquet(path, limits), str(path), "goes on after row", "limits.file")


@pytest.mark.parametrize("dictionary", [True, False])
def test_rows_that_are_only_claimed(tmp_path: Path, dictionary: bool) -> None:
    path = tmp_path / "claimed.parquet"
    texts = [f"a{number}" for number in range(1_000)]
    pq.write_table(table(pa.array(texts)), path, use_dictionary=dictionary)
    content = path.read_bytes()
    # Thrift's compact form of 1,000, and of 8,000: in the heads of pages and in the footer.
    claimed = content.replace(b"\xd0\x0f", b"\x80\x7d")
    assert claimed != content
    path.write_bytes(claimed)
    refused(lambda: parquet(path), str(path), "damaged after row 0")
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    path.write_bytes(content[:footer] + claimed[footer:])
    assert [row.source for row in parquet(path)] == texts


def test_files_of_a_folder_are_counted_on(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    write_arrow(tmp_path / "train/data-0.arrow", pa.array(["a", "b"]))
    write_arrow(tmp_path / "train/data-1.arrow", pa.array(["c", "x" * 300_000]))
    refused(lambda: datasets(tmp_path), "data-1.arrow", "column source of row 4")


def test_long_documents_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "documents.parquet"
    documents = [f"{number} " * 40_000 for number in range(500)]
    pq.write_table(table(pa.array(documents)), path)
    rows = list(parquet(path, ReadingLimits(memory=2**29)))
    assert [row.source for row in rows] == documents
