"""Corpora from strangers: broken on purpose or by accident, they are refused by name."""

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from schemas.config.data import (
    AnyCorpus,
    DatasetsCorpus,
    Filter,
    ParquetCorpus,
    ReadingLimits,
    TextsCorpus,
)
from schemas.errors import Refusal
from tests.orders import run_job
from transformer_core.data.corpus import download
from transformer_core.data.corpus.job import read_split
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


def test_texts_that_lie_nowhere(tmp_path):
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


def test_a_text_that_is_not_utf8_is_a_bad_row_only(tmp_path):
    path = tmp_path / "train.arrow"
    bad = column(pa.string(), struct.pack("<3i", 0, 2, 4), b"\xff\xfeok")
    for source in (bad, pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), bad)):
        batch = pa.record_batch([source, TEXTS], names=FIELDS)
        with pa.ipc.new_file(path, batch.schema) as writer:
            writer.write_batch(batch)
        first, second = one_table(path, FIELDS)
        assert "is not UTF-8" in first.message
        assert second.source == "ok"


@pytest.mark.parametrize("ending", [".arrow", ".parquet"])
def test_two_columns_of_one_name(tmp_path, ending):
    path = tmp_path / f"train{ending}"
    table = pa.table([TEXTS, TEXTS, TEXTS], names=["source", "source", "target"])
    if ending == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    refused(lambda: one_table(path, FIELDS), str(path), "has several columns source")


# Text that is none, or has no end


def test_a_text_without_a_blank_line(tmp_path):
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


def test_an_xz_file_with_a_large_dictionary(tmp_path):
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


def test_several_streams_of_xz_with_padding(tmp_path):
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(b"a\nb\n") + bytes(8) + lzma.compress(b"c\n") + bytes(4))
    assert list(read_lines(path)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_an_archive_is_no_text(tmp_path, ending):
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


def test_a_nul_character_is_told_or_skipped(tmp_path, capsys):
    content = b"a\tb\nc\0d\te\n"
    assert tsv(tmp_path, content) == 1
    said = capsys.readouterr().err
    assert "a.tsv:2: has a NUL character" in said
    assert "filter.invalid: skip" in said
    assert tsv(tmp_path, content, invalid="skip") == 0
    assert '"invalid":1' in (tmp_path / "p.json").read_text().replace(" ", "").replace("\n", "")


@pytest.mark.parametrize("name", ["pipe", "/dev/zero"])
def test_a_pipe_or_a_device_is_no_file(tmp_path, name):
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
    corpus = DatasetsCorpus(kind="datasets", name="x", folder=str(path))
    refused(lambda: open_split(corpus, "train").rows(), "file name too long")


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
def test_a_dictionary_with_one_long_text(tmp_path, store_schema):
    path = tmp_path / "dictionary.parquet"
    pq.write_table(table(repeated("x" * 200_000, 1_000)), path, store_schema=store_schema)
    too_large(path)


def test_an_arrow_batch_larger_than_the_memory(tmp_path):
    path = tmp_path / "train.arrow"
    write_arrow(path, repeated("x" * 100_000_000, 1), "zstd")
    too_large(path)


LARGE: dict[str, tuple[Callable[[], Any], ReadingLimits, tuple[str, ...]]] = {
    "one long text": (
        lambda: pa.array(["a", "b", "x" * 300_000, "c"]),
        SMALL,
        ("300,000 bytes in column source of row 3", "limits.line"),
    ),
    "more text than the file may hold": (
        lambda: repeated("x" * 5_000, 20_000),
        SMALL,
        ("goes on after row", "byte 67,108,864", "limits.ratio"),
    ),
    "rows that hold nothing": (
        lambda: pa.nulls(600_000, pa.string()),
        ReadingLimits(file=2**20),
        ("goes on after row", "limits.file"),
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_table_beyond_a_limit(tmp_path, name):
    source, limits, words = LARGE[name]
    path = tmp_path / "large.parquet"
    pq.write_table(table(source()), path, store_schema=False)
    assert path.stat().st_size < 50_000
    refused(lambda: parquet(path, limits), str(path), *words)


@pytest.mark.parametrize("dictionary", [True, False])
def test_rows_that_are_only_claimed(tmp_path, dictionary):
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


def test_files_of_a_folder_are_counted_on(tmp_path):
    (tmp_path / "train").mkdir()
    write_arrow(tmp_path / "train/data-0.arrow", pa.array(["a", "b"]))
    write_arrow(tmp_path / "train/data-1.arrow", pa.array(["c", "x" * 300_000]))
    refused(lambda: datasets(tmp_path), "data-1.arrow", "column source of row 4")


def test_long_documents_are_read_a_few_at_a_time(tmp_path):
    path = tmp_path / "documents.parquet"
    documents = [f"{number} " * 40_000 for number in range(500)]
    pq.write_table(table(pa.array(documents)), path)
    rows = list(parquet(path, ReadingLimits(memory=2**29)))
    assert [row.source for row in rows] == documents


# Corpora that chance makes up

some = settings(deadline=None, max_examples=40)
PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
ODD = ["a b", "\u2028", "\x0b\x1c", "\ufeff", "\0", "\x1b[31m", "", "\r", "\ud7ff", "x" * 3_000]
lines = st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=5)), max_size=8)
field_names = st.sampled_from(
    ["source", "a.b", "a.b.c", "nope", ".", "..", "**", "/a", "[", "source."]
)


def odd_table(kind: str, texts: list[str]) -> bytes:
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
