"""Readers turn every kind of corpus into the same stream of numbered pairs."""

import gzip
import json
import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pair_files import corpus, reader, rows, steady, write_table

from schemas.config.data import SPLITS, ReadingLimits
from transformer_core.data.corpus import lines as text_lines
from transformer_core.data.corpus.lines import read_lines
from transformer_core.data.corpus.readers import open_split
from transformer_core.data.corpus.rows import CorpusError, Invalid, Pair


def line_file(folder: Path, *lines: bytes) -> str:
    path = folder / "pairs.txt"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


def test_tsv_reads_the_configured_columns(tmp_path):
    path = line_file(tmp_path, b"id\ten\tde", b'1\ta "quoted" one\teins', b"2\ttwo\tzwei\r")
    found = rows("tsv", path, source_column=2, target_column=3, header=True)
    assert found == [Pair(2, 'a "quoted" one', "eins"), Pair(3, "two", "zwei")]
    swapped = rows("tsv", path, source_column=3, target_column=2)
    assert swapped[0] == Pair(1, "de", "en")
    found = rows("tsv", line_file(tmp_path, b"a\tb", b"only", b"\xff\tb", b"c\td"))
    assert [type(row) for row in found] == [Pair, Invalid, Invalid, Pair]
    assert found[1] == Invalid(2, path, "only", "has no column 2, only 1")


def test_jsonl_reads_nested_fields(tmp_path):
    record = {"translation": {"en": "one", "de": "süß\u2028"}}
    literal = {"translation.en": "two", "translation.de": "zwei"}
    path = line_file(tmp_path, json.dumps(record).encode(), json.dumps(literal).encode())
    fields = {"source_field": "translation.en", "target_field": "translation.de"}
    assert rows("jsonl", path, **fields) == [Pair(1, "one", "süß\u2028"), Pair(2, "two", "zwei")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"source": "a"', "is not JSON (Expecting ',' delimiter in column 15)"),
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"source": "a"}', "has no field target, only source"),
        (b'["a", "b"]', "has no field source"),
        (b'{"source": "a", "target": 3}', "field target is int, not text"),
        (b'{"source": null, "target": "b"}', "field source is NoneType, not text"),
        (b'{"source": "\\ud800", "target": "b"}', "half of a surrogate pair"),
        (b'{"source": "\xff", "target": "b"}', "not UTF-8"),
    ],
)
def test_jsonl_line_without_a_pair_is_invalid(tmp_path, line, message):
    good = b'{"source": "a", "target": "b"}'
    first, second, third = rows("jsonl", line_file(tmp_path, good, line, good))
    assert (first, third) == (Pair(1, "a", "b"), Pair(3, "a", "b"))
    assert (type(second), second.line) == (Invalid, 2)
    assert message in second.message


def parquet(folder: Path, columns: dict[str, pa.Array]) -> str:
    return str(write_table(folder / "pairs.parquet", pa.table(columns), row_group_size=2))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
)
def test_parquet_reads_text_of_every_type(tmp_path, kind):
    source = pa.array(["one", "two", None, "four"]).cast(kind)
    target = pa.array(["eins", "zwei", "drei", "vier"]).cast(kind)
    path = parquet(tmp_path, {"source": source, "target": target, "score": pa.array([1] * 4)})
    found = rows("parquet", path)
    assert found[0] == Pair(1, "one", "eins")
    assert found[2] == Invalid(3, path, "", "column source is null")
    assert found[3] == Pair(4, "four", "vier")


def test_arrow_reads_dictionaries_of_views(tmp_path):
    views = pa.array(["one", "two"], pa.string_view())
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), views)
    path = write_table(tmp_path / "pairs.arrow", pa.table({"source": texts, "target": texts}))
    first, second, third, fourth = rows("parquet", str(path))
    assert (first, second) == (Pair(1, "one", "one"), Pair(2, "two", "two"))
    assert (type(third), fourth) == (Invalid, Pair(4, "one", "one"))


def test_parquet_reads_struct_columns(tmp_path):
    pairs = pa.array([{"en": "one", "de": "eins"}, None, {"en": "two", "de": None}])
    path = parquet(tmp_path, {"translation": pairs})
    found = rows("parquet", path, source_field="translation.en", target_field="translation.de")
    assert found[0] == Pair(1, "one", "eins")
    assert [type(row) for row in found] == [Pair, Invalid, Invalid]


def test_parquet_mistakes_name_the_remedy(tmp_path):
    path = parquet(tmp_path, {"sauce": pa.array(["a"]), "target": pa.array([1])})
    (tmp_path / "no.parquet").write_bytes(b"nothing of the kind")
    for name, field, message in (
        (path, "source", r"has no column source\n.*did you mean sauce"),
        (path, "sauce", "column target is int64, not text"),
        (
            str(tmp_path / "no.parquet"),
            "source",
            r"is not a valid Parquet file.*\n.*write it as Parquet",
        ),
        (str(tmp_path / "nowhere.parquet"), "source", "cannot be read"),
        (str(tmp_path), "source", "is a folder"),
    ):
        with pytest.raises(CorpusError, match=message):
            rows("parquet", name, source_field=field)


PAIRS = {"source": ["one", "two", "three"], "target": ["eins", "zwei", "drei"]}
EXPECTED = [Pair(1, "one", "eins"), Pair(2, "two", "zwei"), Pair(3, "three", "drei")]


@pytest.mark.parametrize(
    "files",
    [
        ["train/data-00000-of-00002.arrow", "train/data-00001-of-00002.arrow"],
        ["train/0.arrow", "train/1.arrow"],
        ["train/0.parquet", "train/1.parquet"],
        ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"],
        ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
    ],
)
def test_folders_of_datasets_are_read_in_order(tmp_path, files):
    table = pa.table(PAIRS)
    for name, part in zip(files, (table[:2], table[2:]), strict=True):
        write_table(tmp_path / name, part)
    write_table(tmp_path / "test-0.parquet", table)
    if files[0].startswith("train/data-"):
        write_table(tmp_path / "train" / "cache-1.arrow", table)
    found = reader("datasets", folder=str(tmp_path))
    assert list(found.rows()) == EXPECTED
    assert found.files == [str(tmp_path / name) for name in files]


def test_files_saved_by_datasets_are_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    pairs = [{"translation": {"en": p.source, "de": p.target}} for p in EXPECTED]
    saved = datasets.DatasetDict({"training": datasets.Dataset.from_list(pairs)})
    saved.save_to_disk(str(tmp_path), num_shards={"training": 2})
    fields = {"source_field": "translation.en", "target_field": "translation.de"}
    assert rows("datasets", folder=str(tmp_path), train="training", **fields) == EXPECTED


def test_mistakes_in_a_folder_of_datasets_name_the_remedy(tmp_path):
    folder = str(tmp_path)
    with pytest.raises(CorpusError, match=r"split train\n.*there are none"):
        reader("datasets", folder=folder)
    write_table(tmp_path / "dev" / "data-0.arrow", pa.table({"source": ["a"], "target": [None]}))
    for name in ("all", "data/eval-0", "test/0000"):
        write_table(tmp_path / f"{name}.parquet", pa.table(PAIRS))
    with pytest.raises(CorpusError, match=r"split train\n.*there are all, dev, eval, test\)"):
        reader("datasets", folder=folder)
    with pytest.raises(CorpusError, match="column target is null, not text"):
        rows("datasets", folder=folder, train="dev")
    path = tmp_path / "train" / "data-0.arrow"
    write_table(path, pa.table({"source": ["a", None], "target": ["b", "c"]}))
    invalid = rows("datasets", folder=folder)[1]
    assert invalid == Invalid(2, f"{folder}, split train", "", "column source is null")
    path.write_bytes(b"nothing of the kind at all, though long enough")
    with pytest.raises(CorpusError, match=r"data-0\.arrow: is not a valid Arrow file"):
        rows("datasets", folder=folder)


@pytest.mark.slow
def test_a_grammar_corpus_is_the_same_from_several_processes():
    grammar = corpus("grammar", train_pairs=1_300, seed=5)
    alone, shared = (open_split(grammar, "train", processes=count) for count in (1, 2))
    batches = list(shared.columns(600))
    assert max(batch.num_rows for batch in batches) == 600
    texts = pa.Table.from_batches(batches).to_pydict()
    found = list(zip(texts["source"], texts["target"], strict=True))
    assert found == [row[1:] for row in alone.rows()]


def test_grammar_corpus_knows_its_size_and_splits():
    grammar = corpus("grammar", train_pairs=30, validation_pairs=20, test_pairs=10)
    found = {split: open_split(grammar, split) for split in SPLITS}
    assert [item.total for item in found.values()] == [30, 20, 10]
    train = list(found["train"].rows())
    assert [row.line for row in train] == list(range(1, 31))
    assert list(found["train"].rows()) == train
    assert not {tuple(row)[1:] for row in train} & {tuple(row)[1:] for row in found["test"].rows()}


def test_url_corpus_without_a_folder_names_the_remedy():
    file = {"url": "http://127.0.0.1:9/a.en", "sha256": "0" * 64}
    with pytest.raises(CorpusError, match="names no folder for downloads"):
        reader("url", {"source": file, "target": file})


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    ".txt": bytes,
    ".gz": gzip.compress,
    ".xz": partial(lzma.compress, preset=0),  # which is fast
    ".zst": zstandard.compress,
}
COMPRESSED = [".gz", ".xz", ".zst"]


def written(folder: Path, content: bytes, ending: str = ".txt") -> Path:
    path = folder / f"lines{ending}"
    path.write_bytes(COMPRESSORS[ending](content))
    return path


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"a\nb", [b"a", b"b"]),
        (b"a\r\nb\r\r\n", [b"a", b"b\r"]),
        (b"\xef\xbb\xbfa\nb\n", [b"a", b"b"]),
        (b"\xef\xbb\xbf\na\n", [b"", b"a"]),
        (b"\xef\xbb\xbf", []),
        (b"a\0\nbc\n\0\n", [b"a\0", b"bc", b"\0"]),
    ],
)
def test_line_ends_and_byte_order_mark(tmp_path, content, lines):
    assert list(read_lines(written(tmp_path, content))) == lines


@steady
@given(st.lists(st.binary().map(lambda line: line.translate(None, b"\0\n").rstrip(b"\r"))))
def test_any_lines_are_read_back(tmp_path_factory, lines):
    """Unless the file begins like one of another format, or consists of zero bytes like UTF-16."""
    lines = [b"text", *lines]
    path = written(tmp_path_factory.mktemp("lines"), b"".join(line + b"\n" for line in lines))
    assert list(read_lines(path)) == lines


def test_concatenated_compressed_files_are_read_as_one(tmp_path):
    for ending, padding in ((".gz", 0), (".xz", 8), (".zst", 0)):
        first, second = map(COMPRESSORS[ending], (b"a\nb", b"c\n"))
        path = tmp_path / f"two{ending}"
        path.write_bytes(first + bytes(padding) + second + bytes(padding // 2))
        assert list(read_lines(path)) == [b"a", b"bc"]


@pytest.mark.parametrize("ending", COMPRESSED)
@pytest.mark.parametrize("kept", [0.3, 0.99])
def test_a_truncated_file_is_an_error(tmp_path, ending, kept):
    content = "".join(f"{number * 7919 % 10007}\n" for number in range(50_000)).encode()
    path = written(tmp_path, content, ending)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(CorpusError, match="damaged or cut off after line") as caught:
        list(read_lines(path))
    assert str(path) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    plain = [tmp_path / f"plain{ending}" for ending in COMPRESSED]
    for path in plain:
        path.write_bytes(b"this is not compressed\n" * 10)
    for path, message in (
        *((path, "ending matches its compression") for path in plain),
        (tmp_path / "nowhere.txt", r"nowhere\.txt: cannot be read: no such file"),
        (tmp_path, "is a directory"),
    ):
        with pytest.raises(CorpusError, match=message):
            list(read_lines(path))


SMALL = ReadingLimits(line=2**18, file=2**21, ratio=2.0)


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_an_endless_line_is_refused_early(tmp_path, ending):
    path = written(tmp_path, b"short\n" * 1_000 + b"x" * 800_000, ending)
    words = r"a line of more than 262,144 bytes before byte \d{3},\d{3}\b"
    with pytest.raises(CorpusError, match=words) as caught:
        list(read_lines(path, SMALL))
    assert "corpus.limits.line" in str(caught.value)
    path = written(tmp_path, b"x" * 262_144 + b"\n" + b"y" * 262_000 + b"\nz\n", ending)
    assert [len(line) for line in read_lines(path, SMALL)] == [262_144, 262_000, 1]


def test_an_end_of_line_between_two_pieces(tmp_path):
    for length in range(2**18 - 3, 2**18 + 1):
        path = written(tmp_path, b"x" * length + b"\r\nshort\r\n")
        assert [len(line) for line in read_lines(path)] == [length, 5]


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_a_file_beyond_its_size_is_refused(tmp_path, ending):
    path = written(tmp_path, b"words of a sentence\n" * 110_000, ending)
    with pytest.raises(CorpusError, match=rf"{path.name}: has more than 2,097,152 bytes\n"):
        list(read_lines(path, SMALL))


@pytest.mark.parametrize("ending", COMPRESSED)
@pytest.mark.parametrize(
    ("content", "words"),
    [(b"x", "before byte 1,"), (b"\n", "more than 1,048,576 bytes, .* its size")],
)
def test_a_compressed_bomb_is_refused_early(tmp_path, ending, content, words, monkeypatch):
    """With no end of line, and with many."""
    monkeypatch.setattr(text_lines, "_FREE", 2**20)
    path = written(tmp_path, content * 4_000_000, ending)
    with pytest.raises(CorpusError, match=words):
        for _ in read_lines(path, ReadingLimits(ratio=2.0)):
            pass
