"""Untrusted corpora: files broken on purpose or by accident are refused by name."""

import bz2
import gzip
import io
import json
import lzma
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pair_files import corpus, read_split, rows, write_table

from schemas.config.data import Filter, ReadingLimits
from schemas.errors import Refusal
from transformer_core.data.corpus import download, tables
from transformer_core.data.corpus import lines as text_lines
from transformer_core.data.corpus.lines import read_lines
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.corpus.tables import one_table
from transformer_core.data.tokenizing.existing import read_file, read_sentencepiece

FIELDS = ("source", "target")


def refused(read: Callable[[], Any], *words: str) -> None:
    with pytest.raises(CorpusError) as caught:
        for _ in read() or ():
            pass
    for word in (*words, "remedy"):
        assert word in str(caught.value), str(caught.value)


# Arrow files whose texts lie outside their buffers


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


READ = """
import sys
from pathlib import Path
from schemas.config.data import ReadingLimits
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.corpus.tables import one_table

for path in map(Path, sys.argv[1:]):
    fields = ("struct.text" if "struct" in path.name else "source", "target")
    try:
        for _ in one_table(path, fields, ReadingLimits(memory=2**26)):
            pass
    except CorpusError as error:
        print(error)
"""


def table(source: Any, name: str = "source") -> pa.Table:
    return pa.table({name: source, "target": pa.array(["b"] * len(source))})


def repeated(text: str, rows: int) -> pa.DictionaryArray:
    """A column with the same long text in every row, stored once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))


BEYOND_MEMORY = {
    # The first takes its memory in one piece; later ones may reuse memory that others have freed.
    "train.arrow": ("x" * 100_000_000, 1, {"compression": "zstd"}),
    "dictionary.parquet": ("x" * 200_000, 1_000, {"store_schema": True}),
    "texts.parquet": ("x" * 200_000, 1_000, {"store_schema": False}),
}


@pytest.mark.slow
def test_tables_that_would_end_the_process(tmp_path):
    """Texts outside their buffers, and texts larger than the memory. A separate process reads them:
    they could crash this one, which could also reuse the memory of writing them."""
    expected = {}
    for name, (text, count, options) in BEYOND_MEMORY.items():
        path = write_table(tmp_path / name, table(repeated(text, count)), **options)
        assert path.stat().st_size < 50_000
        expected[path] = f"takes more than {2**26:,} bytes of memory after row 0"
    for name, source in NOWHERE.items():
        inside = pa.StructArray.from_arrays([source], names=["text"])
        for kind, column in (("source", source), ("struct", inside)):
            path = tmp_path / f"data-{name} of {kind}.arrow"
            write_table(path, table(column, kind))
            expected[path] = "is not a valid Arrow file, or is damaged after row 0"
    told = subprocess.check_output([sys.executable, "-c", READ, *expected], text=True)
    for path, words in expected.items():
        assert f"{path}: {words}" in told
    assert told.count("corpus.limits.memory") == len(BEYOND_MEMORY)


def test_invalid_utf8_only_makes_a_bad_row(tmp_path):
    bad = column(pa.string(), struct.pack("<3i", 0, 2, 4), b"\xff\xfeok")
    for source in (bad, pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), bad)):
        for ending in ("arrow", "parquet"):
            path = write_table(tmp_path / f"train.{ending}", pa.table([source, TEXTS], FIELDS))
            first, second = one_table(path, FIELDS)
            assert "is not UTF-8" in first.message
            assert (second.line, second.source) == (2, "ok")


def test_two_columns_of_one_name(tmp_path):
    columns = pa.table([TEXTS, TEXTS, TEXTS], names=["source", "source", "target"])
    for ending in (".arrow", ".parquet"):
        path = write_table(tmp_path / f"train{ending}", columns)
        refused(
            lambda path=path: one_table(path, FIELDS), str(path), "has several columns named source"
        )


# Files that are not text, or have no end


def test_a_text_without_a_blank_line(tmp_path):
    path = tmp_path / "texts.txt.gz"
    path.write_bytes(gzip.compress(b"a line of a text without an end\n" * 100_000))
    refused(
        lambda: rows("documents", str(path), ends="blank_line"),
        str(path),
        "a text of more than 1,048,576 bytes from line 1",
        "corpus.limits.line",
    )


def test_an_xz_file_with_a_large_dictionary(tmp_path):
    path = tmp_path / "a.txt.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    small = lzma.compress(b"a\n" * 10, filters=filters)
    path.write_bytes(small)
    assert list(read_lines(path)) == [b"a"] * 10
    # Byte 15 of the block's head is the size of the dictionary: 40 means 4 GiB - 1.
    head = bytearray(small[12:24])
    assert head[4] == 16
    head[4] = 40
    head[8:12] = struct.pack("<I", zlib.crc32(bytes(head[:8])))
    path.write_bytes(small[:12] + bytes(head) + small[24:])
    refused(lambda: read_lines(path), str(path), "268,435,456 bytes of memory", "xz -9")


@pytest.mark.parametrize(("exponent", "usable"), [(18, True), (19, False)])
def test_a_zstandard_file_with_a_large_window(tmp_path, exponent, usable):
    """RFC 8878: a frame with a window of 2^(10 + exponent) bytes and one raw block."""
    path, text = tmp_path / "a.zst", b"a\nb\n"
    block = (len(text) << 3 | 1).to_bytes(3, "little")
    path.write_bytes(bytes([0x28, 0xB5, 0x2F, 0xFD, 0, exponent << 3]) + block + text)
    if usable:
        assert list(read_lines(path)) == [b"a", b"b"]
    else:
        refused(lambda: read_lines(path), "268,435,456 bytes of memory", "zstd --long=28")


def test_an_archive_is_not_text(tmp_path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("train.en"))
    plain, packed = tmp_path / "train.en", tmp_path / "train.en.gz"
    plain.write_bytes(archive.getvalue())
    packed.write_bytes(gzip.compress(archive.getvalue()))
    for path in (plain, packed):
        refused(lambda path=path: read_lines(path), str(path), "is a tar archive", "unpack it")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("Tür\n".encode("utf-16"), ("is UTF-16", "iconv -f UTF-16 ")),
        ("Eine Tür\n".encode("utf-16-le"), ("is UTF-16", "iconv -f UTF-16LE ")),
        ("Дверь is a door\n".encode("utf-16-be"), ("is UTF-16", "iconv -f UTF-16BE ")),
        ("Tür\n".encode("utf-32"), ("is UTF-32", "iconv -f UTF-32 ")),
        ("Eine Tür\n".encode("utf-32-le"), ("is UTF-32", "iconv -f UTF-32LE ")),
        ("A door\n".encode("utf-32-be"), ("is UTF-32", "iconv -f UTF-32BE ")),
        (gzip.compress(b"a", mtime=0), ("compressed by gzip", "end its name in .gz")),
        (bz2.compress(b"a"), ("compressed by bzip2", "bunzip2")),
        (b"ARROW1\0\0", ("is an Arrow file", "write Parquet")),
        (lzma.compress(b"a"), ("compressed by xz", "end its name in .xz")),
        (zstandard.compress(b"a"), ("compressed by zstd", "end its name in .zst")),
    ],
)
def test_a_file_that_is_no_utf8_text_is_refused_as_a_whole(tmp_path, content, words):
    """Not because of a byte of its first line."""
    path = tmp_path / "train.en"
    path.write_bytes(content)
    refused(lambda: read_lines(path), str(path), *words)


@pytest.mark.parametrize("name", ["pipe", "/dev/zero"])
def test_pipes_and_devices_are_refused(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / name
    for read in (
        read_lines,
        read_file,
        read_sentencepiece,
        download.sha256_of,
        lambda file: one_table(file, FIELDS),
    ):
        refused(lambda read=read: read(path), str(path), "is a pipe or a device")


def test_a_name_that_is_too_long(tmp_path):
    path = tmp_path / ("x" * 300)
    refused(lambda: read_lines(path), "file name too long")
    refused(lambda: one_table(path, FIELDS), "remedy")
    refused(lambda: rows("datasets", folder=str(path)), "file name too long")


def test_a_name_that_is_not_utf8(tmp_path):
    made = write_table(tmp_path / "a.parquet", table(pa.array(["x"])))
    made.rename(tmp_path / os.fsdecode(b"train-\xe9.parquet"))
    refused(lambda: rows("datasets", folder=str(tmp_path)), "can't encode")


SMALL = ReadingLimits(line=2**18)
LARGE: dict[str, tuple[Callable[[], Any], ReadingLimits, tuple[str, ...]]] = {
    "one long text": (
        lambda: pa.array(["a", "b", "x" * 300_000, "c"]),
        SMALL,
        ("300,000 bytes in column source of row 3", "limits.line"),
    ),
    "more text than the file may hold": (
        lambda: repeated("x" * 5_000, 400),
        SMALL,
        ("exceeds 1,048,576 bytes of text after row", "limits.ratio"),
    ),
    "rows that hold nothing": (
        lambda: pa.nulls(60_000, pa.string()),
        ReadingLimits(file=2**16),
        ("bytes of text after row", "limits.file"),
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_table_beyond_a_limit(tmp_path, name, monkeypatch):
    monkeypatch.setattr(text_lines, "_FREE", 2**20)
    source, limits, words = LARGE[name]
    path = write_table(tmp_path / "large.parquet", table(source()), store_schema=False)
    assert path.stat().st_size < 50_000
    refused(lambda: rows("parquet", str(path), limits=limits), str(path), *words)


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_file_that_claims_more_rows_than_it_has(tmp_path, dictionary):
    texts = [f"a{number}" for number in range(1_000)]
    columns = table(pa.array(texts))
    path = write_table(tmp_path / "claimed.parquet", columns, use_dictionary=dictionary)
    content = path.read_bytes()
    # Thrift's compact forms of 1,000 and of 8,000, in the heads of pages and in the footer.
    claimed = content.replace(b"\xd0\x0f", b"\x80\x7d")
    assert claimed != content
    path.write_bytes(claimed)
    refused(lambda: rows("parquet", str(path)), str(path), "damaged after row 0")
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    path.write_bytes(content[:footer] + claimed[footer:])
    assert [row.source for row in rows("parquet", str(path))] == texts


def test_a_table_of_texts_counts_each_once_and_names_its_column(tmp_path):
    texts = ["x" * 1_000] * 100
    path = str(write_table(tmp_path / "texts.parquet", pa.table({"text": texts})))
    enough, few = ({"limits": {"file": size}} for size in (110_000, 90_000))
    assert [row.target for row in rows("documents", path, **enough)] == texts
    refused(lambda: rows("documents", path, **few), "exceeds 90,000 bytes")
    with pytest.raises(CorpusError) as caught:
        rows("documents", path, field="txt")
    assert "did you mean text" in str(caught.value)
    assert "source_field" not in str(caught.value)


def test_rows_are_numbered_across_the_files_of_a_folder(tmp_path):
    write_table(tmp_path / "train/data-0.arrow", table(pa.array(["a", "b"])))
    write_table(tmp_path / "train/data-1.arrow", table(pa.array(["c", "x" * 300_000])))
    refused(
        lambda: rows("datasets", folder=str(tmp_path), limits=SMALL),
        *("data-1.arrow", "column source of row 4"),
    )


def test_long_documents_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_BYTES", 10_000)
    counts, check = [], tables._check_places

    def counting(batch, field):
        counts.append(batch.num_rows)
        check(batch, field)

    monkeypatch.setattr(tables, "_check_places", counting)
    documents = [f"{number:04}" * 250 for number in range(100)]
    for name in ("documents.parquet", "documents.arrow"):
        path = write_table(tmp_path / name, table(pa.array(documents)))
        assert [row.source for row in one_table(path, FIELDS)] == documents
    assert max(counts) <= 10


# Random corpora

some = settings(deadline=None, max_examples=40)
PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
ODD = ["a b", "\u2028", "\x0b\x1c", "\ufeff", "\0", "\x1b[31m", "", "\r", "\ud7ff", "x" * 3_000]
lines = st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=5)), max_size=8)
field_names = st.sampled_from(
    ["source", "a.b", "a.b.c", "nope", ".", "..", "**", "/a", "[", "source."]
)


def odd_table(kind: str, texts: list[str]) -> bytes:
    """A file with two plain and some odd columns."""
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
        return odd_table(kind, texts)
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
    field=field_names,
    rule=st.sampled_from(["skip", "error"]),
)
@example("datasets", ["a"], "", 1.0, [], "**", "skip")
@example("datasets", ["a"], "", 1.0, [], "/a", "skip")
@example("arrow", [], "", 1.0, [(0.396484375, 128)], "source", "skip")  # the name of a column
def test_any_corpus_is_read_or_refused(kind, texts, ending, cut, changes, field, rule):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = "arrow" if kind == "datasets" else kind
        file = folder / f"data.{made}"
        data = content(made, texts)
        if made not in ("parquet", "arrow"):
            file = file.with_name(file.name + ending)
            data = PACKED[ending](data)
        file.write_bytes(damaged(data, cut, changes))
        fields: dict[str, Any] = {"source_field": field, "target_field": "source"}
        files: Any = str(file)
        if kind == "text":
            files, fields = {"source": str(file), "target": str(file)}, {}
        elif kind == "tsv":
            fields = {"header": True}
        elif kind == "documents":
            fields = {"ends": "blank_line"}
        elif kind == "datasets":
            files, fields = None, fields | {"folder": name, "train": field}
        spec = corpus("parquet" if kind == "arrow" else kind, files, **fields)
        rules = Filter(empty=rule, invalid=rule, too_long=rule)
        pairs, report = folder / "out" / "pairs.arrow", folder / "out" / "pairs.json"
        said = ""
        try:
            found = read_split(spec, rules, "train", pairs, report)
        except Refusal as error:
            said = str(error)
        if said:
            assert "remedy" in said
            assert not list(pairs.parent.glob("*"))
        else:
            kept = pa.ipc.open_file(str(pairs)).read_all()
            kept.validate(full=True)
            assert kept.num_rows == found.pairs_kept > 0
