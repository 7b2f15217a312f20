"""From sentence pairs as text to files of token ids; all contenders read the same file."""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks._adversarial import adversarial_lines
from benchmarks._rounds import Row, compare, missing, take_turns
from schemas.config.data import Filter, TextCorpus, TextPair, Tokenizer
from transformer_core.common.files import sha256, write_text
from transformer_core.data.corpus.job import ReadCorpus
from transformer_core.data.corpus.pairs import PairFile
from transformer_core.data.sharding.job import Shards
from transformer_core.data.tokenizing.encoding import Encoder
from transformer_core.data.tokenizing.job import load_tokenizer, train

REFERENCE = "datasets.map, 2 processes"
SIDES = ("source", "target")
_COMPARED = 300_000  # pairs whose ids are compared with the tokenizer's own
_FEW = 20_000  # pairs of the turn that does not count
_RULES = Filter(max_tokens=1_000, max_characters=1_000_000)
Contender = Callable[[Path, Path], None]  # tokenizes a file of pairs into a new folder


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tokenizing")
    group.add_argument(
        "--multi30k", type=Path, metavar="FOLDER", help="folder with train.en.gz and train.de.gz"
    )
    group.add_argument(
        "--times", type=int, default=10, help="repetitions of Multi30k (default: 10)"
    )
    group.add_argument(
        "--pairs",
        type=Path,
        metavar="FILE",
        help="results/data/<corpus>/pairs/train.arrow: the text of a study",
    )
    group.add_argument(
        "--turn-pairs",
        type=int,
        default=250_000,
        metavar="N",
        help="of --pairs, from the first on, for the turns; this project also tokenizes all of them "
        "(default: 250000)",
    )
    group.add_argument(
        "--peers",
        nargs="*",
        metavar="NAME",
        help="only peers whose names begin so, and the reference (default: all)",
    )
    group.add_argument(
        "--vocabulary", type=int, default=8_000, help="of all tokenizers (default: 8000)"
    )


def measure(options: argparse.Namespace) -> Iterator[Row]:
    if options.multi30k is not None:
        with tempfile.TemporaryDirectory() as folder:
            pairs = _multi30k(Path(folder), options.multi30k, options.times)
            yield from _text(f"Multi30k, {options.times} times", pairs, None, options)
    if options.pairs is not None:
        with tempfile.TemporaryDirectory() as folder:
            pairs = _first(options.pairs, Path(folder) / "pairs.arrow", options.turn_pairs)
            name = PairFile(options.pairs).description().corpus
            some = len(PairFile(pairs)) < len(PairFile(options.pairs))
            yield from _text(name, pairs, options.pairs if some else None, options)


def _text(
    name: str, pairs: Path, everything: Path | None, options: argparse.Namespace
) -> Iterator[Row]:
    """Times all contenders on ``pairs``, and this project also on ``everything``, which includes
    ``pairs``."""
    part = f"tokenize + shard, {name}"
    folder = pairs.parent
    tokenizer = folder / "tokenizer.json"
    bpe, _ = train(PairFile(pairs), Tokenizer(vocabulary=options.vocabulary))
    write_text(tokenizer, bpe.to_str())
    ours = partial(_project, tokenizer)
    makers: dict[str, Callable[[], Contender]] = {
        "this project": lambda: ours,
        REFERENCE: lambda: _datasets(tokenizer),
        "encode_batch_fast to Arrow": lambda: partial(_plain, tokenizer),
        "SentencePiece to Arrow, 2 threads": lambda: _sentencepiece(pairs, options.vocabulary),
    }
    few = _first(pairs, folder / "few.arrow", _FEW)
    contenders, absent = {}, []
    for contender, make in makers.items():
        asked = (*list(makers)[:2], *(list(makers) if options.peers is None else options.peers))
        if not contender.startswith(asked):
            continue
        try:
            run = make()
            run(few, Path(tempfile.mkdtemp(dir=folder)))
        except (ImportError, OSError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            absent.append(missing(part, contender, f"cannot be imported: {reason}"))
        else:
            contenders[contender] = _rate(run, pairs, folder)
    notes = {"this project": f"{len(PairFile(pairs)):,} pairs, {_identical(pairs, tokenizer)}"}
    if everything is not None:
        contenders["this project, all pairs"] = _rate(ours, everything, folder)
        notes["this project, all pairs"] = f"{len(PairFile(everything)):,} pairs"
    found = take_turns(contenders, options.rounds, uncounted=0)
    yield from compare(part, "pairs/s", found, REFERENCE, notes)
    yield from absent
    peak = {"this project, peak memory": [_peak_memory(everything or pairs, tokenizer, folder)]}
    yield from compare(part, "MB", peak)


def _rate(run: Contender, pairs: Path, folder: Path) -> Callable[[], float]:
    """Pairs per second; files are written below ``folder`` and then removed."""
    count = len(PairFile(pairs))

    def rate() -> float:
        made = Path(tempfile.mkdtemp(dir=folder))
        began = time.perf_counter()
        run(pairs, made)
        seconds = time.perf_counter() - began
        shutil.rmtree(made)
        return count / seconds

    return rate


def _identical(pairs: Path, tokenizer: Path) -> str:
    """Compare the ids of the text and of adversarial lines with the tokenizer's own."""
    bpe = load_tokenizer(tokenizer)
    encoder = Encoder(bpe)
    batches = PairFile(pairs).pieces(0, _COMPARED, 1 << 22)
    columns = [batch.column(side) for batch in batches for side in SIDES]
    columns.append(pa.array(adversarial_lines(10_000), pa.large_string()))
    lines = 0
    for texts in columns:
        found = encoder.encode(texts)
        wanted = bpe.encode_batch(texts.to_pylist(), add_special_tokens=False)
        rows = np.split(found.ids, found.offsets[1:-1])
        for row, encoding in zip(rows, wanted, strict=True):
            if row.tolist() != encoding.ids:
                raise AssertionError(f"the ids of a line differ: {encoding.tokens}")
        lines += len(texts)
    return f"ids of {lines:,} lines identical, 10,000 of them adversarial"


# The system's peak of an ended process includes its parent's, so the process reports its own.
_JOB = """
import sys
from transformer_core.run.job import main
code = main()
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
sys.exit(code)
"""


def _peak_memory(pairs: Path, tokenizer: Path, folder: Path) -> float:
    """The largest resident memory of the workflow's job, in MB."""
    with tempfile.TemporaryDirectory(dir=folder) as output:
        job = Shards(tokenizer=tokenizer, filter=_RULES, pairs=pairs, output=Path(output))
        order = json.dumps({"kind": job.kind, **job.model_dump(mode="json")})
        done = subprocess.run(
            [sys.executable, "-c", _JOB, "--order", order], check=True, capture_output=True
        )
    return int(done.stdout) * 1024 / 1e6


# The contenders


def _all_threads() -> None:
    """Lets tokenizers use all cores again, which ``datasets.map`` forbids for the whole process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    # Otherwise the job would limit them to its own number of threads.
    os.environ.setdefault("RAYON_NUM_THREADS", str(len(os.sched_getaffinity(0))))


def _project(tokenizer: Path, pairs: Path, folder: Path) -> None:
    _all_threads()
    Shards(tokenizer=tokenizer, filter=_RULES, pairs=pairs, output=folder, threads=2).run(None)


def _plain(tokenizer: Path, pairs: Path, folder: Path) -> None:
    """The tokenizer's own threads on lists of text, the ids to Arrow."""
    _all_threads()
    _write(pairs, folder, partial(_ids, load_tokenizer(tokenizer)))


def _ids(bpe: Any, texts: list[str]) -> list[list[int]]:
    return [e.ids for e in bpe.encode_batch_fast(texts, add_special_tokens=False)]


def _write(pairs: Path, folder: Path, encode: Callable[[list[str]], list[list[int]]]) -> None:
    kind = pa.large_list(pa.uint16())
    schema = pa.schema(dict.fromkeys(SIDES, kind))
    with pa.ipc.new_file(str(folder / "ids.arrow"), schema) as sink:
        for batch in PairFile(pairs):
            columns = [pa.array(encode(batch.column(side).to_pylist()), kind) for side in SIDES]
            sink.write_batch(pa.record_batch(columns, schema=schema))


def _datasets(tokenizer: Path) -> Contender:
    import datasets

    datasets.disable_progress_bars()
    bpe = load_tokenizer(tokenizer)

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {side: _ids(bpe, batch[side]) for side in SIDES}

    ids = datasets.Sequence(datasets.Value("uint16"))

    def run(pairs: Path, folder: Path) -> None:
        table = pa.ipc.open_file(pa.memory_map(str(pairs))).read_all()
        datasets.Dataset(table).map(
            encode,
            batched=True,
            num_proc=2,
            remove_columns=table.column_names,
            features=datasets.Features(dict.fromkeys(SIDES, ids)),
            cache_file_name=str(folder / "ids.arrow"),
        )

    return run


def _sentencepiece(pairs: Path, vocabulary: int) -> Contender:
    import sentencepiece

    # Its vocabulary comes from the first sentences, so that the text is not read twice.
    sentences = itertools.islice(
        (text for batch in PairFile(pairs) for side in SIDES for text in batch[side].to_pylist()),
        100_000,
    )
    prefix = pairs.with_name("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences,
        model_prefix=str(prefix),
        vocab_size=vocabulary,
        model_type="bpe",
        character_coverage=1.0,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    return lambda pairs, folder: _write(
        pairs, folder, lambda texts: processor.encode(texts, num_threads=2)
    )


# The texts


def _first(pairs: Path, output: Path, count: int) -> Path:
    """Writes the first ``count`` pairs to a file."""
    table = pa.ipc.open_file(pa.memory_map(str(pairs))).read_all().slice(0, count)
    with pa.ipc.new_file(str(output), table.schema) as sink:
        sink.write_table(table)
    record = PairFile(pairs).description()
    size = {"pairs_kept": table.num_rows, "bytes": output.stat().st_size, "sha256": sha256(output)}
    write_text(output.with_suffix(".json"), record.model_copy(update=size).model_dump_json())
    return output


def _multi30k(folder: Path, multi30k: Path, times: int) -> Path:
    """Multi30k repeated ``times`` times, read as in the workflow."""
    for language in ("en", "de"):
        with (folder / f"train.{language}.gz").open("wb") as stream:
            # Concatenated gzip files decompress to one text.
            for _ in range(times):
                stream.write((multi30k / f"train.{language}.gz").read_bytes())
    pair = TextPair(source=str(folder / "train.en.gz"), target=str(folder / "train.de.gz"))
    corpus = TextCorpus(kind="text", name="text", train=pair, validation=pair, test=pair)
    pairs = folder / "pairs.arrow"
    report = pairs.with_suffix(".json")
    ReadCorpus(corpus=corpus, filter=_RULES, split="train", pairs=pairs, report=report).run(None)
    return pairs
