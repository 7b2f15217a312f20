"""Trainings of a few steps of a tiny model, in one process or in one rank of several."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist

from schemas.base import merge
from schemas.config.run_spec import RunSpec
from schemas.results.data import TextRows
from tests.records import manifest
from transformer_core.data.sharding.shard_store import PairStore
from transformer_core.data.tokenizing.special_tokens import EOS
from transformer_core.parallel.topology import Process
from transformer_core.training.assemble import Setup, assemble
from transformer_core.training.loop import train
from transformer_core.training.observer import Observer

VOCABULARY = 61  # odd, so that shards of two ranks differ in size

_SPEC: dict[str, Any] = {
    "variant": "small",
    "corpus": {"kind": "grammar", "name": "small"},
    "batching": {"kind": "fixed_size", "pairs": 8},
    "model": {"kind": "transformer", "d_model": 16, "d_ff": 32, "heads": 2},
    "training": {
        "steps": 6,
        "precision": {"kind": "fp32"},
        "schedule": {"kind": "constant", "peak": 3e-3},
        "log_every": 1,
        "validate_every": 0,
    },
    "machine": {"device": "cpu"},
    "measurement": {"warmup_steps": 0, "window_steps": 1},
}


def small_spec(**sections: Any) -> RunSpec:
    """A run spec of the tiny model; ``sections`` override its defaults."""
    return RunSpec.model_validate(merge(_SPEC, sections))


@cache
def small_store(pairs: int = 40, seed: int = 0) -> PairStore:
    """Pairs of random ids and random lengths; the same seed gives the same pairs."""
    random = np.random.default_rng(seed)

    def side() -> pa.Array:
        ids = [random.integers(3, VOCABULARY, random.integers(1, 9)) for _ in range(pairs)]
        return pa.array(ids, pa.large_list(pa.uint8()))

    return store_of(pairs, {"source": side(), "target": side()})


def small_texts(rows: int = 40, seed: int = 0, context: int = 12) -> PairStore:
    """Rows of texts of random ids; some are shorter than the context, as a text's last row may be."""
    random = np.random.default_rng(seed)
    ids = []
    for _ in range(rows):
        row = random.integers(4, VOCABULARY, random.integers(context // 2, context + 1))
        ids.append(np.where(random.random(len(row)) < 0.2, EOS, row))
    kind = pa.large_list(pa.uint8())
    sides = {"source": pa.array([[]] * rows, kind), "target": pa.array(ids, kind)}
    return store_of(rows, sides, texts=TextRows(context=context, texts=rows, bytes=0))


def store_of(
    pairs: int, sides: dict[str, pa.Array], vocabulary: int = VOCABULARY, **more: Any
) -> PairStore:
    """A store in memory with these token ids."""
    made = manifest(pairs=pairs, id_type="uint8", vocabulary=vocabulary, **more)
    return PairStore(made, [pa.record_batch(list(sides.values()), names=list(sides))])


ODD = 1_300
"""Pairs to validate with that make an odd number of batches, which hold thousands of tokens each."""


def small_setup(spec: RunSpec, process: Process | None = None, validation_pairs: int = 40) -> Setup:
    """The training of ``spec`` by ``process``, by default this rank on the CPU."""
    if process is None:
        joined = dist.is_initialized()
        rank, world_size = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
        process = Process(rank, world_size, rank, world_size, torch.device("cpu"))
    stores = small_store(), small_store(validation_pairs, seed=1)
    return assemble(spec, process, VOCABULARY, *stores)


class Watcher(Observer):
    """Records all events of a training; ends the run after step ``stop_at``."""

    def __init__(self, stop_at: int = 0) -> None:
        self.stop_at = stop_at
        self.losses: dict[int, float] = {}
        self.validations: dict[int, float] = {}
        self.started_at: list[int] = []

    def start(self, step: int) -> None:
        self.started_at.append(step)

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        if self.stop_at and step > self.stop_at:
            raise Stopped

    def logged(self, step: int, loss: float) -> None:
        self.losses[step] = loss

    def validated(self, step: int, loss: float) -> None:
        self.validations[step] = loss

    def state(self) -> dict[str, Any]:
        return {"losses": list(self.losses.items())}

    def load(self, state: dict[str, Any]) -> None:
        self.losses = dict(state["losses"])


class Stopped(Exception):
    """Ends a run before its last step."""


def run_small(spec: RunSpec, checkpoints: Path, stop_at: int = 0) -> tuple[Watcher, Setup]:
    """Train from the newest checkpoint, if there is one, to the end or to step ``stop_at``."""
    watcher, setup = Watcher(stop_at), small_setup(spec)
    try:
        train(setup, watcher, checkpoints)
    except Stopped:
        assert stop_at
    return watcher, setup
