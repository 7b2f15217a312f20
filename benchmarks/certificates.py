"""The cost of a certificate: ``python -m benchmarks.certificates``.

Divides the CPU seconds of a variant's checked short run by those of the same short run unchecked,
with as many seeds. The reference is not counted: it runs once for all variants of a study. The
shares of the parts come from a profile of the checked run and include everything that a part calls.
"""

import argparse
import cProfile
import json
import pstats
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from schemas.base import merge
from schemas.config.measurement import Statistical
from schemas.config.run_spec import RunSpec
from tests.training.small_training import small_spec, store_of
from transformer_core.certify.short_run_worker import record
from transformer_core.common.files import write_text
from transformer_core.data.sharding.shard_store import PairStore
from transformer_core.parallel.topology import Process

VOCABULARY, PAIRS, DROPOUT = 1000, 24, 0.1
SHAPE = {
    "dropout": 1e-9,
    "d_model": 128,
    "d_ff": 512,
    "heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
}
STUDY: dict[str, Any] = {
    "model": SHAPE,
    "batching": {"pairs": PAIRS},
    "training": {"steps": 8, "label_smoothing": 0.1},
}
BF16: dict[str, Any] = {"training": {"precision": {"kind": "bf16"}}}
VARIANTS = {"single": ({}, 1), "amp_bf16": (BF16, Statistical(kind="statistical").seeds)}
"""Changes of each variant, and the number of seeds of its certificate."""
PARTS = {
    "training": ("loop.py", "optimizer_step"),
    "gradients in 32 or 64 bits, or emulated": ("plain_models.py", "loss_and_gradients"),
    "expected updates": ("updates.py", "done"),
    "reading weights and gradients": ("tensors.py", "_read"),
    "comparing tensors": ("tensors.py", "distance"),
    "sums of errors": ("tensors.py", "add"),
    "kinks": ("checker.py", "_kinks"),
    "steps after resuming, all": ("short_run_worker.py", "_resumed"),
    "masks, their independence": ("replay.py", "observed"),
    "resuming": ("checker.py", "resume"),
    "assembling": ("assemble.py", "assemble"),
    "decoding": ("evaluation.py", "checked_decoding"),
    "validation": ("evaluation.py", "checked_validation"),
}
"""File and function of each part."""


def pairs(count: int, seed: int) -> PairStore:
    """Pairs of random ids, some twenty on either side."""
    random = np.random.default_rng(seed)

    def side() -> pa.Array:
        ids = [random.integers(4, VOCABULARY, random.integers(8, 33)) for _ in range(count)]
        return pa.array(ids, pa.large_list(pa.uint16()))

    return store_of(count, {"source": side(), "target": side()}, VOCABULARY)


def short_run(spec: RunSpec, seeds: int, checked: bool) -> None:
    """A short run of all seeds, as in its worker."""
    process = Process(0, 1, 0, 1, torch.device("cpu"))
    stores = pairs(PAIRS * 20, 0), pairs(16, 1)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(seeds):
            training = spec.training.model_copy(update={"seed": number})
            seeded = spec.model_copy(update={"training": training})
            looks = checked and not number
            record(seeded, process, stores, Path(folder), looks, DROPOUT)


def parts_of(spec: RunSpec, seeds: int) -> dict[str, float]:
    profile = cProfile.Profile()
    profile.runcall(short_run, spec, seeds, True)
    stats: Any = pstats.Stats(profile)
    found = {(Path(file).name, name): row[3] for (file, _, name), row in stats.stats.items()}
    whole = found["certificates.py", "short_run"]
    return {part: found.get(place, 0.0) / whole for part, place in PARTS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.certificates", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each side (default: 5)")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for name, (change, seeds) in VARIANTS.items():
        spec = small_spec(**merge(STUDY, change))
        took: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(given.rounds + 1):
            for checked, found in took.items():
                began = time.process_time()
                short_run(spec, seeds, checked)
                if turn:  # the first one warms up
                    found.append(time.process_time() - began)
        plain, certified = (median(took[checked]) for checked in (False, True))
        rows[name] = {
            "seeds": seeds,
            "unchecked": plain,
            "certificate": certified,
            "ratio": certified / plain,
            "parts": parts_of(spec, seeds),
        }
        print(f"{name}: {certified:.2f} s of {plain:.2f} s unchecked: {certified / plain:.2f}")
        for part, share in rows[name]["parts"].items():
            print(f"  {share:6.1%}  {part}")
    if given.output:
        write_text(given.output, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
