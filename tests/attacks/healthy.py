"""Certificates of healthy variants with other seeds, shapes and numbers of threads: none may fail.

python -m tests.attacks.healthy --output healthy.json
"""

import argparse
import itertools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from schemas.base import merge
from schemas.config.measurement import LOOKS, Statistical, Tolerance
from schemas.results import Certificate
from tests.attacks.planted import changes
from tests.attacks.planted.changes import Change
from tests.attacks.planted_faults import FEW_SEEDS
from tests.attacks.short_trainings import (
    Recorded,
    certificate,
    nearest,
    recorded,
    reference,
    spec_of,
)
from transformer_core.common.files import write_text

VARIANTS: list[tuple[Change, str]] = [
    ({}, "tolerance"),
    (changes.BF16, "statistical"),
    (changes.CHECKPOINT, "tolerance"),
    (changes.ONE_PASS, "tolerance"),
    (changes.PACKED, "tolerance"),
    (changes.TWO, "tolerance"),
    (changes.FP16, "statistical"),
    ({"model": {"qkv": {"kind": "layout", "outermost": "batch"}}}, "tolerance"),
    ({"model": {"tokens": {"kind": "unpadded"}}}, "tolerance"),
    ({"training": {"loss": {"kind": "chunked", "rows": 16}}}, "tolerance"),
]
NEWER: list[tuple[Change, str]] = [
    (changes.SOFTMAX, "tolerance"),
    (changes.SOFTMAX_BF16, "statistical"),
    (changes.MASTERS, "statistical"),
    (changes.FOLDED_MASTERS, "statistical"),
    (changes.RESIDUAL, "statistical"),
    (changes.ONEDNN, "tolerance"),
    (merge(changes.BF16, changes.ONE_PASS), "statistical"),
    (merge(changes.FILLED, changes.TOGETHER), "tolerance"),
]
OF_TEXTS: list[tuple[Change, str]] = [
    ({}, "tolerance"),
    (changes.SOFTMAX, "tolerance"),
    (changes.MASTERS, "statistical"),
    (merge(changes.RESIDUAL, changes.ONE_PASS), "statistical"),
    (merge(changes.ONE_PASS, changes.TWO), "tolerance"),
    (merge(changes.CHECKPOINT, {"model": {"qkv": {"kind": "separate"}}}), "tolerance"),
]
"""Variants of language models."""
SHAPES: list[Change] = [
    {"model": {}},
    changes.WIDE,
    {"model": {"d_model": 24, "d_ff": 40, "heads": 3, "encoder_layers": 1, "decoder_layers": 3}},
    {"model": {"norm": "post"}},
    changes.UNTIED,
]
TEXT_SHAPES: list[Change] = [
    changes.TEXTS,
    merge(changes.GPT2, {"model": {"d_model": 32, "d_ff": 64}}),
    merge(
        changes.TEXTS, {"model": {"d_model": 24, "heads": 6, "layers": 3, "tied_embeddings": False}}
    ),
    merge(changes.JOINED, changes.SINUSOIDAL),
    merge(
        changes.TEXTS, {"model": {"feed_forward": {"kind": "relu"}, "d_model": 32, "kv_heads": 1}}
    ),
]
SEEDS = (1, 11, 21, 31)
HEALTHY = [
    *itertools.product(VARIANTS, SHAPES, SEEDS),
    *itertools.product(NEWER, SHAPES, SEEDS[:2]),
    *itertools.product(OF_TEXTS, TEXT_SHAPES, SEEDS[:2]),
]
"""340 of them: the change and class of the variant, the study, and its seed."""

ON_RANKS: list[tuple[Change, str, Change]] = [
    (changes.POWER, "statistical", changes.WIDE),
    (changes.COMPRESS, "statistical", changes.WIDE),
    (changes.FSDP, "tolerance", changes.WIDE),
    (changes.CENTRAL, "tolerance", changes.WIDE),
    (merge(changes.DDP, changes.MASTERS), "statistical", changes.WIDE),
    (merge(changes.DDP, merge(changes.TWO, changes.FILLED)), "tolerance", changes.WIDE),
    # Gathers all weights in bfloat16, those of normalizations too.
    (changes.FSDP_BF16, "statistical", changes.WIDE_TEXTS),
    (merge(changes.DDP, merge(changes.TWO, changes.BF16)), "statistical", changes.WIDE_TEXTS),
]
"""Variants with two ranks, and the study of each."""


def recorded_on_ranks() -> list[Recorded]:
    """This rank's records of :data:`ON_RANKS`, one after the other, with dropout."""
    return [
        recorded(spec_of(change, study), FEW_SEEDS if kind == "statistical" else 1, 0.1)
        for change, kind, study in ON_RANKS
    ]


def certified_healthy(number: int) -> Certificate:
    """The certificate of the healthy variant of this number."""
    (change, kind), study, seed = HEALTHY[number]
    large = study["model"].get("d_model", 16) >= 24
    dropout = 0.1 if large and kind == "tolerance" else 0.0
    before = torch.get_num_threads()
    torch.set_num_threads(2 if number % 4 == 3 else 1)
    try:
        return certified(merge(study, {"training": {"seed": seed}}), change, kind, dropout)
    finally:
        torch.set_num_threads(before)


def certified(base: Change, change: Change, kind: str, dropout: float) -> Certificate:
    """The certificate of a variant of the study ``base``. As in a short run, if some seeds decide
    nothing, as many more are trained."""
    usual, alone = Statistical(kind="statistical"), kind == "tolerance"
    for seeds in (1,) if alone else (usual.seeds, LOOKS * usual.seeds):
        found = recorded(spec_of(change, base), seeds, dropout)
        against = reference(json.dumps(base, sort_keys=True), seeds, dropout)
        made = certificate(Tolerance(kind="tolerance") if alone else usual, found, against)
        if made.status != "inconclusive":
            break
    return made


def row_of(found: Certificate) -> dict[str, Any]:
    """A certificate in a report: its verdict, and the quantity that is nearest to its bound."""
    near, share = nearest(found)
    return {"status": found.status, "reason": found.reason, "nearest": near, "share": share}


def report(rows: list[dict[str, Any]], name: str, output: Path) -> int:
    """Writes a report with its rows under this name; returns 1 after a false alarm, otherwise 0."""
    counts = Counter(str(row["status"]) for row in rows)
    write_text(output, json.dumps({"counts": counts, name: rows}, indent=1) + "\n")
    print(", ".join(f"{count} {status}" for status, count in counts.most_common()))
    return int(counts["not_equivalent"] > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.attacks.healthy", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--output", type=Path, required=True, help="the report to write, JSON")
    parser.add_argument("--every", type=int, default=1, help="certify only every n-th of them")
    options = parser.parse_args()
    rows = []
    for number in range(0, len(HEALTHY), options.every):
        row = {"variant": HEALTHY[number]} | row_of(certified_healthy(number))
        rows.append(row)
        print(number, row["status"], row["nearest"], f"{row['share']:.2f}", flush=True)
    return report(rows, "certificates", options.output)


if __name__ == "__main__":
    sys.exit(main())
