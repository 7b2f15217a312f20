"""Corpora, tokenizers and shards: results/data/."""

from typing import Literal

from schemas.base import Schema
from schemas.config.corpus import Sha256, Split
from schemas.results.common import Bytes, Elapsed, Many


class LengthHistogram(Schema):
    """How many sentences have which length."""

    unit: Literal["characters", "tokens"]
    """What is counted."""
    source: dict[Many, Many]
    """Source sentences by length."""
    target: dict[Many, Many]
    """Target sentences by length."""


class SkippedPair(Schema):
    """One pair that the filter left out, as an example for the report."""

    reason: Literal["empty", "too_long", "invalid"]
    """Which rule left it out."""
    where: str
    """File and line."""
    text: str
    """The beginning of the offending text."""


class CorpusSplit(Schema):
    """results/data/<corpus>/pairs/<split>.json, beside <split>.arrow."""

    corpus: str
    """Name of the corpus."""
    split: Split
    """Which split."""
    files: list[str]
    """The files read, or the generator and its seed."""
    pairs_read: Many
    """Pairs found."""
    pairs_kept: Many
    """Pairs written to <split>.arrow."""
    skipped: dict[Literal["empty", "too_long", "invalid"], Many]
    """Pairs left out, by reason."""
    examples: list[SkippedPair]
    """The first few pairs left out."""
    lengths: LengthHistogram
    """Lengths of the kept sentences in characters."""
    bytes: Bytes
    """Size of <split>.arrow."""
    sha256: Sha256
    """Checksum of <split>.arrow."""


class TokenizerReport(Schema):
    """results/data/<corpus>/tokenizer.report.json."""

    vocabulary: Many
    """Tokens in the vocabulary, special ones included."""
    source: str | None
    """The file that it was made from; null for one that was trained on this corpus."""
    sample_pairs: Many
    """Training pairs that it was trained on, or that it was compared with its source on."""
    different: Many | None
    """Sentences of them that it encodes otherwise than its source; null where it was trained."""
    inexact: Many | None
    """Sentences of them that do not come back exactly from their ids, so that BLEU is computed
    against a little less than the corpus says; null where it was trained: then there are none."""
    seconds: Elapsed
    """Time that the training or the conversion took."""
    sha256: Sha256
    """Checksum of tokenizer.json."""


class Shard(Schema):
    """One Arrow IPC file of a split."""

    file: str
    """Path of the file, from the folder of the manifest."""
    pairs: Many
    """Sentence pairs in it."""
    source_tokens: Many
    """Source tokens in it, without begin and end."""
    target_tokens: Many
    """Target tokens in it, without begin and end."""
    bytes: Bytes
    """Size of the file."""
    sha256: Sha256
    """Checksum of the file."""
    xxh3: str = ""
    """XXH3 of the file, 128 bit, which every job compares that reads it; empty in shards from
    earlier times."""


class TextRows(Schema):
    """What the rows of a language model's split are made of."""

    context: Many
    """Tokens of a row."""
    texts: Many
    """Texts in all rows."""
    bytes: Bytes
    """Their size in UTF-8, by which bits per byte are counted."""


class ShardManifest(Schema):
    """results/data/<corpus>/shards/<split>/manifest.json, written last: it validates the shards.

    A part of a split that several jobs tokenize has one of its own, in part-<n>/.
    """

    corpus: str
    """Name of the corpus."""
    split: Split
    """Which split."""
    pairs: Many
    """Sentence pairs in all shards."""
    source_tokens: Many
    """Source tokens in all shards, without begin and end."""
    target_tokens: Many
    """Target tokens in all shards, without begin and end."""
    skipped_too_long: Many
    """Pairs left out because of max_tokens."""
    examples: list[SkippedPair]
    """The first few pairs left out."""
    id_type: Literal["uint8", "uint16", "uint32"]
    """Smallest integer type that holds the vocabulary."""
    vocabulary: Many
    """Size of the vocabulary, in tokens."""
    tokenizer_sha256: Sha256
    """Checksum of the tokenizer.json that encoded them."""
    lengths: LengthHistogram
    """Lengths of the kept sentences in tokens, without begin and end."""
    seconds: Elapsed
    """Time that tokenizing and writing took."""
    shards: list[Shard]
    """The files, in the order of the corpus."""
    texts: TextRows | None = None
    """Of a language model, whose pairs are rows of texts: their sources are empty, and ends stand
    among their target tokens. Null for sentence pairs."""


class ShardProgress(Schema):
    """progress.json beside the shards of a job that has not ended: a killed one goes on from it."""

    work: Sha256
    """What is being done: checksum of input, settings and code. Other work begins anew."""
    next_pair: Many
    """The first pair of the split that no finished shard holds or leaves out."""
    manifest: ShardManifest
    """The manifest as far as it is known."""


class CheckedSplit(Schema):
    """A split whose shards are all as they were written."""

    manifest: str
    """Path of its manifest."""
    split: Split
    """Which split."""
    pairs: Many
    """Sentence pairs in it."""
    shards: Many
    """Files that were read."""
    bytes: Bytes
    """Their size."""


class DataCheck(Schema):
    """results/data/<corpus>/verify.json: that every shard was read and has its checksum."""

    splits: list[CheckedSplit]
    """The splits of the corpus."""
    seconds: Elapsed
    """Time that it took."""
