"""Feeding a training: batches of token ids from a tokenized corpus to tensors in memory."""

import argparse
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks._rounds import Row, compare, missing, take_turns
from schemas.config.data import AnyBatching, FixedSize, PackedRows, TokenBudget
from transformer_core.common.yaml_files import read_yaml
from transformer_core.data.batching.epoch_plan import plan_epoch
from transformer_core.data.batching.feeding import Feed
from transformer_core.data.sharding.shard_store import PairStore, open_shards
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD
from transformer_core.parallel.topology import Process
from transformer_core.study.resolve import check_study, resolve
from transformer_core.study.variants import read_variants, with_compositions
from transformer_core.training.assemble import assemble
from transformer_core.training.loop import optimizer_step

PART = "feed, batches of 64 pairs"
REFERENCE = "datasets + DataLoader"
CPU = torch.device("cpu")
Contender = Callable[[], float]


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("feeding")
    group.add_argument(
        "--shards",
        type=Path,
        metavar="MANIFEST",
        help="results/data/<corpus>/shards/train/manifest.json; without it, feeding is left out",
    )
    group.add_argument(
        "--seconds", type=float, default=1.0, help="of each turn, roughly (default: 1)"
    )
    group.add_argument(
        "--plan-pairs",
        type=int,
        default=5_000_000,
        metavar="N",
        help="of the corpus whose epoch is planned: the shards over and over (default: 5000000)",
    )
    group.add_argument(
        "--study-data",
        type=Path,
        metavar="FOLDER",
        help="results/data/<corpus> of the default study, to compare with its training steps",
    )


def measure(options: argparse.Namespace) -> Iterator[Row]:
    if options.shards is not None:
        store = open_shards(options.shards)
        with tempfile.TemporaryDirectory() as folder:
            yield from _peers(store, Path(folder), options.rounds, options.seconds)
        yield from _strategies(store, options.rounds, options.seconds)
        yield from _planning(store, options.rounds, options.plan_pairs)
    if options.study_data is not None:
        yield from _training(options.study_data, options.rounds)


def _peers(store: PairStore, folder: Path, rounds: int, seconds: float) -> Iterator[Row]:
    """Batches of 64 pairs, the same for all contenders if the peer allows it."""
    batching = FixedSize(kind="fixed_size", pairs=64)
    batches = [
        rows.tolist() for window in plan_epoch(store, batching, 1, 0) for rows in window.rows
    ]
    contenders = {"this project": _rate(lambda: _fed(store, batching), seconds)}
    makers: dict[str, Callable[[], Callable[[], Iterable[Any]]]] = {
        REFERENCE: lambda: _datasets(store, folder / "datasets", batches, 0),
        "datasets + DataLoader, 2 workers": lambda: _datasets(store, folder / "2", batches, 2),
        "lists + DataLoader": lambda: _lists(store, batches),
    }
    absent = []
    for name, make in makers.items():
        try:
            contenders[name] = _rate(make(), seconds)
        except ImportError as error:
            absent.append(missing(PART, name, f"not installed: {error}"))
    yield from compare(PART, "batches/s", take_turns(contenders, rounds), REFERENCE)
    yield from absent


def _strategies(store: PairStore, rounds: int, seconds: float) -> Iterator[Row]:
    """Padding and speed of each way to make batches."""
    packed = PackedRows(kind="packed")
    batchings: dict[str, AnyBatching] = {
        "fixed size, 64 pairs": FixedSize(kind="fixed_size", pairs=64),
        "fixed size, packed": FixedSize(kind="fixed_size", pairs=64, rows=packed),
        "token budget, 4096 tokens": TokenBudget(tokens=4096),
        "token budget, packed": TokenBudget(tokens=4096, rows=packed),
    }
    contenders = {
        name: _rate(lambda b=batching: _fed(store, b), seconds, lambda batch: batch.tokens)
        for name, batching in batchings.items()
    }
    notes = {name: f"padding {_padding(store, b):.1%}" for name, b in batchings.items()}
    found = take_turns(contenders, rounds)
    yield from compare("feed, by strategy", "tokens/s", found, next(iter(found)), notes)


def _planning(store: PairStore, rounds: int, pairs: int) -> Iterator[Row]:
    """Plans an epoch of so many pairs: the given shards, over and over."""
    times = -(-pairs // len(store))
    manifest = store.manifest.model_copy(
        update={
            name: times * getattr(store.manifest, name)
            for name in ("pairs", "source_tokens", "target_tokens")
        }
    )
    large = PairStore(manifest, store.batches * times)

    def epoch(batching: AnyBatching) -> Iterator[Any]:
        return plan_epoch(large, batching, 1, 0)

    fixed, budget = FixedSize(kind="fixed_size", pairs=64), TokenBudget(tokens=4096)
    contenders: dict[str, Contender] = {
        "epoch, fixed size": lambda: _seconds(epoch(fixed)),
        "epoch, token budget": lambda: _seconds(epoch(budget)),
        "first batch, token budget": lambda: _seconds(islice(_fed(large, budget), 1)),
    }
    found = take_turns(contenders, rounds)
    yield from compare(f"plan {len(large):,} pairs", "s", found)


def _training(folder: Path, rounds: int) -> Iterator[Row]:
    """Steps of the default study in one process on all cores, and the time of their batches."""
    study = check_study(read_yaml("config/config.yaml"), "config/config.yaml")
    variants = with_compositions(read_variants().variants, study.variants)
    shards = folder / "shards"
    stores = [open_shards(shards / split / "manifest.json") for split in ("train", "validation")]
    process = Process(0, 1, 0, 1, CPU)
    contenders: dict[str, Contender] = {}
    for name in study.variants:
        spec = resolve(study, name, variants)
        if spec.parallel.kind != "single" or spec.batching != study.batching:
            continue
        setup = assemble(spec, process, stores[0].manifest.vocabulary, *stores)
        setup.module.train()
        batches = list(islice(_fed(stores[0], spec.batching), 20))
        contenders[f"step of {name}"] = lambda s=setup, b=batches: (
            _seconds(optimizer_step(s, batch, 1e-4) for batch in b) / len(b)
        )
    contenders["feed"] = lambda: _seconds(islice(_fed(stores[0], study.batching), 2_000)) / 2_000
    yield from compare("default study, one batch", "s", take_turns(contenders, rounds), "feed")


def _seconds(work: Iterable[Any]) -> float:
    """The time to go through something to its end."""
    started = time.perf_counter()
    deque(work, maxlen=0)
    return time.perf_counter() - started


def _fed(store: PairStore, batching: AnyBatching) -> Iterator[Any]:
    with closing(Feed(store, batching, 1, 0, 1, 1, CPU).batches()) as batches:
        yield from batches


def _padding(store: PairStore, batching: AnyBatching) -> float:
    """Share of padding in an epoch."""
    tokens = padded = 0
    for batch in _fed(store, batching):
        if batch.epoch:
            break
        tokens += batch.tokens
        padded += batch.padded_tokens
    return 1 - tokens / padded


def _rate(
    start: Callable[[], Iterable[Any]],
    seconds: float,
    count: Callable[[Any], int] = lambda batch: 1,
) -> Contender:
    """Items per second from the first batch on: workers and caches are then ready."""

    def run() -> float:
        done = 0
        batches = iter(start())
        next(batches)
        began = time.perf_counter()
        for batch in batches:
            done += count(batch)
            if time.perf_counter() - began > seconds:
                break
        elapsed = time.perf_counter() - began
        del batches
        return done / elapsed

    return run


def _collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pads rows of ids as a plain collate function does."""

    def padded(sentences: list[list[int]]) -> torch.Tensor:
        longest = max(map(len, sentences))
        return torch.tensor([ids + [PAD] * (longest - len(ids)) for ids in sentences])

    return {
        "source": padded([[*row["source"], EOS] for row in rows]),
        "target_input": padded([[BOS, *row["target"]] for row in rows]),
        "target_output": padded([[*row["target"], EOS] for row in rows]),
    }


def _again(loader: Iterable[Any]) -> Callable[[], Iterable[Any]]:
    return lambda: chain.from_iterable(repeat(loader))


def _datasets(
    store: PairStore, folder: Path, batches: list[list[int]], workers: int
) -> Callable[[], Iterable[Any]]:
    import datasets
    import pyarrow as pa

    datasets.Dataset(pa.Table.from_batches(store.batches)).save_to_disk(str(folder))
    dataset = datasets.load_from_disk(str(folder))
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_sampler=batches, collate_fn=_collate, num_workers=workers
    )
    return _again(loader)


def _lists(store: PairStore, batches: list[list[int]]) -> Callable[[], Iterable[Any]]:
    rows = [row for batch in store.batches for row in batch.to_pylist()]
    loader: DataLoader[Any] = DataLoader(rows, batch_sampler=batches, collate_fn=_collate)
    return _again(loader)
