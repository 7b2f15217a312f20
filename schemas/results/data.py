"""Corpora, tokenizers and shards: results/data/."""

from typing import Literal

from schemas.base import Schema
from schemas.config.data import Sha256, Split
from schemas.results.common import Bytes, Elapsed, Many


class LengthHistogram(Schema):
    """Number of sentences by length."""

    unit: Literal["characters", "tokens"]
    """Unit of length."""
    source: dict[Many, Many]
    """Source sentences by length."""
    target: dict[Many, Many]
    """Target sentences by length."""


class SkippedPair(Schema):
    """One pair rejected by the filter, as an example for the report."""

    reason: Literal["empty", "too_long", "invalid"]
    """The rule that rejected it."""
    where: str
    """File and line."""
    text: str
    """The beginning of the offending text."""


class CorpusSplit(Schema):
    """results/data/<corpus>/pairs/<split>.json, beside <split>.arrow."""

    corpus: str
    """Name of the corpus."""
    split: Split
    """Name of the split."""
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
    """The file it was made from; null if it was trained on this corpus."""
    sample_pairs: Many
    """Number of training pairs it was trained on, or on which it was compared with its source."""
    different: Many | None
    """Number of these sentences that it encodes differently from its source; null if it was
    trained."""
    inexact: Many | None
    """Number of these sentences that cannot be restored exactly from their ids, so that BLEU
    uses slightly altered references; null if it was trained, since there are none."""
    seconds: Elapsed
    """Time that training or conversion took."""
    sha256: Sha256
    """Checksum of tokenizer.json."""


class Shard(Schema):
    """One Arrow IPC file of a split."""

    file: str
    """Path of the file, relative to the manifest's folder."""
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
    """128-bit XXH3 of the file, verified by every job that reads it; empty in older shards."""


class TextRows(Schema):
    """Contents of the rows of a language model's split."""

    context: Many
    """Tokens of a row."""
    texts: Many
    """Texts in all rows."""
    bytes: Bytes
    """UTF-8 size of the texts, used to compute bits per byte."""


class ShardManifest(Schema):
    """results/data/<corpus>/shards/<split>/manifest.json, written last: it validates the shards.

    If several jobs tokenize a split, each part has its own manifest, in part-<n>/.
    """

    corpus: str
    """Name of the corpus."""
    split: Split
    """Name of the split."""
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
    """Smallest integer type that fits the vocabulary."""
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
    """Set for a language model, whose pairs are rows of texts: their sources are empty, and
    their target tokens include end tokens. Null for sentence pairs."""


class ShardProgress(Schema):
    """progress.json beside the shards of an unfinished job: a killed job resumes from it."""

    work: Sha256
    """Checksum of input, settings and code. Different work starts over."""
    next_pair: Many
    """The first pair of the split not yet stored or left out by a finished shard."""
    manifest: ShardManifest
    """The manifest so far."""


class CheckedSplit(Schema):
    """A split whose shards are all intact."""

    manifest: str
    """Path of its manifest."""
    split: Split
    """Which split."""
    pairs: Many
    """Sentence pairs in it."""
    shards: Many
    """Files read."""
    bytes: Bytes
    """Size of the files."""


class DataCheck(Schema):
    """results/data/<corpus>/verify.json: confirms that every shard was read and matches its
    checksum."""

    splits: list[CheckedSplit]
    """The splits of the corpus."""
    seconds: Elapsed
    """Time that the check took."""
