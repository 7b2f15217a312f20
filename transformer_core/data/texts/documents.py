"""Texts of a corpus as rows: a pair whose source is empty."""

from collections.abc import Iterator
from functools import partial
from itertools import chain, count
from pathlib import Path
from random import Random

from schemas.config.corpus import GrammarTexts, ReadingLimits, Split, TextsCorpus
from transformer_core.data.corpus.corpus_error import CorpusError
from transformer_core.data.corpus.corpus_rows import Invalid, Pair, Row, not_utf8
from transformer_core.data.corpus.line_rows import line_rows, read_object
from transformer_core.data.corpus.table_rows import one_table
from transformer_core.data.corpus.text_lines import read_lines
from transformer_core.data.grammar.stream import generate_chunk


def file_texts(corpus: TextsCorpus, split: Split) -> Iterator[Row]:
    """The texts of a split's file, numbered by the line or row that they begin in."""
    path = Path(getattr(corpus, split))
    names = [suffix.lower() for suffix in path.suffixes]
    if names[-1:] == [".parquet"]:
        fields = (corpus.field, corpus.field)
        return map(_alone, one_table(path, fields, corpus.limits))
    if ".jsonl" in names[-2:]:
        parse = partial(_text_of_object, field=corpus.field)
        return line_rows(path, parse=parse, skip=0, limits=corpus.limits)
    if corpus.ends == "line":
        return line_rows(path, parse=_text_of_line, skip=0, limits=corpus.limits)
    return _between_blank_lines(path, corpus.limits)


def grammar_texts(corpus: GrammarTexts, split: Split) -> Iterator[Row]:
    """Texts of a random number of sentences, one after the other from the generator's stream."""
    # Only random() keeps its sequence over all versions of Python, so nothing else is drawn.
    random = Random(f"{corpus.seed}/{split}/texts").random
    side = ("en", "de").index(corpus.language)
    chunks = (generate_chunk(corpus.seed, split, chunk, corpus.names) for chunk in count())
    sentences = (pair[side] for pair in chain.from_iterable(chunks))
    for number in range(1, getattr(corpus, f"{split}_texts") + 1):
        length = 1 + int(random() * (2 * corpus.sentences - 1))
        yield Pair(number, "", " ".join(next(sentences) for _ in range(length)))


def _alone(row: Row) -> Row:
    """A row of a table that was asked for one column twice."""
    return row._replace(source="") if isinstance(row, Pair) else row


def _text_of_line(line: bytes) -> tuple[str, str]:
    return "", line.decode()


def _text_of_object(line: bytes, field: str) -> tuple[str, str]:
    return "", read_object(line, (field, field))[1]


def _between_blank_lines(path: Path, limits: ReadingLimits) -> Iterator[Row]:
    """Texts of several lines, each ended by a blank one. A text is in memory as a whole: it has a
    limit, as other pieces have."""
    first, size = 1, 0
    lines: list[bytes] = []
    for number, line in enumerate(chain(read_lines(path, limits), [b""]), start=1):
        if line.strip():
            first = first if lines else number
            lines.append(line)
            size += len(line) + 1
            if size > limits.memory:
                message = f"has a text of more than {limits.memory:,} bytes from line {first:,} on"
                remedy = "set corpus.ends: line, or raise corpus.limits.memory"
                raise CorpusError(message, file=path, remedy=remedy)
        elif lines:
            text = b"\n".join(lines)
            try:
                yield Pair(first, "", text.decode())
            except UnicodeDecodeError as error:
                yield Invalid(first, str(path), text.decode(errors="replace"), not_utf8(error))
            lines, size = [], 0
