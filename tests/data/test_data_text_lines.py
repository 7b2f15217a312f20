"""Files read as lines, whatever their compression."""

import gzip
import lzma
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from schemas.config.corpus import ReadingLimits
from transformer_core.data.corpus import lines as text_lines
from transformer_core.data.corpus.lines import open_decompressed, read_lines
from transformer_core.data.corpus.rows import CorpusError, snippet
from transformer_core.data.corpus.tables import one_table

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    ".txt": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


def written(folder: Path, content: bytes, ending: str = ".txt") -> Path:
    path = folder / f"lines{ending}"
    path.write_bytes(COMPRESSORS[ending](content))
    return path


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_lines_are_the_same_whatever_the_compression(tmp_path: Path, ending: str) -> None:
    lines = [f"line {number}".encode() * (number % 50) for number in range(20_000)]
    path = written(tmp_path, b"\n".join(lines) + b"\n", ending)
    assert list(read_lines(path)) == lines


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\n\nb\n", [b"a", b"", b"b"]),
        (b"a\r\nb\r\r\n", [b"a", b"b\r"]),
        (b"\xef\xbb\xbfa\nb\n", [b"a", b"b"]),
        (b"a\n\xef\xbb\xbfb\n", [b"a", b"\xef\xbb\xbfb"]),
        (b"\xef\xbb\xbf\na\n", [b"", b"a"]),
        (b"\xef\xbb\xbf", []),
        (b"a\rb\n", [b"a\rb"]),
    ],
)
def test_line_ends_and_byte_order_mark(tmp_path: Path, content: bytes, lines: list[bytes]) -> None:
    assert list(read_lines(written(tmp_path, content))) == lines


@pytest.mark.parametrize("separator", "\v\f\x1c\x1d\x1e\x85\u2028\u2029")
def test_other_separators_stay_inside_a_line(tmp_path: Path, separator: str) -> None:
    text = f"one{separator}two"
    path = written(tmp_path, f"{text}\nthree\n".encode())
    assert [line.decode() for line in read_lines(path)] == [text, "three"]


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line and not line.endswith(b"\r"))))
def test_any_lines_come_back(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    first_is_mark = bool(lines) and lines[0].startswith(b"\xef\xbb\xbf")
    path = written(tmp_path_factory.mktemp("lines"), b"".join(line + b"\n" for line in lines))
    expected = [lines[0][3:], *lines[1:]] if first_is_mark else lines
    assert list(read_lines(path)) == expected


def test_zstandard_frames_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "frames.zst"
    path.write_bytes(zstandard.compress(b"a\nb") + zstandard.compress(b"c\n"))
    assert list(read_lines(path)) == [b"a", b"bc"]


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("kept", [0.3, 0.99])
def test_a_cut_file_is_an_error(tmp_path: Path, ending: str, kept: float) -> None:
    content = "".join(f"{number * 7919 % 10007}\n" for number in range(50_000)).encode()
    path = written(tmp_path, content, ending)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(CorpusError, match="damaged or cut off after line") as caught:
        list(read_lines(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_a_file_with_the_wrong_ending_is_an_error(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"plain{ending}"
    path.write_bytes(b"this is not compressed\n" * 10)
    with pytest.raises(CorpusError, match="ending says how it is compressed"):
        list(read_lines(path))


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"nowhere\.txt: cannot be read: no such file"):
        list(read_lines(tmp_path / "nowhere.txt"))
    with pytest.raises(CorpusError, match="is a directory"):
        list(read_lines(tmp_path))


def test_closing_early_closes_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, b"a\nb\n", ".zst")
    stream = open_decompressed(path)
    assert stream.read(1) == b"a"
    stream.close()
    assert stream.closed


def test_error_names_file_line_value_and_remedy() -> None:
    error = CorpusError("is odd", file="a.txt", line=7, value="x" * 500, remedy="make it even")
    text = str(error)
    assert text.startswith("a.txt:7: is odd\n")
    assert "remedy: make it even" in text
    assert len(text) < 200


@given(st.text(), st.integers(min_value=3, max_value=50))
def test_snippet_is_never_longer_than_its_limit(text: str, limit: int) -> None:
    short = snippet(text, limit)
    assert len(short) <= limit
    assert short == text or (short.endswith("...") and text.startswith(short[:-3]))


SMALL = ReadingLimits(line=2**18, file=2**21, ratio=2.0)


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_a_line_without_end_is_refused_where_it_begins(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path, b"short\n" * 1_000 + b"x" * 3_000_000, ending)
    with pytest.raises(
        CorpusError, match=r"a line of more than 262,144 bytes before byte \d{3},\d{3}\b"
    ) as caught:
        list(read_lines(path, SMALL))
    assert "corpus.limits.line" in str(caught.value)
    path = written(tmp_path, b"x" * 262_144 + b"\n" + b"y" * 262_000 + b"\nz\n", ending)
    assert [len(line) for line in read_lines(path, SMALL)] == [262_144, 262_000, 1]


def test_an_end_of_line_between_two_pieces(tmp_path: Path) -> None:
    for length in range(2**18 - 3, 2**18 + 1):
        path = written(tmp_path, b"x" * length + b"\r\nshort\r\n")
        assert [len(line) for line in read_lines(path)] == [length, 5]


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_a_file_beyond_its_size_is_refused(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path, b"words of a sentence\n" * 200_000, ending)
    with pytest.raises(CorpusError, match=r"goes on after byte 2,097,152") as caught:
        list(read_lines(path, SMALL))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_a_compressed_bomb_takes_little_memory(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an end of line, and with many: what is refused is found in a few buffers."""
    monkeypatch.setattr(text_lines, "_FREE", 2**20)
    for content, words in (
        (b"x" * 24_000_000, "before byte 1,"),
        (b"\n" * 24_000_000, "times its size"),
    ):
        path = written(tmp_path, content, ending)
        tracemalloc.start()
        with pytest.raises(CorpusError, match=words):
            for _ in read_lines(path, ReadingLimits(ratio=2.0)):
                pass
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 18_000_000  # of which xz takes 8 MiB for what it has seen


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(CorpusError, match="pipe or a device"):
            next(read_lines(path))
        with pytest.raises(CorpusError, match="pipe or a device"):
            next(one_table(path, ("a", "b")))
