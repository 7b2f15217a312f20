"""Shards on disk for a capture, and a fake Nsight Systems."""

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.config.run_spec import RunSpec
from schemas.results import Shard
from tests.records import manifest, topology

VOCABULARY = 200


def write_shards(folder: Path, pairs: int = 400, vocabulary: int = VOCABULARY) -> Path:
    """Writes pairs of random ids as both splits below ``folder``; returns the folder."""
    random = np.random.default_rng(0)
    sides = [
        [random.integers(3, VOCABULARY, random.integers(4, 24)) for _ in range(pairs)]
        for _ in range(2)
    ]
    arrays = [pa.array(side, pa.large_list(pa.uint8())) for side in sides]
    source_tokens, target_tokens = (sum(map(len, side)) for side in sides)
    batch = pa.record_batch(arrays, names=["source", "target"])
    for split in ("train", "validation"):
        place = folder / "shards" / split
        place.mkdir(parents=True)
        file = place / "0.arrow"
        with pa.ipc.new_file(str(file), batch.schema) as writer:
            writer.write_batch(batch)
        shard = Shard(
            file=file.name,
            pairs=pairs,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            bytes=file.stat().st_size,
            sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        made = manifest(
            split=split,
            pairs=pairs,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            id_type="uint8",
            vocabulary=vocabulary,
            shards=[shard],
        )
        (place / "manifest.json").write_text(made.model_dump_json())
    return folder


def spec_of(device: str = "cpu", **sections: Any) -> RunSpec:
    """A model whose gradients take a visible time to reduce, with small batches."""
    model = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 256, "d_ff": 1024, "heads": 4}
    base: dict[str, Any] = {
        "variant": "profiled",
        "batching": {"kind": "fixed_size", "pairs": 16},
        "model": {"kind": "transformer", **model},
        "training": {
            "steps": 4,
            "validate_every": 1,
            "schedule": {"kind": "constant", "peak": 1e-3},
        },
        "machine": {"device": device, "threads": 1},
        "measurement": {"warmup_steps": 0, "window_steps": 1},
    }
    return RunSpec.model_validate(base | sections)


def help_of(options: dict[str, str]) -> str:
    said = "".join(f"\n\t{flag}\n\n\t   {values}.\n" for flag, values in options.items())
    return f"\nusage: nsys profile [<args>] [application] [<application args>]\n{said}"


_ALL = {
    "-c, --capture-range=": "Possible values are none, cudaProfilerApi, nvtx, hotkey",
    "--export=<format>[,<format>...]": "Possible formats are: none sqlite text json",
    "--kill=": "Possible values are 'none', 'sigkill', 'sigterm', or signal number",
    "-f, --force-overwrite=": "Possible values are 'true' or 'false'",
    "-o, --output=": "Output report filename",
    "-s, --sample=": "Possible values are 'cpu' or 'none'",
    "-t, --trace=": "Possible values are 'cuda', 'nvtx', 'osrt' or 'none'",
}
OLD_HELP = help_of(_ALL | {"--stop-on-range-end=": "Possible values are 'true' or 'false'"})
"""As of 2020: no cpuctxsw, no graph trace, another option for the end of the range."""
NEW_HELP = help_of(
    _ALL
    | {
        "--capture-range-end=": "Possible values are 'none', 'stop', 'stop-shutdown', 'repeat[:N]'",
        "--cpuctxsw=": "Possible values are 'process-tree', 'system-wide' or 'none'",
        "--cuda-graph-trace=": "Possible values are 'graph' or 'node'",
    }
)


def fake_nsys(folder: Path, said: str = "", code: int = 0) -> Path:
    """Writes a shell script ``nsys`` in ``folder``; returns the folder. ``nsys profile`` leaves the
    files of ``folder/left``, prints ``said`` and ends with ``code``, but names no file without RANK;
    ``nsys export`` leaves the files of ``folder/exported``."""
    for name in ("left", "exported"):
        (folder / name).mkdir(parents=True)
    (folder / "help").write_text(NEW_HELP)
    program = folder / "nsys"
    program.write_text(
        f"""#!/bin/sh
cd {folder}
for word; do
    case "$word" in --output=*) output="${{word#--output=}}" ;; esac
done
case "$1 $2" in
    "--version ") echo "NVIDIA Nsight Systems version 2026.1.1.1-abc" ;;
    "profile --help") cat help ;;
    profile*) test "$RANK" = 0 || exit 2; cp -r left/. "${{output%/*}}"; echo "{said}"; exit {code} ;;
    export*) cp -r exported/. "${{output%/*}}" ;;
esac
"""
    )
    program.chmod(0o755)
    return folder


def write_trained(folder: Path) -> None:
    """Writes the record of rank 0 after a successful training."""
    where = topology(device="cuda", threads_per_rank=1).model_dump(mode="json")
    record = {"rank": 0, "files": [], "step_seconds": [0.1], "ddp": []}
    (folder / "rank-0.json").write_text(json.dumps({"rank": record, "topology": where}))


def write_export(folder: Path, kernels: int, ranges: int) -> Path:
    """Writes an SQLite export of rank 0 with these numbers of rows, and its report."""
    (folder / "rank-0.nsys-rep").write_bytes(b"report")
    file = folder / "rank-0.sqlite"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE other (x INTEGER)")
        for table, count in (("CUPTI_ACTIVITY_KIND_KERNEL", kernels), ("NVTX_EVENTS", ranges)):
            if count:
                database.execute(f"CREATE TABLE {table} (start INTEGER)")
                database.executemany(f"INSERT INTO {table} VALUES (?)", [(0,)] * count)
    return file
