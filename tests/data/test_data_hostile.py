"""Corpora and servers that chance makes up: an error with a remedy, or whole pairs, and nothing else."""

import contextlib
import gzip
import json
import lzma
import socketserver
import tempfile
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from schemas.config.data import AnyCorpus, Filter, RemoteFile
from schemas.errors import Refusal
from transformer_core.data.corpus import download
from transformer_core.data.corpus.job import read_split
from transformer_core.data.corpus.rows import CorpusError

some = settings(deadline=None, max_examples=40)
PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
ODD = ["a b", "\u2028", "\x0b\x1c", "\ufeff", "\0", "\x1b[31m", "", "\r", "\ud7ff", "x" * 3_000]
lines = st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=5)), max_size=8)
fields = st.sampled_from(["source", "a.b", "a.b.c", "nope", ".", "..", "**", "/a", "[", "source."])


def table(kind: str, texts: list[str]) -> bytes:
    """A file of two columns and of odd ones."""
    columns = {
        "source": pa.array(texts),
        "a.b": pa.array(texts).dictionary_encode(),
        "a": pa.array([{"b": text} for text in texts], pa.struct([("b", pa.string())])),
        "nope": pa.nulls(len(texts)),
    }
    made = pa.table(columns)
    sink = pa.BufferOutputStream()
    if kind == "parquet":
        pq.write_table(made, sink)
    else:
        with pa.ipc.new_stream(sink, made.schema) as writer:
            writer.write_table(made, max_chunksize=3)
    return sink.getvalue().to_pybytes()


def content(kind: str, texts: list[str]) -> bytes:
    if kind in ("parquet", "arrow"):
        return table(kind, texts)
    if kind == "jsonl":
        texts = [json.dumps({"source": text, "a": {"b": text}}) for text in texts]
    return "\n".join(texts).encode("utf-8", "surrogatepass")


def damaged(data: bytes, cut: float, changes: list[tuple[float, int]]) -> bytes:
    found = bytearray(data[: round(cut * len(data))])
    for place, value in changes if found else []:
        found[int(place * len(found))] = value
    return bytes(found)


share = st.floats(0, 1, exclude_max=True)


@pytest.mark.slow
@some
@given(
    kind=st.sampled_from(["text", "tsv", "jsonl", "parquet", "arrow", "documents", "datasets"]),
    texts=lines,
    ending=st.sampled_from(sorted(PACKED)),
    cut=st.one_of(st.just(1.0), share),
    changes=st.lists(st.tuples(share, st.integers(0, 255)), max_size=4),
    field=fields,
    rule=st.sampled_from(["skip", "error"]),
)
@example("datasets", ["a"], "", 1.0, [], "**", "skip")
@example("datasets", ["a"], "", 1.0, [], "/a", "skip")
def test_any_corpus_is_read_or_refused(
    kind: str,
    texts: list[str],
    ending: str,
    cut: float,
    changes: list[tuple[float, int]],
    field: str,
    rule: Any,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = "arrow" if kind == "datasets" else kind
        file = folder / f"data.{made}"
        data = content(made, texts)
        if made not in ("parquet", "arrow"):
            file = file.with_name(file.name + ending)
            data = PACKED[ending](data)
        file.write_bytes(damaged(data, cut, changes))
        splits: dict[str, Any] = dict.fromkeys(("train", "validation", "test"), str(file))
        settings: dict[str, Any] = {"source_field": field, "target_field": "source"}
        if kind == "text":
            pair = {"source": str(file), "target": str(file)}
            settings = {}
            splits = dict.fromkeys(splits, pair)
        elif kind == "tsv":
            settings = {"header": True}
        elif kind == "documents":
            settings = {"ends": "blank_line"}
        elif kind == "datasets":
            splits = {"folder": name, "train": field}
        corpus: Any = TypeAdapter(AnyCorpus).validate_python(
            {"kind": "parquet" if kind == "arrow" else kind, "name": "x"} | settings | splits
        )
        rules = Filter(empty=rule, invalid=rule, too_long=rule)
        pairs, report = folder / "out" / "pairs.arrow", folder / "out" / "pairs.json"
        said = ""
        try:
            found = read_split(corpus, rules, "train", pairs, report)
        except Refusal as error:
            said = str(error)
        if said:
            assert "remedy" in said
            assert not list(pairs.parent.glob("*"))
        else:
            kept = pa.ipc.open_file(str(pairs)).read_all()
            kept.validate(full=True)
            assert kept.num_rows == found.pairs_kept > 0


BODY = b"a\n"
SHA256 = "87428fc522803d31065e7bce3cf03fe475096631e5e07bbd7a0fde60c4cf25c7"
HEADERS = [
    b"Content-Length: 2", b"Content-Length: -5", b"Content-Length: x", b"Content-Length: 2, 7",
    b"Transfer-Encoding: chunked", b"Content-Encoding: gzip", b"Content-Range: bytes 9-1/1",
    b"Content-Range: bytes */0", b": x", b" folded", b"X-\xff: \xff", b"X: " + b"y" * 70_000,
    b"Location: http://[", b"Location: http://127.0.0.1:70000/", b"Location: //", b"Location: ",
    b"Location: http://a:b@\xff/", b"Location: file:///etc/passwd", b"Location: http://a..b/",
]  # fmt: skip
STATUSES = [
    b"200 OK",
    b"206 Part",
    b"302 Found",
    b"304 Same",
    b"416 Range",
    b"503 Busy",
    b"-1",
    b"",
]


class Scripted(socketserver.BaseRequestHandler):
    """Sends the server's next answer."""

    def handle(self) -> None:
        answers = self.server.answers  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            self.request.recv(65_536)
            self.request.sendall(answers.pop(0) if len(answers) > 1 else answers[0])


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
@some
@given(answers=st.lists(answer, min_size=1, max_size=3))
def test_any_server_gives_the_file_or_an_error(answers: list[bytes]) -> None:
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Scripted)
    server.answers = answers  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://me:secret@127.0.0.1:{server.server_address[1]}/train.en"
    file = RemoteFile(url=url, sha256=SHA256)
    said = "remedy"
    try:
        with tempfile.TemporaryDirectory() as name:
            found = download.fetch(
                file, Path(name), retries=2, timeout=2.0, most=5_000, sleep=lambda _: None
            )
            assert found.read_bytes() == BODY
    except CorpusError as error:
        said = str(error)
    finally:
        server.shutdown()
        server.server_close()
    assert "remedy" in said
    assert "secret" not in said
    assert not set("\x1b\0\r") & set(said)
