"""Corpora, filters, tokenizer and batching: what ``transformer_core.data`` works from."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from schemas.base import Count, Name, Schema

SPLITS = ("train", "validation", "test")
Split = Literal["train", "validation", "test"]
Problem = Literal["error", "skip"]
SHA256_PATTERN = r"^[0-9a-f]{64}$"
URL_PATTERN = r"^https?://"
Sha256 = Annotated[str, StringConstraints(pattern=SHA256_PATTERN)]


class Corpus(Schema):
    """What every kind of corpus has."""

    name: Name
    """Name of the corpus: its folder below results/data."""
    source_language: str = Field(default="en", min_length=1)
    """Language translated from, as an ISO 639-1 code."""
    target_language: str = Field(default="de", min_length=1)
    """Language translated into, as an ISO 639-1 code."""


class GrammarCorpus(Corpus):
    """The embedded English-German generator: any number of pairs, from a seed."""

    kind: Literal["grammar"] = "grammar"
    name: Name = "grammar"
    """Name of the corpus: its folder below results/data."""
    train_pairs: Count = 20_000
    """Sentence pairs to train on."""
    validation_pairs: Count = 500
    """Sentence pairs for the validation loss."""
    test_pairs: Count = 500
    """Sentence pairs for BLEU."""
    seed: int = Field(default=1, ge=0)
    """Seed of the generator."""


class TextPair(Schema):
    """Two files that are aligned line by line."""

    source: str = Field(min_length=1)
    """Path of the source sentences, one per line; plain, .gz, .xz or .zst."""
    target: str = Field(min_length=1)
    """Path of the target sentences, one per line; plain, .gz, .xz or .zst."""


class TextCorpus(Corpus):
    """One sentence per line, two files per split."""

    kind: Literal["text"]
    train: TextPair
    """Files to train on."""
    validation: TextPair
    """Files for the validation loss."""
    test: TextPair
    """Files for BLEU."""


class OneFileCorpus(Corpus):
    """A corpus with both sentences of a pair in one file per split."""

    train: str = Field(min_length=1)
    """Path of the file to train on."""
    validation: str = Field(min_length=1)
    """Path of the file for the validation loss."""
    test: str = Field(min_length=1)
    """Path of the file for BLEU."""


class TsvCorpus(OneFileCorpus):
    """Tab-separated values without quoting; plain, .gz, .xz or .zst."""

    kind: Literal["tsv"]
    source_column: int = Field(default=1, ge=1)
    """Column of the source sentence, counted from 1."""
    target_column: int = Field(default=2, ge=1)
    """Column of the target sentence, counted from 1."""
    header: bool = False
    """Whether the first line holds column names."""


class JsonlCorpus(OneFileCorpus):
    """One JSON object per line; plain, .gz, .xz or .zst."""

    kind: Literal["jsonl"]
    source_field: str = Field(default="source", min_length=1)
    """Key of the source sentence; dots reach into nested objects (translation.en)."""
    target_field: str = Field(default="target", min_length=1)
    """Key of the target sentence; dots reach into nested objects (translation.de)."""


class ParquetCorpus(OneFileCorpus):
    """Parquet files with two text columns."""

    kind: Literal["parquet"]
    source_field: str = Field(default="source", min_length=1)
    """Column of the source sentence; dots reach into struct columns (translation.en)."""
    target_field: str = Field(default="target", min_length=1)
    """Column of the target sentence; dots reach into struct columns (translation.de)."""


class DatasetsCorpus(Corpus):
    """A folder of the library datasets: written by save_to_disk, or with Parquet or Arrow files for
    each split, as on the Hugging Face Hub."""

    kind: Literal["datasets"]
    folder: str = Field(min_length=1)
    """Path of the folder."""
    train: str = Field(default="train", min_length=1)
    """Name of the split to train on."""
    validation: str = Field(default="validation", min_length=1)
    """Name of the split for the validation loss."""
    test: str = Field(default="test", min_length=1)
    """Name of the split for BLEU."""
    source_field: str = Field(default="source", min_length=1)
    """Column of the source sentence; dots reach into struct columns (translation.en)."""
    target_field: str = Field(default="target", min_length=1)
    """Column of the target sentence; dots reach into struct columns (translation.de)."""


class RemoteFile(Schema):
    """A file on the web and the checksum it must have."""

    url: str = Field(pattern=URL_PATTERN)
    """Address of the file; the end of its path says how it is compressed."""
    sha256: Sha256
    """SHA-256 of the file as downloaded."""


class RemotePair(Schema):
    """Two remote files that are aligned line by line."""

    source: RemoteFile
    """The source sentences, one per line."""
    target: RemoteFile
    """The target sentences, one per line."""


class UrlCorpus(Corpus):
    """Text files that are downloaded once and checked."""

    kind: Literal["url"]
    train: RemotePair
    """Files to train on."""
    validation: RemotePair
    """Files for the validation loss."""
    test: RemotePair
    """Files for BLEU."""
    folder: str | None = None
    """A local folder that holds the same file names (checked alike): nothing is downloaded."""
    retries: int = Field(default=5, ge=0)
    """How often a broken download is taken up again."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds without a byte after which a download counts as broken."""


AnyCorpus = Annotated[
    GrammarCorpus
    | TextCorpus
    | TsvCorpus
    | JsonlCorpus
    | ParquetCorpus
    | DatasetsCorpus
    | UrlCorpus,
    Field(discriminator="kind"),
]


class Filter(Schema):
    """What happens to sentence pairs that cannot be used."""

    empty: Problem = "error"
    """A pair with an empty or blank side: error names file and line, skip counts it."""
    too_long: Problem = "skip"
    """A pair with a side of more than max_characters or max_tokens: error or skip."""
    invalid: Problem = "error"
    """A line that is not UTF-8, not JSON or lacks a column: error or skip."""
    max_characters: Count = 2_000
    """Longest sentence that is kept, in characters."""
    max_tokens: Count = 128
    """Longest sentence that is kept, in tokens, without begin and end."""


class Tokenizer(Schema):
    """One byte-pair encoding for both languages."""

    kind: Literal["bpe"] = "bpe"
    vocabulary: int = Field(default=2_000, ge=300, le=1_000_000)
    """Size of the joint vocabulary, special tokens included, in tokens."""
    sample_pairs: Count = 1_000_000
    """At most this many training pairs, evenly spaced, are used to train the tokenizer."""


class PaddedRows(Schema):
    """Each pair in a row of its own, padded to the longest of its micro-batch."""

    kind: Literal["padded"] = "padded"


class PackedRows(Schema):
    """Several pairs in a row, which do not see each other (arXiv 2107.02027): little padding,
    whatever the lengths; attention works on longer rows."""

    kind: Literal["packed"]
    tokens: Count = 128
    """Length of a row that is aimed at on either side, in tokens; a longer sentence makes all
    rows of its micro-batch as long."""


AnyRows = Annotated[PaddedRows | PackedRows, Field(discriminator="kind")]


class TokenizerFile(Schema):
    """A tokenizer that is there already, as the Hugging Face library writes it."""

    kind: Literal["file"]
    path: str = Field(min_length=1)
    """Path of its tokenizer.json."""
    vocabulary: int = Field(ge=5, le=1_000_000)
    """Size of its vocabulary in tokens, with padding, begin, end and unknown, which are added where
    it lacks them."""


class SentencePieceModel(Schema):
    """A SentencePiece model that is there already, of type unigram or bpe."""

    kind: Literal["sentencepiece"]
    path: str = Field(min_length=1)
    """Path of its .model file."""
    vocabulary: int = Field(ge=5, le=1_000_000)
    """Size of its vocabulary in tokens, with padding, begin, end and unknown, which are added where
    it lacks them."""


def _trained_unless_said(section: Any) -> Any:
    return {"kind": "bpe"} | section if isinstance(section, dict) else section


AnyTokenizer = Annotated[
    Tokenizer | TokenizerFile | SentencePieceModel,
    Field(discriminator="kind"),
    BeforeValidator(_trained_unless_said),
]


class TokenBudget(Schema):
    """Batches of similar lengths with a bounded number of tokens: little padding."""

    kind: Literal["token_budget"] = "token_budget"
    tokens: Count = 4_096
    """Most tokens in a global batch, source and target with padding, over all devices."""
    scale: float = Field(default=1.0, gt=0)
    """Multiplies tokens: for variants that sweep the batch size of any study."""
    rows: AnyRows = PaddedRows()
    """How the pairs of a micro-batch stand in rows. It changes no global batch: tokens counts as
    if they were padded."""

    @property
    def scaled_tokens(self) -> int:
        """Most tokens in a global batch."""
        return max(1, round(self.tokens * self.scale))


class FixedSize(Schema):
    """Batches of a fixed number of pairs in random order, as in the original study."""

    kind: Literal["fixed_size"]
    pairs: Count = 64
    """Sentence pairs in a global batch, over all devices."""
    scale: float = Field(default=1.0, gt=0)
    """Multiplies pairs: for variants that sweep the batch size of any study."""
    rows: AnyRows = PaddedRows()
    """How the pairs of a micro-batch stand in rows. It changes no global batch."""

    @property
    def scaled_pairs(self) -> int:
        """Sentence pairs in a global batch."""
        return max(1, round(self.pairs * self.scale))


AnyBatching = Annotated[TokenBudget | FixedSize, Field(discriminator="kind")]
