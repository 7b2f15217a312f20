"""Rows of corpora that are lines: two text files, TSV, JSON Lines."""

import json
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from schemas.config.corpus import ReadingLimits
from transformer_core.data.corpus.corpus_error import CorpusError
from transformer_core.data.corpus.corpus_rows import Invalid, Pair, Row, not_utf8
from transformer_core.data.corpus.text_lines import read_lines

_LIMITS = ReadingLimits()


def text_rows(source: Path, target: Path, limits: ReadingLimits = _LIMITS) -> Iterator[Row]:
    """Rows of two files, aligned line by line; CorpusError if one has more lines."""
    sources, targets = read_lines(source, limits), read_lines(target, limits)
    for number, (left, right) in enumerate(zip_longest(sources, targets), start=1):
        if left is None or right is None:
            raise _unequal(source, target, number, left is None, sources, targets)
        try:
            yield Pair(number, left.decode(), right.decode())
        except UnicodeDecodeError as error:
            file, line = (source, left) if error.object == left else (target, right)
            yield Invalid(number, str(file), line.decode(errors="replace"), not_utf8(error))


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


def line_rows(
    path: Path,
    parse: Callable[[bytes], tuple[str, str]],
    skip: int,
    limits: ReadingLimits = _LIMITS,
) -> Iterator[Row]:
    """Rows of one file with a pair on each line; the first ``skip`` lines are passed over.

    ``parse`` takes a line to its source and target: :func:`split_columns` or :func:`read_object`.
    """
    for number, line in enumerate(read_lines(path, limits), start=1):
        if number <= skip:
            continue
        try:
            yield Pair(number, *parse(line))
        except UnicodeDecodeError as error:
            yield Invalid(number, str(path), line.decode(errors="replace"), not_utf8(error))
        except _InvalidLineError as error:
            yield Invalid(number, str(path), line.decode(errors="replace"), str(error))


def split_columns(line: bytes, columns: tuple[int, int]) -> tuple[str, str]:
    """Source and target of a line of TSV; ``columns`` count from 1."""
    cells = line.split(b"\t")
    if len(cells) < max(columns):
        raise _InvalidLineError(f"has {len(cells)} columns, column {max(columns)} is asked for")
    source, target = (cells[column - 1] for column in columns)
    return source.decode(), target.decode()


def read_object(line: bytes, fields: tuple[str, str]) -> tuple[str, str]:
    """Source and target of a line of JSON; ``a.b`` is field b of the object in field a."""
    text = line.decode()
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
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
