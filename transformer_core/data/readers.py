"""Readers of corpora: every kind becomes the same stream of numbered sentence pairs."""

import gc
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.data import (
    AnyCorpus,
    DatasetsCorpus,
    GrammarCorpus,
    JsonlCorpus,
    ParquetCorpus,
    RemoteFile,
    Split,
    TextCorpus,
    TsvCorpus,
    UrlCorpus,
)
from schemas.errors import nearest
from transformer_core.data import download, grammar
from transformer_core.data.files import CorpusError, read_lines, unreadable
from transformer_core.data.in_order import in_order

_ROWS = 10_000


class Pair(NamedTuple):
    """A sentence pair as it stands in the corpus."""

    line: int
    source: str
    target: str


class Invalid(NamedTuple):
    """A line that holds no sentence pair."""

    line: int
    file: str
    text: str
    message: str


Row = Pair | Invalid


@dataclass(frozen=True)
class Reader:
    """One split of a corpus. ``rows()`` streams it from the beginning, line numbers from 1.

    ``rows`` raises CorpusError for a file that is missing, damaged, or has another number of lines
    than its partner; what is wrong with a single line is an :class:`Invalid` row.
    """

    files: list[str]
    """The files as the study names them, or the generator and its seed."""
    source_file: str
    """Where the source sentences are."""
    target_file: str
    """Where the target sentences are."""
    rows: Callable[[], Iterator[Row]]
    total: int | None = None
    """Number of rows, where it is known beforehand."""


def open_split(
    corpus: AnyCorpus, split: Split, downloads: Path | None = None, processes: int = 1
) -> Reader:
    """The reader of one split; ``downloads`` is the cache folder of url corpora, ``processes`` how
    many generate a corpus that is not read.

    Raises CorpusError if a remote file cannot be had.
    """
    match corpus:
        case GrammarCorpus():
            return _grammar(corpus, split, processes)
        case TextCorpus():
            pair = getattr(corpus, split)
            return _text(Path(pair.source), Path(pair.target), [pair.source, pair.target])
        case UrlCorpus():
            remote = getattr(corpus, split)
            return _text(
                _local(corpus, remote.source, downloads),
                _local(corpus, remote.target, downloads),
                [remote.source.url, remote.target.url],
            )
        case ParquetCorpus():
            fields = corpus.source_field, corpus.target_field
            return _one_file(getattr(corpus, split), partial(_one_table, fields=fields))
        case DatasetsCorpus():
            fields = corpus.source_field, corpus.target_field
            return _datasets(Path(corpus.folder), getattr(corpus, split), fields)
        case TsvCorpus():
            columns = corpus.source_column, corpus.target_column
            tsv = partial(_split_columns, columns=columns)
            skip = 1 if corpus.header else 0
            return _one_file(getattr(corpus, split), partial(_line_rows, parse=tsv, skip=skip))
        case JsonlCorpus():
            fields = corpus.source_field, corpus.target_field
            jsonl = partial(_read_object, fields=fields)
            return _one_file(getattr(corpus, split), partial(_line_rows, parse=jsonl, skip=0))


def _grammar(corpus: GrammarCorpus, split: Split, processes: int) -> Reader:
    count = getattr(corpus, f"{split}_pairs")
    name = f"grammar (seed {corpus.seed})"

    def rows() -> Iterator[Row]:
        made = chain.from_iterable(_grammar_chunks(corpus.seed, split, count, processes))
        return (Pair(line, *pair) for line, pair in enumerate(islice(made, count), start=1))

    return Reader([name], name, name, rows, count)


def _grammar_chunks(
    seed: int, split: Split, count: int, processes: int
) -> Iterator[list[tuple[str, str]]]:
    make = partial(grammar.generate_chunk, seed, split)
    chunks = range(-(-count // grammar.CHUNK))
    if processes == 1 or len(chunks) < processes:
        yield from map(make, chunks)
        return
    # Not forked: Arrow may have started threads.
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=gc.disable) as workers:
        yield from in_order(workers, make, chunks, 4 * processes)


def _text(source: Path, target: Path, names: list[str]) -> Reader:
    return Reader(names, str(source), str(target), partial(_text_rows, source, target))


def _one_file(name: str, rows: Callable[[Path], Iterator[Row]]) -> Reader:
    return Reader([name], name, name, partial(rows, Path(name)))


def _local(corpus: UrlCorpus, file: RemoteFile, downloads: Path | None) -> Path:
    if corpus.folder is not None:
        return download.find(file, Path(corpus.folder))
    if downloads is None:
        raise CorpusError(
            "has to be downloaded, but no folder for downloads is given",
            file=file.url,
            remedy="give --downloads, or set corpus.folder to a folder that holds the files",
        )
    return download.fetch(file, downloads, retries=corpus.retries, timeout=corpus.timeout)


def _text_rows(source: Path, target: Path) -> Iterator[Row]:
    """Two files, aligned line by line."""
    sources, targets = read_lines(source), read_lines(target)
    for number, (left, right) in enumerate(zip_longest(sources, targets), start=1):
        if left is None or right is None:
            raise _unequal(source, target, number, left is None, sources, targets)
        try:
            yield Pair(number, left.decode(), right.decode())
        except UnicodeDecodeError as error:
            file, line = (source, left) if error.object == left else (target, right)
            yield Invalid(number, str(file), line.decode(errors="replace"), _not_utf8(error))


def _unequal(
    source: Path,
    target: Path,
    number: int,
    source_ended: bool,
    sources: Iterator[bytes],
    targets: Iterator[bytes],
) -> CorpusError:
    rest = number + sum(1 for _ in (targets if source_ended else sources))
    source_count, target_count = (number - 1, rest) if source_ended else (rest, number - 1)
    return CorpusError(
        f"has {source_count:,} lines, but {target} has {target_count:,}: "
        "which sentence translates which cannot be known",
        file=source,
        remedy="take the two files from the same release of the corpus; "
        "lines end at a line feed only",
    )


class _InvalidLineError(ValueError):
    """What is wrong with a line."""


def _line_rows(path: Path, parse: Callable[[bytes], tuple[str, str]], skip: int) -> Iterator[Row]:
    """One file with a pair on each line; the first ``skip`` lines are passed over."""
    for number, line in enumerate(read_lines(path), start=1):
        if number <= skip:
            continue
        try:
            yield Pair(number, *parse(line))
        except UnicodeDecodeError as error:
            yield Invalid(number, str(path), line.decode(errors="replace"), _not_utf8(error))
        except _InvalidLineError as error:
            yield Invalid(number, str(path), line.decode(errors="replace"), str(error))


def _split_columns(line: bytes, columns: tuple[int, int]) -> tuple[str, str]:
    cells = line.split(b"\t")
    if len(cells) < max(columns):
        raise _InvalidLineError(f"has {len(cells)} columns, column {max(columns)} is asked for")
    source, target = (cells[column - 1] for column in columns)
    return source.decode(), target.decode()


def _read_object(line: bytes, fields: tuple[str, str]) -> tuple[str, str]:
    text = line.decode()
    try:
        record = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise _InvalidLineError(f"is not JSON ({error})") from error
    source, target = (_text_at(record, field) for field in fields)
    return source, target


def _text_at(record: Any, field: str) -> str:
    node = record
    if not (isinstance(record, dict) and field in record):
        for part in field.split("."):
            if not isinstance(node, dict) or part not in node:
                raise _InvalidLineError(f"has no field {field}")
            node = node[part]
    else:
        node = record[field]
    if not isinstance(node, str):
        raise _InvalidLineError(f"field {field} is {type(node).__name__}, not text")
    if not node.isascii():
        try:
            node.encode()
        except UnicodeEncodeError as error:
            message = f"field {field} holds half of a surrogate pair"
            raise _InvalidLineError(message) from error
    return node


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
"""Where the library datasets puts the files of a split, the likeliest first."""


def _datasets(folder: Path, split: str, fields: tuple[str, str]) -> Reader:
    """The files of a split, in the order of their names, with the rows numbered through."""
    found = next(filter(None, (sorted(folder.glob(p.format(split))) for p in _LAYOUTS)), [])
    if not found:
        raise CorpusError(
            f"holds no Arrow or Parquet files of a split {split}",
            file=folder,
            remedy=f"check corpus.folder and the names of the splits ({_splits(folder)})",
        )
    name = f"{folder}, split {split}"
    rows = partial(_table_rows, found, name, fields)
    return Reader([str(path) for path in found], name, name, rows)


def _splits(folder: Path) -> str:
    """What could be names of splits, for people."""
    files = [*folder.glob("*.parquet"), *folder.glob("*.arrow"), *folder.glob("data/*.parquet")]
    names = {path.stem.partition("-")[0] for path in files}
    names |= {path.name for path in folder.glob("*") if any(path.glob("*.arrow"))}
    return f"there are {', '.join(sorted(names))}" if names else "there are none"


def _one_table(path: Path, fields: tuple[str, str]) -> Iterator[Row]:
    return _table_rows([path], str(path), fields)


def _table_rows(paths: list[Path], name: str, fields: tuple[str, str]) -> Iterator[Row]:
    """Two columns of Parquet or Arrow files, as bytes, so that one bad row does not end it all."""
    number = 0
    for path in paths:
        try:
            for batch in _batches(path, fields):
                columns = [_column(batch, field) for field in fields]
                for pair in zip(*columns, strict=True):
                    number += 1
                    yield _table_row(number, name, pair, fields)
        except pa.ArrowException as error:
            kind = "Arrow" if path.suffix == ".arrow" else "Parquet"
            message = f"is no {kind} file, or damaged after row {number} ({error})"
            raise CorpusError(message, file=path, remedy="get the file again") from error
        except OSError as error:
            raise unreadable(path, error) from error


def _batches(path: Path, fields: tuple[str, str]) -> Iterator[pa.RecordBatch]:
    if path.suffix == ".arrow":
        yield from _arrow_batches(path, fields)
        return
    with pq.ParquetFile(path) as file:
        for field in fields:
            _check_column(path, file.schema_arrow, field)
        yield from file.iter_batches(_ROWS, columns=list(dict.fromkeys(fields)))


def _arrow_batches(path: Path, fields: tuple[str, str]) -> Iterator[pa.RecordBatch]:
    """Of an Arrow stream, which the library datasets writes, or of an Arrow file."""
    with pa.OSFile(str(path)) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file:
            reader = pa.ipc.open_file(source)
            batches = (reader.get_batch(n) for n in range(reader.num_record_batches))
        else:
            batches = reader = pa.ipc.open_stream(source)
        for field in fields:
            _check_column(path, reader.schema, field)
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS):
                yield batch.slice(start, _ROWS)


def _table_row(
    number: int, file: str, pair: tuple[bytes | None, bytes | None], fields: tuple[str, str]
) -> Row:
    texts = []
    for value, field in zip(pair, fields, strict=True):
        if value is None:
            return Invalid(number, file, "", f"column {field} is null")
        try:
            texts.append(value.decode())
        except UnicodeDecodeError as error:
            return Invalid(number, file, value.decode(errors="replace"), _not_utf8(error))
    return Pair(number, *texts)


def _check_column(path: Path, schema: pa.Schema, field: str) -> None:
    """CorpusError unless ``field`` is a text column of ``schema``."""
    kind = pa.struct(list(schema))
    for part in _column_path(schema, field):
        names = [child.name for child in kind] if pa.types.is_struct(kind) else []
        if part not in names:
            remedy = f"{nearest(part, names)} (corpus.source_field, corpus.target_field)"
            raise CorpusError(f"has no column {field}", file=path, remedy=remedy)
        kind = kind.field(part).type
    text = kind.value_type if pa.types.is_dictionary(kind) else kind
    if str(text) not in ("string", "large_string", "string_view"):
        raise CorpusError(
            f"column {field} is {kind}, not text", file=path, remedy="name a column of strings"
        )


def _column(batch: pa.RecordBatch, field: str) -> list[bytes | None]:
    first, *rest = _column_path(batch.schema, field)
    values = batch.column(first)
    if rest:
        values = pc.struct_field(values, rest)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(pa.large_string(), safe=False).cast(pa.large_binary()).to_pylist()


def _column_path(schema: pa.Schema, field: str) -> list[str]:
    return [field] if field in schema.names else field.split(".")


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"is not UTF-8 (byte {error.start + 1} of the text: {error.reason})"
