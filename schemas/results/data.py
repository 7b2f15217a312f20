"""Corpora, tokenizers and shards: results/data/."""

from typing import Literal

from schemas.base import Schema
from schemas.config.data import Sha256, Split
from schemas.results.common import Bytes, Elapsed, Many


class LengthHistogram(Schema):
    """Number of sentences by length."""

    unit: Literal["characters", "tokens"]  # unit of length
    source: dict[Many, Many]  # source sentences by length
    target: dict[Many, Many]  # target sentences by length


class SkippedPair(Schema):
    """One pair rejected by the filter, as an example for the report."""

    reason: Literal["empty", "too_long", "invalid"]  # the rule that rejected it
    where: str  # file and line
    text: str  # the beginning of the offending text


class CorpusSplit(Schema):
    """results/data/<corpus>/pairs/<split>.json, beside <split>.arrow."""

    corpus: str  # name of the corpus
    split: Split  # name of the split
    files: list[str]  # the files read, or the generator and its seed
    pairs_read: Many  # pairs found
    pairs_kept: Many  # pairs written to <split>.arrow
    skipped: dict[Literal["empty", "too_long", "invalid"], Many]  # pairs left out, by reason
    examples: list[SkippedPair]  # the first few pairs left out
    lengths: LengthHistogram  # lengths of the kept sentences in characters
    bytes: Bytes  # size of <split>.arrow
    sha256: Sha256  # checksum of <split>.arrow


class TokenizerReport(Schema):
    """results/data/<corpus>/tokenizer.report.json."""

    vocabulary: Many  # tokens in the vocabulary, special ones included
    source: str | None  # the file it was made from; null if it was trained on this corpus
    sample_pairs: Many  # training pairs it was trained on, or compared on
    different: Many | None  # sentences encoded differently from its source
    inexact: Many | None  # sentences that cannot be restored exactly from their ids
    seconds: Elapsed  # time that training or conversion took
    sha256: Sha256  # checksum of tokenizer.json


class Shard(Schema):
    """One Arrow IPC file of a split."""

    file: str  # path of the file, relative to the manifest's folder
    pairs: Many  # sentence pairs in it
    source_tokens: Many  # source tokens in it, without begin and end
    target_tokens: Many  # target tokens in it, without begin and end
    bytes: Bytes  # size of the file
    sha256: Sha256  # checksum of the file
    xxh3: str = ""  # 128-bit XXH3 of the file, verified by every reader; empty in older shards


class TextRows(Schema):
    """Contents of the rows of a language model's split."""

    context: Many  # tokens of a row
    texts: Many  # texts in all rows
    bytes: Bytes  # UTF-8 size of the texts, used to compute bits per byte


class ShardManifest(Schema):
    """results/data/<corpus>/shards/<split>/manifest.json, written last: it validates the shards.

    If several jobs tokenize a split, each part has its own manifest, in part-<n>/.
    """

    corpus: str  # name of the corpus
    split: Split  # name of the split
    pairs: Many  # sentence pairs in all shards
    source_tokens: Many  # source tokens in all shards, without begin and end
    target_tokens: Many  # target tokens in all shards, without begin and end
    skipped_too_long: Many  # pairs left out because of max_tokens
    examples: list[SkippedPair]  # the first few pairs left out
    id_type: Literal["uint8", "uint16", "uint32"]  # smallest integer type that fits the vocabulary
    vocabulary: Many  # size of the vocabulary, in tokens
    tokenizer_sha256: Sha256  # checksum of the tokenizer.json that encoded them
    lengths: LengthHistogram  # lengths of the kept sentences in tokens, without begin and end
    seconds: Elapsed  # time that tokenizing and writing took
    shards: list[Shard]  # the files, in the order of the corpus
    texts: TextRows | None = None  # for a language model, whose pairs are rows of texts


class ShardProgress(Schema):
    """progress.json next to the shards of an unfinished job: a killed job resumes from it."""

    work: Sha256  # checksum of input, settings and code. Different work starts over.
    next_pair: Many  # the first pair of the split not yet stored or left out by a finished shard
    manifest: ShardManifest  # the manifest so far


class CheckedSplit(Schema):
    """A split whose shards are all intact."""

    manifest: str  # path of its manifest
    split: Split  # which split
    pairs: Many  # sentence pairs in it
    shards: Many  # files read
    bytes: Bytes  # size of the files


class DataCheck(Schema):
    """results/data/<corpus>/verify.json: confirms that every shard was read and matches its
    checksum."""

    splits: list[CheckedSplit]  # the splits of the corpus
    seconds: Elapsed  # time that the check took
