"""Small files of sentence pairs, tokenizers and stores for the tests of the data package."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import settings
from pydantic import TypeAdapter
from tokenizers import Tokenizer as Bpe

from schemas.config.data import SPLITS, AnyCorpus, Filter, Split, Tokenizer
from schemas.results import CorpusSplit, LengthHistogram, ShardManifest
from tests.records import manifest, record
from transformer_core.common.files import sha256
from transformer_core.data.corpus.job import ReadCorpus
from transformer_core.data.corpus.pairs import PairFile
from transformer_core.data.corpus.readers import Reader, open_split
from transformer_core.data.corpus.rows import Row
from transformer_core.data.sharding.finished import GatherShards
from transformer_core.data.sharding.job import PAIRS_PER_SHARD, Shards
from transformer_core.data.sharding.shard_store import PairStore, open_shards, read_manifest
from transformer_core.data.tokenizing.job import load_tokenizer, train
from transformer_core.data.tokenizing.special_tokens import PAD

steady = settings(deadline=None, derandomize=True, max_examples=50)
"""Settings of property tests that depend neither on the load of the machine nor on luck."""

ENGLISH = [
    "A dog runs over the green meadow.",
    "Two women are talking in the street.",
    "The boy's ball costs 12,50 euros!",
    "It's raining.",
]
GERMAN = [
    "Ein Hund läuft über die grüne Wiese.",
    "Zwei Frauen unterhalten sich auf der Straße.",
    "Der Ball des Jungen kostet 12,50 Euro!",
    "Es regnet.",
]


def corpus(kind: str, files: Any = None, **fields: Any) -> Any:
    """A corpus all of whose splits are in these files."""
    splits = {} if files is None else dict.fromkeys(SPLITS, files)
    named = {} if kind == "grammar" else {"name": "mine"}
    return TypeAdapter(AnyCorpus).validate_python({"kind": kind} | named | splits | fields)


def reader(kind: str, files: Any = None, **fields: Any) -> Reader:
    """The reader of the first split of such a corpus."""
    return open_split(corpus(kind, files, **fields), "train")


def rows(kind: str, files: Any = None, **fields: Any) -> list[Row]:
    """All rows of the first split of such a corpus."""
    return list(reader(kind, files, **fields).rows())


def text_files(folder: Path, source: bytes | str, target: bytes | str) -> dict[str, str]:
    """Writes the source and target file of a corpus of lines."""
    paths = {"source": folder / "a.en", "target": folder / "a.de"}
    for path, content in zip(paths.values(), (source, target), strict=True):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return {side: str(path) for side, path in paths.items()}


def write_table(path: Path, table: pa.Table, **options: Any) -> Path:
    """Writes Parquet or Arrow, depending on the name; files called data-* are Arrow streams."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path, **options)
    else:
        new = pa.ipc.new_stream if path.name.startswith("data-") else pa.ipc.new_file
        with new(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as sink:
            sink.write_table(table)
    return path


def write_pairs(
    path: Path, sources: Sequence[str], targets: Sequence[str], batch: int = 3
) -> PairFile:
    """Writes ``path`` and the record next to it; line numbers start at 11."""
    lines = np.arange(len(sources)) + 11
    columns = [
        pa.array(sources, pa.large_string()),
        pa.array(targets, pa.large_string()),
        pa.array(lines, pa.int64()),
    ]
    files = ["corpus.en", "corpus.de"]
    about = {"files": json.dumps(files)}
    table = pa.table(columns, names=["source", "target", "line"], metadata=about)
    with pa.ipc.new_file(str(path), table.schema) as sink:
        sink.write_table(table, max_chunksize=batch)
    about = {"corpus": "small", "split": "train", "files": files}
    about |= dict.fromkeys(("pairs_read", "pairs_kept"), len(sources))
    about |= {"bytes": path.stat().st_size, "sha256": sha256(path)}
    about |= {"lengths": LengthHistogram(unit="characters", source={}, target={})}
    path.with_suffix(".json").write_text(record(CorpusSplit, **about).model_dump_json())
    return PairFile(path)


def write_tokenizer(folder: Path, vocabulary: int = 320) -> Path:
    """Trains a tokenizer on the sentences above; returns the path of its tokenizer.json."""
    pairs = write_pairs(folder / "for_tokenizer.arrow", ENGLISH * 3, GERMAN * 3)
    bpe: Bpe = train(pairs, Tokenizer(vocabulary=vocabulary))[0]
    path = folder / "tokenizer.json"
    path.write_text(bpe.to_str(), encoding="utf-8")
    return path


def read_split(
    found: AnyCorpus, rules: Filter, split: Split, pairs: Path, report: Path
) -> CorpusSplit:
    """Runs the job that reads a split; returns its report."""
    ReadCorpus(corpus=found, filter=rules, split=split, pairs=pairs, report=report).run(None)
    return CorpusSplit.model_validate_json(report.read_text())


def write_shards(
    pairs: PairFile,
    tokenizer: Path,
    rules: Filter,
    output: Path,
    pairs_per_shard: int = PAIRS_PER_SHARD,
    part: tuple[int, int] = (0, 1),
    **fields: int,
) -> ShardManifest:
    """Runs the job that writes shards, by default in one thread; returns its manifest."""
    Shards(
        tokenizer=tokenizer,
        filter=rules,
        pairs=pairs.path,
        output=output,
        part=f"{part[0] + 1}-of-{part[1]}",
        pairs_per_shard=pairs_per_shard,
        **{"threads": 1} | fields,
    ).run(None)
    return read_manifest(output / "manifest.json")


def gather(paths: list[Path], rules: Filter, output: Path) -> ShardManifest:
    """Runs the job that joins the manifests of parts; returns the manifest of the split."""
    GatherShards(filter=rules, parts=paths, output=output).run(None)
    return read_manifest(output)


def make_store(folder: Path, pairs: int = 60, pairs_per_shard: int = 25) -> PairStore:
    """A store of sentences of many lengths, in several shards."""
    words = " ".join(ENGLISH + GERMAN).split()
    random = np.random.default_rng(7)
    texts = [" ".join(random.choice(words, random.integers(1, 12))) for _ in range(2 * pairs)]
    file = write_pairs(folder / "train.arrow", texts[::2], texts[1::2], batch=17)
    write_shards(file, write_tokenizer(folder), Filter(), folder / "shards", pairs_per_shard)
    return open_shards(folder / "shards" / "manifest.json")


def decoded(tokenizer: Path, rows: Iterable[Any]) -> list[str]:
    """Decodes rows of ids."""
    bpe = load_tokenizer(tokenizer)
    return [bpe.decode(ids.tolist()) for ids in rows]


FIRST_ID = 4  # lower ids are special


def store_of(sources, targets, per_shard=1_000_000):
    """A store in memory whose pairs have these lengths, and ids that identify them."""
    sources, targets = np.asarray(sources, np.int64), np.asarray(targets, np.int64)
    pairs = len(sources)
    batches = []
    for start in range(0, pairs, per_shard):
        columns = []
        for lengths in (sources, targets):
            part = lengths[start : start + per_shard]
            limits = np.concatenate([[0], np.cumsum(part)])
            ids = np.repeat(np.arange(start, start + len(part)) % 60_000 + FIRST_ID, part)
            columns.append(pa.LargeListArray.from_arrays(limits, pa.array(ids.astype(np.uint16))))
        batches.append(pa.record_batch(columns, names=["source", "target"]))
    tokens = {"source_tokens": int(sources.sum()), "target_tokens": int(targets.sum())}
    return PairStore(manifest(pairs=pairs, vocabulary=60_100, **tokens), batches)


def normal_text(pairs, seed=0):
    """Lengths like those of sentences: spread out, and similar on both sides."""
    random = np.random.default_rng(seed)
    sources = np.clip(random.lognormal(2.8, 0.5, pairs), 1, 128).astype(np.int32)
    targets = np.clip(sources * random.normal(1.05, 0.2, pairs), 1, 128).astype(np.int32)
    return sources, targets


def tokens_of(batch):
    """Number of non-padding tokens of a batch; a row that stands for no pair has none."""
    return int((batch.source != PAD).sum() + (batch.target_output != PAD).sum()) * (batch.pairs > 0)
