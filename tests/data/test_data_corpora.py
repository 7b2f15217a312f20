"""The corpora job: filters, counts, and the files that it writes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pair_files
import pyarrow as pa
import pytest
from pair_files import read_split, text_files

from schemas.config.data import AnyCorpus, Filter, GrammarCorpus
from schemas.results import CorpusSplit
from tests.orders import run_job
from transformer_core.common.digests import NAME
from transformer_core.data.corpus import job
from transformer_core.data.corpus.job import SCHEMA
from transformer_core.data.corpus.pairs import PairFilter
from transformer_core.data.corpus.readers import open_split
from transformer_core.data.corpus.rows import CorpusError, Pair
from transformer_core.run.job import note


def corpus(folder: Path, source: str, target: str) -> AnyCorpus:
    return pair_files.corpus("text", text_files(folder, source, target))


def read(folder: Path, found: AnyCorpus, **rules: Any) -> tuple[CorpusSplit, pa.Table]:
    pairs, report = folder / "out" / "train.arrow", folder / "out" / "train.json"
    result = read_split(found, Filter(**rules), "train", pairs, report)
    seen = [path.name for path in (folder / "out").iterdir() if path.name != NAME]
    assert sorted(seen) == ["train.arrow", "train.json"]
    return result, pa.ipc.open_file(pairs).read_all()


def test_pairs_and_report(tmp_path):
    report, table = read(tmp_path, corpus(tmp_path, "one\n  two \nthree\n", "eins\nzwei\ndrei\n"))
    assert table.schema.remove_metadata() == SCHEMA
    assert table.to_pydict() == {
        "source": ["one", "two", "three"],
        "target": ["eins", "zwei", "drei"],
        "line": [1, 2, 3],
    }
    files = [str(tmp_path / "a.en"), str(tmp_path / "a.de")]
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    assert metadata == {"corpus": "mine", "split": "train", "files": json.dumps(files)}
    assert (report.pairs_read, report.pairs_kept, report.files) == (3, 3, files)
    assert report.lengths.source == {3: 2, 5: 1}
    assert report.lengths.target == {4: 3}


def test_white_space_inside_a_sentence_is_kept_and_around_it_not_counted(tmp_path):
    report, _ = read(tmp_path, corpus(tmp_path, "  äöü€𝄞  \n", "x\n"), max_characters=5)
    assert report.lengths.source == {5: 1}
    _, table = read(tmp_path, corpus(tmp_path, "\u3000a  b\u2028c\t\r\n", "x\x85y\n"))
    assert table["source"].to_pylist() == ["a  b\u2028c"]
    assert table["target"].to_pylist() == ["x\x85y"]


BAD: list[tuple[str, bytes, str, str]] = [
    ("empty", b"a\n \nc\n", " ", r"filter\.empty: skip"),
    ("empty", "a\n\u2028\nc\n".encode(), "\u2028", r"filter\.empty: skip"),
    ("too_long", b"a\n123456\n12345\n", "123456", "sentence has 6 characters"),
    ("invalid", b"a\n\xff\nc\n", "\ufffd", "is not UTF-8"),
    ("invalid", b"a\nb\0\nc\n", "b\0", "has a NUL character"),
]


@pytest.mark.parametrize("side", ["en", "de"])
@pytest.mark.parametrize(("kind", "content", "text", "words"), BAD)
def test_a_bad_line_is_an_error_or_skipped(tmp_path, kind, content, text, words, side):
    found, bad = corpus(tmp_path, "a\nb\nc\n", "x\ny\nz\n"), tmp_path / f"a.{side}"
    bad.write_bytes(content)
    with pytest.raises(CorpusError, match=words) as caught:
        read(tmp_path, found, max_characters=5, **{kind: "error"})
    assert caught.value.line == 2
    assert caught.value.file == str(bad)
    report, table = read(tmp_path, found, max_characters=5, **{kind: "skip"})
    assert table["line"].to_pylist() == [1, 3]
    assert (report.pairs_read, report.skipped[kind]) == (3, 1)
    assert sum(report.skipped.values()) == 1
    assert report.examples[0].where == f"{bad}:2"
    assert report.examples[0].text == text


def test_examples_are_the_first_ten_and_short(tmp_path):
    source = "keep\n" + ("x" * 3_000 + "\n") * 25
    report, _ = read(tmp_path, corpus(tmp_path, source, "y\n" * 26))
    assert report.skipped["too_long"] == 25
    places = [f"{tmp_path / 'a.en'}:{line}" for line in range(2, 12)]
    assert [example.where for example in report.examples] == places
    assert all(len(example.text) <= 80 for example in report.examples)


def test_batches_are_bounded_and_nothing_is_lost_between_them(tmp_path):
    count = 23_456
    lines = [str(number) if number % 1000 else "" for number in range(1, count + 1)]
    found = corpus(tmp_path, "\n".join(lines) + "\n", "t\n" * count)
    report, table = read(tmp_path, found, empty="skip")
    batches = pa.ipc.open_file(tmp_path / "out" / "train.arrow")
    assert max(batches.get_batch(i).num_rows for i in range(batches.num_record_batches)) <= 10_000
    assert table["line"].to_pylist() == [n for n in range(1, count + 1) if n % 1000]
    assert table["source"].to_pylist() == [line for line in lines if line]
    assert report.pairs_kept == count - 23


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a\n" * 15_000, "b\n" * 14_999, r"15,000 lines, but .*a\.de has 14,999"),
        ("a\n", "b\n" * 4, r"has 1 line, but .*a\.de has 4"),
        ("", "b\n", r"has 0 lines, but .*a\.de has 1"),
        ("", "", "contains no sentences"),
        ("abc\n" * 2, "x\ny\n", r"none of 2 pairs is left \(too_long 2; the first: .*:1"),
    ],
)
def test_an_error_leaves_nothing_behind(tmp_path, source, target, message):
    rules = dict.fromkeys(("empty", "invalid", "too_long"), "skip")
    with pytest.raises(CorpusError, match=message):
        read(tmp_path, corpus(tmp_path, source, target), max_characters=2, **rules)
    assert list((tmp_path / "out").iterdir()) == []


def test_columns_are_filtered_like_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "BATCH_PAIRS", 1_000)
    corpus = GrammarCorpus(kind="grammar", train_pairs=2_345, names=500)
    reader = open_split(corpus, "train")
    rows, found = list(reader.rows()), []
    for rules in ({}, {"max_characters": 80, "too_long": "skip"}):
        report, table = read(tmp_path, corpus, **rules)
        pair_filter = PairFilter(Filter(**rules), reader)
        kept = pair_filter.keep(rows)
        assert [Pair(**row) for row in table.to_pylist()] == kept
        assert (report.pairs_read, report.skipped) == (2_345, pair_filter.skipped)
        assert report.examples == pair_filter.examples
        found.append(report.pairs_kept)
    assert found[0] == 2_345 > found[1] > 0


@pytest.mark.parametrize("odd", ["", " b", "b\u2003", "b\x1f", "bbbbb", "ü" * 4])
@pytest.mark.parametrize("side", ["source", "target"])
def test_odd_columns_are_checked_row_by_row(odd, side):
    texts = {"source": ["a", "üüü"], "target": ["üüü", "a"]}
    reader = open_split(GrammarCorpus(kind="grammar"), "train")
    pair_filter = PairFilter(Filter(max_characters=3), reader)
    schema = pa.schema(dict.fromkeys(texts, pa.large_string()))
    assert pair_filter.keep_columns(pa.record_batch(texts, schema=schema))
    assert pair_filter.read == 2
    assert not pair_filter.keep_columns(pa.record_batch(texts | {side: ["a", odd]}, schema=schema))
    assert pair_filter.read == 2


def run(folder: Path, found: object, split: str = "train", **rules: str) -> int:
    files = {"pairs": folder / "train.arrow", "report": folder / "train.json"}
    return run_job("read_corpus", corpus=found, filter=rules, split=split, **files)


def test_the_same_input_gives_the_same_bytes(tmp_path):
    contents = []
    for name in ("a", "b"):
        assert run(tmp_path / name, {"kind": "grammar", "train_pairs": 345, "seed": 3}) == 0
        contents.append((tmp_path / name / "train.arrow").read_bytes())
    assert contents[0] == contents[1]
    report = CorpusSplit.model_validate_json((tmp_path / "a" / "train.json").read_text())
    assert (report.pairs_kept, report.files) == (345, ["grammar (seed 3)"])


def test_the_job_reports_mistakes_without_a_traceback(tmp_path, capsys):
    found = corpus(tmp_path, "a\n\n", "b\nc\n")
    assert run(tmp_path, found) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"{tmp_path / 'a.en'}:2: the source sentence is empty")
    assert "remedy:" in message
    assert run(tmp_path, found, empty="skip") == 0
    (tmp_path / "file").touch()
    for folder, given, rules, split, field in (
        (tmp_path, {"kind": "tsv", "nam": "x"}, {}, "train", "corpus.nam"),
        (tmp_path, found, {"emty": "skip"}, "train", "filter.emty"),
        (tmp_path / "file", found, {"empty": "skip"}, "train", str(tmp_path / "file")),
        (tmp_path, found, {}, "tset", "split"),
    ):
        assert run(folder, given, split, **rules) == 1
        assert field in capsys.readouterr().err, field


def test_a_mistake_with_half_of_a_surrogate_pair_is_logged(tmp_path):
    """As a key of JSON, or a file name that is not UTF-8, may have one."""
    note(tmp_path / "log", CorpusError("no field, only \ud83d", file="a", remedy="b"))
    assert "a: no field, only \\ud83d\n" in (tmp_path / "log").read_text()


def test_url_corpus_with_a_folder_reports_its_addresses(tmp_path):
    pair = {}
    for side, content in (("source", b"one\ntwo\n"), ("target", b"eins\nzwei\n")):
        (tmp_path / f"{side}.txt").write_bytes(content)
        url = f"https://example.org/{side}.txt"
        pair[side] = {"url": url, "sha256": hashlib.sha256(content).hexdigest()}
    report, table = read(tmp_path, pair_files.corpus("url", pair, folder=str(tmp_path)))
    assert report.files == [pair[side]["url"] for side in ("source", "target")]
    assert table["target"].to_pylist() == ["eins", "zwei"]
