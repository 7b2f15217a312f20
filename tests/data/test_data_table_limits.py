"""Parquet and Arrow files that stand for much more than they are, or say what is not true."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.config.corpus import DatasetsCorpus, ParquetCorpus, ReadingLimits
from transformer_core.data.corpus.readers import open_split
from transformer_core.data.corpus.rows import CorpusError

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


def refused(rows: Iterator[Any], *words: str) -> None:
    with pytest.raises(CorpusError) as caught:
        for _ in rows:
            pass
    for word in (*words, "remedy"):
        assert word in str(caught.value), str(caught.value)


_READ = """
import sys
from pathlib import Path
from schemas.config.corpus import ReadingLimits
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


def test_a_page_larger_than_the_memory(tmp_path: Path) -> None:
    source = pa.array(["a", "b", "x" * 100_000_000])
    path = tmp_path / "page.parquet"
    pq.write_table(table(source), path, compression="zstd", use_dictionary=False)
    too_large(path)


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
    refused(parquet(path), str(path), "300,000 bytes in column source of row 3", "limits.line")


def test_more_text_than_the_file_may_hold(tmp_path: Path) -> None:
    path = tmp_path / "ratio.parquet"
    pq.write_table(table(repeated("x" * 5_000, 20_000)), path, store_schema=False)
    refused(parquet(path), str(path), "goes on after row", "byte 67,108,864", "limits.ratio")


def test_rows_that_hold_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty.parquet"
    pq.write_table(table(pa.nulls(600_000, pa.string())), path)
    assert path.stat().st_size < 50_000
    limits = ReadingLimits(file=2**20)
    refused(parquet(path, limits), str(path), "goes on after row", "limits.file")


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
    refused(parquet(path), str(path), "damaged after row 0")
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    path.write_bytes(content[:footer] + claimed[footer:])
    assert [row.source for row in parquet(path)] == texts


def test_files_of_a_folder_are_counted_on(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    write_arrow(tmp_path / "train/data-0.arrow", pa.array(["a", "b"]))
    write_arrow(tmp_path / "train/data-1.arrow", pa.array(["c", "x" * 300_000]))
    refused(datasets(tmp_path), "data-1.arrow", "column source of row 4")


@pytest.mark.parametrize("store_schema", [True, False])
def test_long_documents_are_read_a_few_at_a_time(tmp_path: Path, store_schema: bool) -> None:
    path = tmp_path / "documents.parquet"
    documents = [f"{number} " * 40_000 for number in range(500)]
    pq.write_table(table(pa.array(documents)), path, store_schema=store_schema)
    rows = list(parquet(path, ReadingLimits(memory=2**29)))
    assert [row.source for row in rows] == documents
