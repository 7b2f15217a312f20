"""Shards on disk for a capture, and programs that pretend to be Nsight Systems."""

import hashlib
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.config.run_spec import RunSpec
from schemas.results import Shard
from tests.records import manifest, topology

VOCABULARY = 200
HERE = Path(__file__).parent


def write_shards(folder: Path, pairs: int = 400, vocabulary: int = VOCABULARY) -> Path:
    """Pairs of random ids as training and validation split below ``folder``; the folder."""
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
    """A model whose gradients take a visible time to reduce, beside a few sentences."""
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


def fake_nsys(folder: Path, profile: str, text: str = NEW_HELP) -> Path:
    """A program ``nsys`` in ``folder`` whose ``nsys profile`` runs these lines of Python, which
    know ``output`` (without an ending) and ``program`` (the command to profile)."""
    folder.mkdir(exist_ok=True)
    path = folder / "nsys"
    body = "\n".join("    " + line for line in profile.splitlines())
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, sqlite3, subprocess, sys\n"
        f"sys.path[:0] = {[str(HERE), str(HERE.parents[1])]!r}\n"
        "words = sys.argv[1:]\n"
        "if words == ['--version']:\n"
        "    print('NVIDIA Nsight Systems version 2026.1.1.1-abc')\n"
        "elif words == ['profile', '--help']:\n"
        f"    print({text!r})\n"
        "elif words[0] == 'profile':\n"
        "    given = next(w for w in words if w.startswith('--output='))\n"
        "    output = given.removeprefix('--output=').replace('%q{RANK}', os.environ['RANK'])\n"
        "    program = words[next(i for i, w in enumerate(words) if w == sys.executable):]\n"
        f"{body}\n"
    )
    path.chmod(0o755)
    return path


def trained(output: str | Path) -> None:
    """What a worker leaves when its training went well; ``output`` ends in rank-<r>."""
    path = Path(output)
    rank = int(path.name.removeprefix("rank-"))
    where = topology(device="cuda", threads_per_rank=1).model_dump(mode="json")
    record = {"rank": rank, "files": [], "step_seconds": [0.1], "ddp": []}
    path.with_suffix(".json").write_text(json.dumps({"rank": record, "topology": where}))


def exported(output: str | Path, kernels: int, ranges: int) -> None:
    """An SQLite export with so many rows, and the report it comes from."""
    path = Path(output)
    path.with_suffix(".nsys-rep").write_bytes(b"report")
    with sqlite3.connect(path.with_suffix(".sqlite")) as database:
        for table, count in (("CUPTI_ACTIVITY_KIND_KERNEL", kernels), ("NVTX_EVENTS", ranges)):
            if count:
                database.execute(f"CREATE TABLE {table} (start INTEGER)")
                database.executemany(f"INSERT INTO {table} VALUES (?)", [(0,)] * count)
