"""Readers that turn every kind of corpus into the same stream of numbered sentence pairs."""

import gc
import glob
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from random import Random

import pyarrow as pa

from schemas.config.data import (
    AnyCorpus,
    DatasetsCorpus,
    GrammarCorpus,
    GrammarTexts,
    JsonlCorpus,
    ParquetCorpus,
    ReadingLimits,
    RemoteFile,
    Split,
    TextCorpus,
    TextsCorpus,
    TsvCorpus,
    UrlCorpus,
)
from transformer_core.common.pools import end_with_maker
from transformer_core.data.arrays import in_order
from transformer_core.data.corpus import download
from transformer_core.data.corpus.lines import (
    line_rows,
    read_lines,
    read_object,
    split_columns,
    text_rows,
    unreadable,
)
from transformer_core.data.corpus.rows import CorpusError, Invalid, Pair, Row, not_utf8
from transformer_core.data.corpus.tables import one_table, table_rows
from transformer_core.data.grammar.stream import generate


@dataclass(frozen=True)
class Reader:
    """One split of a corpus. ``rows()`` streams it from the beginning, line numbers from 1.

    ``rows`` raises CorpusError for a file that is missing, damaged, or has a different number of
    lines from its partner; a single bad line becomes an :class:`Invalid` row.
    """

    files: list[str]  # the files as the study names them, or the generator and its seed
    source_file: str  # the file that holds the source sentences
    target_file: str  # the file that holds the target sentences
    rows: Callable[[], Iterator[Row]]
    total: int | None = None  # number of rows, if known in advance
    paired: bool = True  # whether a row is a pair; otherwise it is a text with an empty source
    columns: Callable[[int], Iterator[pa.RecordBatch]] | None = None
    """Yields the same rows faster, as columns source and target with at most the given number of
    rows at a time; only for corpora in which every row is a pair."""


def open_split(
    corpus: AnyCorpus, split: Split, downloads: Path | None = None, processes: int = 1
) -> Reader:
    """Opens one split. ``downloads`` is the cache folder of url corpora; ``processes`` of them
    generate a grammar corpus.

    Raises CorpusError if a remote file cannot be downloaded.
    """
    match corpus:
        case GrammarCorpus():
            return _grammar(corpus, split, processes)
        case GrammarTexts():
            name, total = f"grammar (seed {corpus.seed})", getattr(corpus, f"{split}_texts")
            texts = partial(_grammar_texts, corpus, split)
            return Reader([name], name, name, texts, total, paired=False)
        case TextsCorpus():
            return _one_file(getattr(corpus, split), partial(_file_texts, corpus), paired=False)
        case TextCorpus() | UrlCorpus():
            pair = getattr(corpus, split)
            files = names = [pair.source, pair.target]
            if isinstance(corpus, UrlCorpus):
                names = [download.shown(file.url) for file in files]
                files = [_local(corpus, file, downloads) for file in files]
            source, target = map(Path, files)
            rows = partial(text_rows, source, target, corpus.limits)
            return Reader(names, str(source), str(target), rows)
        case TsvCorpus():
            parse = partial(split_columns, columns=(corpus.source_column, corpus.target_column))
            rows = partial(line_rows, parse=parse, skip=int(corpus.header), limits=corpus.limits)
            return _one_file(getattr(corpus, split), rows)
    fields = corpus.source_field, corpus.target_field
    match corpus:
        case DatasetsCorpus():
            return _datasets(Path(corpus.folder), getattr(corpus, split), fields, corpus.limits)
        case ParquetCorpus():
            rows = partial(one_table, fields=fields, limits=corpus.limits)
        case JsonlCorpus():
            parse = partial(read_object, fields=fields)
            rows = partial(line_rows, parse=parse, skip=0, limits=corpus.limits)
    return _one_file(getattr(corpus, split), rows)


def _grammar(corpus: GrammarCorpus, split: Split, processes: int) -> Reader:
    count = getattr(corpus, f"{split}_pairs")
    name = f"grammar (seed {corpus.seed})"

    def rows() -> Iterator[Row]:
        made = generate(corpus.seed, split, range(count), corpus.names)
        return (Pair(line, *pair) for line, pair in enumerate(made, start=1))

    columns = partial(_grammar_columns, corpus, split, count, processes)
    return Reader([name], name, name, rows, count, columns=columns)


def _grammar_columns(
    corpus: GrammarCorpus, split: Split, count: int, processes: int, size: int
) -> Iterator[pa.RecordBatch]:
    make = partial(_generated, corpus, split)
    batches = [range(start, min(start + size, count)) for start in range(0, count, size)]
    if processes == 1 or len(batches) < processes:
        yield from map(make, batches)
        return
    # Forking is unsafe, since Arrow may have started threads.
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_begin) as workers:
        yield from in_order(workers, make, batches, 4 * processes)


def _begin() -> None:
    """In a process that generates pairs."""
    gc.disable()
    end_with_maker()


def _generated(corpus: GrammarCorpus, split: Split, numbers: range) -> pa.RecordBatch:
    """Generates the pairs with these ``numbers``, from 0."""
    sides = zip(*generate(corpus.seed, split, numbers, corpus.names), strict=True)
    texts = [pa.array(side, pa.large_string()) for side in sides]
    return pa.record_batch(texts, names=["source", "target"])


def _one_file(name: str, rows: Callable[[Path], Iterator[Row]], paired: bool = True) -> Reader:
    return Reader([name], name, name, partial(rows, Path(name)), paired=paired)


def _local(corpus: UrlCorpus, file: RemoteFile, downloads: Path | None) -> Path:
    if corpus.folder is not None:
        return download.find(file, Path(corpus.folder))
    if downloads is None:
        raise CorpusError(
            "must be downloaded, but the order names no folder for downloads",
            file=download.shown(file.url),
            remedy="set corpus.folder to a folder that holds the files",
        )
    return download.fetch(
        file, downloads, retries=corpus.retries, timeout=corpus.timeout, most=corpus.limits.download
    )


_LAYOUTS = (
    "{}/data-*.arrow",
    "{}/*.arrow",
    "{}/*.parquet",
    "{}-*.parquet",
    "{}.parquet",
    "data/{}-*.parquet",
    "{}-*.arrow",
    "{}.arrow",
)
"""Where the library datasets stores the files of a split, most likely places first."""


def _datasets(folder: Path, split: str, fields: tuple[str, str], limits: ReadingLimits) -> Reader:
    """Reads the files of a split in the order of their names, with rows numbered consecutively."""
    patterns = [layout.format(glob.escape(split)) for layout in _LAYOUTS]
    try:
        folder.stat()  # from Python 3.13 on, glob() ignores errors
        found = next(filter(None, (sorted(folder.glob(each)) for each in patterns)), [])
    except OSError as error:
        raise unreadable(folder, error) from error
    except (ValueError, NotImplementedError):  # the split is not a relative path
        found = []
    if not found:
        raise CorpusError(
            f"has no Arrow or Parquet files of a split {split}",
            file=folder,
            remedy=f"check corpus.folder and the names of the splits ({_splits(folder)})",
        )
    name = f"{folder}, split {split}"
    rows = partial(table_rows, found, name, fields, limits)
    return Reader([str(path) for path in found], name, name, rows)


def _splits(folder: Path) -> str:
    """Lists the likely names of splits, for an error message."""
    files = [*folder.glob("*.parquet"), *folder.glob("*.arrow"), *folder.glob("data/*.parquet")]
    names = {path.stem.partition("-")[0] for path in files}
    inner = [*folder.glob("*/*.arrow"), *folder.glob("*/*.parquet")]
    names |= {path.parent.name for path in inner} - {"data"}
    return f"there are {', '.join(sorted(names))}" if names else "there are none"


def _file_texts(corpus: TextsCorpus, path: Path) -> Iterator[Row]:
    """Yields the texts of a file, numbered by the line or row in which they begin."""
    names = [suffix.lower() for suffix in path.suffixes]
    if names[-1:] == [".parquet"]:
        return one_table(path, (corpus.field,), corpus.limits)
    if ".jsonl" in names[-2:]:
        parse = partial(read_object, fields=(corpus.field,))
        return line_rows(path, lambda line: ("", *parse(line)), 0, corpus.limits)
    if corpus.ends == "line":
        return line_rows(path, lambda line: ("", line.decode()), 0, corpus.limits)
    return _between_blank_lines(path, corpus.limits)


def _grammar_texts(corpus: GrammarTexts, split: Split) -> Iterator[Row]:
    """Yields texts of a random number of consecutive sentences of the generator."""
    # Only random() gives the same sequence in all versions of Python, so we call nothing else.
    random = Random(f"{corpus.seed}/{split}/texts").random
    side = ("en", "de").index(corpus.language)
    pairs = generate(corpus.seed, split, range(sys.maxsize), corpus.names)
    sentences = (pair[side] for pair in pairs)
    for number in range(1, getattr(corpus, f"{split}_texts") + 1):
        length = 1 + int(random() * (2 * corpus.sentences - 1))
        yield Pair(number, "", " ".join(next(sentences) for _ in range(length)))


def _between_blank_lines(path: Path, limits: ReadingLimits) -> Iterator[Row]:
    """Yields texts of several lines, separated by blank lines. A whole text is in memory at a time,
    so the limit of a line applies to it."""
    first, size = 1, 0
    lines: list[bytes] = []
    for number, line in enumerate(chain(read_lines(path, limits), [b""]), start=1):
        if line.strip():
            first = first if lines else number
            lines.append(line)
            size += len(line) + 1
            if size > limits.line:
                message = f"has a text of more than {limits.line:,} bytes from line {first:,}"
                remedy = "set corpus.ends: line, or raise corpus.limits.line"
                raise CorpusError(message, file=path, remedy=remedy)
        elif lines:
            text = b"\n".join(lines)
            try:
                yield Pair(first, "", text.decode())
            except UnicodeDecodeError as error:
                yield Invalid(first, str(path), text.decode(errors="replace"), not_utf8(error))
            lines, size = [], 0
