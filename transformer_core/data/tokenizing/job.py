"""Trains one tokenizer for both languages, or converts an existing one.

We train byte-level BPE (Sennrich et al., arXiv 1508.07909, over UTF-8 bytes). It has a token for
every byte, so decoding restores any text exactly and no token is unknown. We do not normalise text.
"""

import hashlib
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Bpe

from schemas.config.data import AnyTokenizer, SentencePieceModel, Tokenizer, TokenizerFile
from schemas.results.data import TokenizerReport
from transformer_core.common.digests import check, write_result
from transformer_core.common.endings import remake
from transformer_core.common.files import sha256
from transformer_core.common.job import Job
from transformer_core.common.progress import Progress, log
from transformer_core.common.tables import arrow_array
from transformer_core.data.arrays import evenly_spaced
from transformer_core.data.corpus.pairs import PairFile
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.tokenizing.encoding import PIECES
from transformer_core.data.tokenizing.existing import convert, special_names, speller
from transformer_core.data.tokenizing.special_tokens import EOS, SPECIAL_NAMES, UNK

_COMPARED = 1_000  # pairs on which we compare a converted tokenizer with the original


def untrained() -> Bpe:
    """A tokenizer before training, which only splits text and joins it again.

    It splits first before every space. That needs no regular expression, so
    :mod:`transformer_core.data.tokenizing.encoding` can do it on raw bytes.
    """
    bpe = Bpe(models.BPE(unk_token="<unk>"))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(" ", "merged_with_next"),
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    return bpe


def train(pairs: PairFile, settings: Tokenizer) -> tuple[Bpe, int]:
    """Returns a trained tokenizer, and the number of pairs that it was trained on.

    The vocabulary is smaller than requested if the corpus runs out of repeated pieces.
    """
    sample = evenly_spaced(len(pairs), settings.sample_pairs)
    if not len(sample):
        raise CorpusError(
            "contains no pair", file=pairs.path, remedy="add training pairs to the corpus"
        )
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocabulary,
        min_frequency=2,
        special_tokens=list(SPECIAL_NAMES),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )
    bpe = untrained()
    bpe.train_from_iterator(_texts(pairs, sample), trainer, length=2 * len(sample))
    return bpe, len(sample)


def _texts(pairs: PairFile, rows: np.ndarray) -> Iterator[list[str]]:
    """Yields both sides of the pairs ``rows`` (ascending), one list per side and record batch; only
    the second if they are texts, whose source is empty."""
    first = 0
    with Progress("read for the tokenizer", "pairs", len(rows)) as progress:
        for batch in pairs:
            start, end = np.searchsorted(rows, [first, first + batch.num_rows])
            chosen = arrow_array(rows[start:end] - first)
            for side in ("source", "target"):
                if any(texts := batch.column(side).take(chosen).to_pylist()):
                    yield texts
            first += batch.num_rows
            progress.update(int(end - start))


def take(
    pairs: PairFile, settings: TokenizerFile | SentencePieceModel
) -> tuple[Bpe, int, int, int]:
    """Converts an existing tokenizer and tries it on some pairs of the corpus. Returns it with the
    number of pairs, the number of sentences that the original encodes differently, and the number
    that decoding does not restore exactly; logs the last two as a warning.
    """
    tokenizer, theirs = convert(settings)
    names = special_names(tokenizer)
    assert names is not None, "convert() adds the special tokens"
    ours = speller(tokenizer, names[UNK])
    sample = evenly_spaced(len(pairs), _COMPARED)
    sentences = different = inexact = 0
    for texts in _texts(pairs, sample):
        sentences += len(texts)
        different += sum(a != b for a, b in zip(ours(texts), theirs(texts), strict=True))
        ids = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
        inexact += sum(a != b for a, b in zip(tokenizer.decode_batch(ids), texts, strict=True))
    if different:
        told = "%d of %d sentences are encoded differently from %s"
        log.warning(told, different, sentences, settings.path)
    if inexact:
        told = "decoding does not restore %d of %d sentences exactly: BLEU uses decoded text"
        log.warning(told, inexact, sentences)
    return tokenizer, len(sample), different, inexact


def load_tokenizer(path: str | Path, expected: str | None = None) -> Bpe:
    """Reads the tokenizer at ``path``; text that looks like a special token stays text.

    Raises CorpusError if the file is missing or damaged, has other special tokens, or its SHA-256
    is not ``expected``; ConfigError if it has changed since it was written.
    """
    check(Path(path))
    try:
        bpe = Bpe.from_str(Path(path).read_text(encoding="utf-8"))
    except Exception as error:  # tokenizers raises bare Exception on a damaged file
        message = f"is not a tokenizer ({error})"
        raise CorpusError(message, file=path, remedy=remake(path)) from None
    if expected is not None and (found := sha256(Path(path))) != expected:
        raise CorpusError(
            f"is not the tokenizer of the shards: SHA-256 {found} instead of {expected}",
            file=path,
            remedy=remake(path),
        )
    if special_names(bpe) is None:
        ids = [bpe.token_to_id(name) for name in SPECIAL_NAMES]
        raise CorpusError(
            f"gives {' '.join(SPECIAL_NAMES)} the ids {ids} instead of 0 to 3",
            file=path,
            remedy="name it in the study, tokenizer: {kind: file, path: ...}, to convert it",
        )
    bpe.encode_special_tokens = True
    return bpe


def detokenize(bpe: Bpe, ids: Iterable[int]) -> str:
    """The text of ``ids`` up to the first end token, without special tokens."""
    kept = []
    for token in ids:
        if token == EOS:
            break
        if token >= len(SPECIAL_NAMES):
            kept.append(int(token))
    return bpe.decode(kept)


class TrainTokenizer(Job):
    """Trains one byte-level BPE tokenizer on both sides of the training pairs, or converts an
    existing one."""

    kind = "tokenizer"

    tokenizer: AnyTokenizer  # tokenizer of the study
    pairs: Path  # training pairs (.arrow)
    output: Path  # tokenizer.json to write
    report: Path  # report to write

    def run(self, log_file: Path | None) -> None:
        settings = self.tokenizer
        began = time.perf_counter()
        pairs = PairFile(self.pairs)
        source = different = inexact = None
        if isinstance(settings, Tokenizer):
            tokenizer, sample_pairs = train(pairs, settings)
        else:
            source = settings.path
            tokenizer, sample_pairs, different, inexact = take(pairs, settings)
        text = tokenizer.to_str()
        report = TokenizerReport(
            vocabulary=tokenizer.get_vocab_size(),
            source=source,
            sample_pairs=sample_pairs,
            different=different,
            inexact=inexact,
            seconds=time.perf_counter() - began,
            sha256=hashlib.sha256(text.encode()).hexdigest(),
        )
        write_result(self.output, text)
        write_result(self.report, report.model_dump_json(indent=2) + "\n")
        tokens = report.vocabulary
        if tokens < settings.vocabulary:
            told = (
                "warning: %d tokens, fewer than tokenizer.vocabulary = %d: no other pieces occur twice in "
                "the training pairs. Models get embeddings of %d rows"
            )
            log.warning(told, tokens, settings.vocabulary, tokens)
        told = "%s: %d tokens from %d pairs in %.1f s"
        log.info(told, self.output, tokens, sample_pairs, report.seconds)
