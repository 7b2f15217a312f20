"""False alarms: draws healthy variants of tiny studies at random, and certifies each.

``python -m benchmarks.healthy --seconds 600 --output healthy.json`` draws model, data, settings and
techniques; if the study's checks refuse a draw, it draws again. No certificate may say
``not_equivalent``. With few seeds a reduced format may stay undecided, which is no false alarm.
"""

import argparse
import json
import random
import sys
import time
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from schemas.base import merge
from schemas.errors import ConfigError, Unsupported
from tests.attacks.healthy import NEWER, OF_TEXTS, VARIANTS, certified, report, row_of
from tests.attacks.planted.changes import GPT2, TEXTS, Change
from tests.attacks.short_trainings import spec_of
from transformer_core.study.checks import violations


def study(draw: random.Random) -> Change:
    """Draws a study: its model, batches and training."""
    heads = draw.choice((2, 4))
    width = heads * draw.choice((6, 8, 12, 16))
    shape: Change = {"d_model": width, "d_ff": draw.choice((24, 40, 64, 96)), "heads": heads}
    training: Change = {
        "seed": draw.randrange(1000),
        "label_smoothing": draw.choice((0.0, 0.1, 0.2)),
        "clip_norm": draw.choice((0.0, 0.3, 1.0)),
        "schedule": {"kind": "constant", "peak": draw.choice((3e-4, 1e-3, 3e-3))},
    }
    shared: Change = {"training": training, "batching": {"pairs": draw.choice((6, 8, 12))}}
    if draw.random() < 0.3:
        layers, tied = draw.randint(1, 3), draw.random() < 0.5
        text = {**shape, "layers": layers, "tied_embeddings": tied, "kv_heads": heads}
        return merge(merge(draw.choice((TEXTS, GPT2)), {"model": text}), shared)
    layers = {f"{side}_layers": draw.randint(1, 3) for side in ("encoder", "decoder")}
    other = {"norm": draw.choice(("pre", "post")), "tied_embeddings": draw.random() < 0.5}
    return merge({"model": {**shape, **layers, **other}}, shared)


def variant(draw: random.Random, base: Change) -> tuple[Change, str]:
    """Draws one to three techniques, and gives the class of their certificate."""
    texts = base["model"].get("kind") == "decoder_only"
    known = OF_TEXTS if texts else [*VARIANTS, *NEWER]
    chosen = draw.sample(known, draw.randint(1, 3))
    changes, kinds = zip(*chosen, strict=True)
    return reduce(merge, changes, {}), "statistical" if "statistical" in kinds else "tolerance"


def drawn(draw: random.Random) -> tuple[Change, Change, str, float]:
    """Draws a study, a variant that its checks accept, the variant's class, and its dropout."""
    while True:
        base = study(draw)
        change, kind = variant(draw, base)
        try:
            if not [*violations(spec_of(change, base))]:
                return base, change, kind, draw.choice((0.0, 0.1, 0.3))
        except (ConfigError, ValueError):
            continue


def main() -> int:
    """Draws and certifies until the time is over; the exit status is 1 after a false alarm."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.healthy", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="time (default: 600)")
    parser.add_argument("--seed", type=int, default=1, help="of the draws (default: 1)")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    given = parser.parse_args()
    torch.set_num_threads(1)
    draw, end = random.Random(given.seed), time.monotonic() + given.seconds
    rows: list[dict[str, Any]] = []
    while time.monotonic() < end:
        base, change, kind, dropout = drawn(draw)
        try:
            row = row_of(certified(base, change, kind, dropout))
        except (Unsupported, RuntimeError) as error:
            print(f"does not run: {json.dumps(change)}: {error}", flush=True)
            continue
        rows.append({"study": base, "change": change, "class": kind, "dropout": dropout} | row)
        print(len(rows), kind, row["status"], row["nearest"], f"{row['share']:.2f}", flush=True)
    return report(rows, "variants", given.output)


if __name__ == "__main__":
    sys.exit(main())
