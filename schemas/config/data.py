"""Corpora, tokenizers and batches: the data that a run trains on."""

from typing import Annotated, Any, Literal

from annotated_types import Unit
from pydantic import BeforeValidator, Field, StringConstraints

from schemas.base import (
    SHA256_PATTERN,
    URL_PATTERN,
    Name,
    Pairs,
    PathText,
    Schema,
    Seed,
    Size,
    Tokens,
    omitted,
)

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Problem = Literal["error", "skip"]
Sha256 = Annotated[str, StringConstraints(pattern=SHA256_PATTERN)]


class ReadingLimits(Schema):
    """Limits on the size of a file. Anything larger is refused while it is read, naming the
    place, before it fills memory or disk: a few kilobytes can decompress for hours."""

    line: Size = Field(default=2**20, ge=2**18)
    """Longest line in bytes, or as text (4MiB); one line is held in memory at a time."""
    file: Size = 2**40  # largest file in bytes, after decompression
    ratio: float = Field(default=200.0, ge=2.0, le=1e6)
    """Largest ratio of a file's text to its compressed size, beyond the first 64 MiB. Text
    compresses 3 to 10 times."""
    memory: Size = Field(default=2**31, ge=2**26)
    """Maximum memory in bytes for reading one piece of a Parquet or Arrow file, on Linux: its
    pages and record batches are compressed, and are held in memory whole."""
    download: Size = 2**38  # largest download in bytes


class Corpus(Schema):
    """Fields common to all kinds of corpora."""

    name: Name = Field(examples=["my_corpus"])  # name of the corpus: its folder below results/data
    source_language: str = Field(default="en", min_length=1, max_length=35)
    """Source language, as an ISO 639-1 code."""
    target_language: str = Field(default="de", min_length=1, max_length=35)
    """Target language, as an ISO 639-1 code."""
    limits: ReadingLimits = ReadingLimits()  # limits on the size of its files


class GrammarCorpus(Corpus):
    """The built-in English-German generator: any number of pairs, from a seed."""

    kind: Literal["grammar"] = "grammar"
    name: Name = "grammar"  # name of the corpus: its folder below results/data
    train_pairs: Pairs = 20_000  # sentence pairs to train on
    validation_pairs: Pairs = 500  # sentence pairs for the validation loss
    test_pairs: Pairs = 500  # sentence pairs for BLEU
    seed: Seed = 1  # seed of the generator
    names: int = Field(default=0, ge=0, le=200_000)
    """Number of invented names of people and places used instead of the lexicon's, with
    Zipf-distributed frequencies. The lexicon has some 5,000 words; 60,000 names allow a
    vocabulary of 30,000 pieces, as in real text."""


class TextPair(Schema):
    """Two files aligned line by line."""

    source: PathText = Field(examples=["data/corpus.en.gz"])
    """Path of the source sentences, one per line; plain, .gz, .xz or .zst."""
    target: PathText = Field(examples=["data/corpus.de.gz"])
    """Path of the target sentences, one per line; plain, .gz, .xz or .zst."""


class TextCorpus(Corpus):
    """One sentence per line, two files per split."""

    kind: Literal["text"]
    train: TextPair  # files to train on
    validation: TextPair  # files for the validation loss
    test: TextPair  # files for BLEU


class OneFileCorpus(Corpus):
    """A corpus with both sentences of a pair in one file per split."""

    train: PathText = Field(examples=["data/train"])  # path of the file to train on
    validation: PathText = Field(examples=["data/validation"])
    """Path of the file for the validation loss."""
    test: PathText = Field(examples=["data/test"])  # path of the file for BLEU


class TsvCorpus(OneFileCorpus):
    """Tab-separated values without quoting; plain, .gz, .xz or .zst."""

    kind: Literal["tsv"]
    source_column: int = Field(default=1, ge=1, le=10_000)
    """Column of the source sentence, counted from 1."""
    target_column: int = Field(default=2, ge=1, le=10_000)
    """Column of the target sentence, counted from 1."""
    header: bool = False  # whether the first line holds column names


class NamedFields(Schema):
    """Where the sentences of a pair are in a file with names."""

    source_field: PathText = "source"
    """Key or column of the source sentence; dots reach into nested objects or structs (translation.en)."""
    target_field: PathText = "target"
    """Key or column of the target sentence; dots reach into nested objects or structs (translation.de)."""


class JsonlCorpus(OneFileCorpus, NamedFields):
    """One JSON object per line; plain, .gz, .xz or .zst."""

    kind: Literal["jsonl"]


class ParquetCorpus(OneFileCorpus, NamedFields):
    """Parquet files with two text columns."""

    kind: Literal["parquet"]


class DatasetsCorpus(Corpus, NamedFields):
    """A folder of the datasets library: written by save_to_disk, or with Parquet or Arrow files
    per split, as on the Hugging Face Hub."""

    kind: Literal["datasets"]
    folder: PathText = Field(examples=["data/wmt"])  # path of the folder
    train: PathText = "train"  # name of the split to train on
    validation: PathText = "validation"  # name of the split for the validation loss
    test: PathText = "test"  # name of the split for BLEU


class RemoteFile(Schema):
    """A file on the web and the checksum it must have."""

    url: str = Field(
        pattern=URL_PATTERN, max_length=4_096, examples=["https://example.org/train.en.gz"]
    )
    """URL of the file; the end of its path gives its compression."""
    sha256: Sha256 = Field(examples=[64 * "0"])  # SHA-256 of the file as downloaded


class RemotePair(Schema):
    """Two remote files aligned line by line."""

    source: RemoteFile  # the source sentences, one per line
    target: RemoteFile  # the target sentences, one per line


class UrlCorpus(Corpus):
    """Text files that are downloaded once and checked."""

    kind: Literal["url"]
    train: RemotePair  # files to train on
    validation: RemotePair  # files for the validation loss
    test: RemotePair  # files for BLEU
    folder: PathText | None = None
    """A local folder with files of the same names, or a copy of a folder of results/downloads,
    verified the same way: nothing is downloaded."""
    retries: int = Field(default=5, ge=0, le=100)
    """Number of times an interrupted download is resumed."""
    timeout: Annotated[float, Unit("seconds")] = Field(default=60.0, gt=0, le=86_400)
    """Seconds without data after which a download counts as interrupted."""


class TextsCorpus(Schema):
    """Texts in one language, for a language model: one file per split, read by extension: .jsonl
    or .parquet, otherwise plain text; plain, .gz, .xz or .zst."""

    kind: Literal["documents"]
    name: Name = Field(examples=["my_texts"])  # name of the corpus: its folder below results/data
    language: str = Field(default="en", min_length=1, max_length=35)
    """Language of the texts, as an ISO 639-1 code."""
    train: PathText = Field(examples=["data/train.txt.gz"])  # path of the file to train on
    validation: PathText = Field(examples=["data/validation.txt"])
    """Path of the file for the validation loss."""
    test: PathText = Field(examples=["data/test.txt"])
    """Path of the file for the trained model's loss and its continuations."""
    field: PathText = "text"
    """Key (.jsonl) or column (.parquet) of the text; dots reach into objects and structs."""
    ends: Literal["line", "blank_line"] = "line"
    """Where a text ends in a plain-text file: at the end of its line, or at a blank line."""
    limits: ReadingLimits = ReadingLimits()  # limits on the size of its files


class GrammarTexts(Schema):
    """The built-in generator's sentences in one language, several to a text: any number of
    texts, from a seed."""

    kind: Literal["grammar_documents"] = "grammar_documents"
    name: Name = "grammar_documents"  # name of the corpus: its folder below results/data
    language: Literal["en", "de"] = "de"  # language of the sentences
    train_texts: Pairs = 2_000  # texts to train on
    validation_texts: Pairs = 100  # texts for the validation loss
    test_texts: Pairs = 100  # texts for the trained model's loss and its continuations
    sentences: int = Field(default=8, ge=1, le=10_000)
    """Average sentences per text; a text has from 1 to twice this number minus 1."""
    seed: Seed = 1  # seed of the generator
    names: int = Field(default=0, ge=0, le=200_000)
    """Number of invented names of people and places used instead of the lexicon's, as for the
    kind grammar."""
    limits: ReadingLimits = ReadingLimits()
    """Limits on the size of its files; unused, because it has none."""


TEXT_KINDS = ("documents", "grammar_documents")
"""Kinds of corpora that hold texts in one language instead of pairs."""

AnyCorpus = Annotated[
    GrammarCorpus
    | TextCorpus
    | TsvCorpus
    | JsonlCorpus
    | ParquetCorpus
    | DatasetsCorpus
    | UrlCorpus
    | TextsCorpus
    | GrammarTexts,
    Field(discriminator="kind"),
]


class Filter(Schema):
    """How unusable sentence pairs are handled."""

    empty: Problem = "error"
    """A pair with an empty or blank side: error stops, naming file and line; skip counts it."""
    too_long: Problem = "skip"
    """A pair with a side longer than max_characters or max_tokens: error or skip."""
    invalid: Problem = "error"
    """A line that is not UTF-8 or JSON, lacks a column or has a NUL character: error or skip."""
    max_characters: Annotated[int, Unit("characters")] = Field(default=2_000, ge=1, le=10_000_000)
    """Longest sentence kept, in characters."""
    max_tokens: Annotated[int, Unit("tokens")] = Field(default=128, ge=1, le=1_000_000)
    """Longest sentence kept, in tokens, excluding begin and end."""


class Tokenizer(Schema):
    """One byte-pair encoding for both languages."""

    kind: Literal["bpe"] = "bpe"
    vocabulary: Annotated[int, Unit("tokens")] = Field(default=2_000, ge=300, le=1_000_000)
    """Largest size of the joint vocabulary, special tokens included, in tokens. Only pieces that
    occur twice become tokens, so a small corpus makes fewer; embeddings have as many rows as there
    are tokens."""
    sample_pairs: Pairs = 1_000_000
    """Maximum number of training pairs, evenly spaced, used to train the tokenizer."""


class ExistingTokenizer(Schema):
    """Fields common to all existing tokenizers."""

    vocabulary: Annotated[int, Unit("tokens")] = Field(ge=5, le=1_000_000, examples=[32_000])
    """Vocabulary size in tokens, including padding, begin, end and unknown, which are added if
    missing."""


class TokenizerFile(ExistingTokenizer):
    """An existing tokenizer, in the format of the Hugging Face library."""

    kind: Literal["file"]
    path: PathText = Field(examples=["data/tokenizer.json"])  # path of its tokenizer.json


class SentencePieceModel(ExistingTokenizer):
    """An existing SentencePiece model, of type unigram or bpe."""

    kind: Literal["sentencepiece"]
    path: PathText = Field(examples=["data/sentencepiece.model"])  # path of its .model file


def _trained_unless_said(section: Any) -> Any:
    return {"kind": "bpe"} | section if isinstance(section, dict) else section


AnyTokenizer = Annotated[
    Tokenizer | TokenizerFile | SentencePieceModel,
    Field(discriminator="kind"),
    BeforeValidator(_trained_unless_said),
]


class Rows(Schema):
    """Fields common to all layouts of rows."""

    width_multiple: Annotated[int, Unit("tokens")] = Field(default=1, ge=1, le=65_536)
    """Micro-batch widths are rounded up to a multiple of this, in tokens. Fewer distinct shapes
    mean that kernels built for one shape are built once, at the cost of padding."""
    row_multiple: Annotated[int, Unit("rows")] = omitted(1, ge=1, le=65_536)
    """Rows of a micro-batch are rounded up to a multiple of this; rows that are added have no
    label. Together with width_multiple this bounds the number of shapes."""


class PaddedRows(Rows):
    """Each pair in its own row, padded to the longest of its micro-batch."""

    kind: Literal["padded"] = "padded"


class PackedRows(Rows):
    """Several pairs per row, which cannot see each other (arXiv 2107.02027): little padding
    whatever the lengths, but attention works on longer rows."""

    kind: Literal["packed"]
    tokens: Annotated[int, Unit("tokens")] = Field(default=128, ge=1, le=1_000_000)
    """Target length of a row on either side, in tokens; a longer sentence makes every row of its
    micro-batch as long."""


AnyRows = Annotated[PaddedRows | PackedRows, Field(discriminator="kind")]


class TokenBudget(Schema):
    """Batches of similar lengths with a bounded number of tokens: little padding."""

    kind: Literal["token_budget"] = "token_budget"
    tokens: Tokens = 4_096
    """Maximum tokens in a global batch, source and target with padding, over all devices."""
    scale: float = Field(default=1.0, ge=1e-6, le=1e6)
    """Multiplies tokens, for variants that sweep the batch size of any study."""
    rows: AnyRows = PaddedRows()
    """How the pairs of a micro-batch are laid out in rows. This does not change any global
    batch: tokens are counted as if the pairs were padded."""

    @property
    def scaled_tokens(self) -> int:
        return max(1, round(self.tokens * self.scale))


class FixedSize(Schema):
    """Batches of a fixed number of pairs in random order, as in the original study."""

    kind: Literal["fixed_size"]
    pairs: Annotated[int, Unit("pairs")] = Field(default=64, ge=1, le=100_000_000)
    """Sentence pairs in a global batch, over all devices."""
    scale: float = Field(default=1.0, ge=1e-6, le=1e6)
    """Multiplies pairs, for variants that sweep the batch size of any study."""
    rows: AnyRows = PaddedRows()
    """How the pairs of a micro-batch are laid out in rows. This does not change any global
    batch."""

    @property
    def scaled_pairs(self) -> int:
        return max(1, round(self.pairs * self.scale))


AnyBatching = Annotated[TokenBudget | FixedSize, Field(discriminator="kind")]
