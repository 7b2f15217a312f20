"""Compares this project's reader of large traces with another program, in turns on one core.

``python -m benchmarks.traces TRACE [--megabytes 300] [--rounds 3] [--peer PYTHON]``: TRACE is a
Kineto trace or an SQLite export of Nsight Systems of any size, which is repeated until it has so
many megabytes. For a Kineto trace the peer is HolisticTraceAnalysis in PYTHON's environment. For an
export it is pandas, by default that of this environment, which reads the same tables whole, joins
kernels with their launches and sums them by name. Each reads the trace in a process of its own and
breaks down its time. The program prints wall time, CPU time (user and system) and peak memory; then,
from the rounds with the least CPU time, the ratio of the two.
"""

import argparse
import gzip
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_MEASURED = """
import json, resource, sys, time
began = time.perf_counter()
{body}
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({{
    "seconds": time.perf_counter() - began,
    "processor_seconds": used.ru_utime + used.ru_stime,
    "peak_megabytes": used.ru_maxrss / 1024,
}}))
"""
_OURS = """
from transformer_core.trace.__main__ import main
main([sys.argv[1], "--output", sys.argv[1] + ".breakdown"])
"""
_PEER = """
from hta.trace_analysis import TraceAnalysis
from pathlib import Path
path = Path(sys.argv[1])
analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
analysis.get_gpu_kernel_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
"""
_PANDAS = """
import sqlite3
import pandas as pd
database = sqlite3.connect(sys.argv[1])
texts = pd.read_sql("SELECT id, value FROM StringIds", database).set_index("id")["value"]
place = "start, end, deviceId, streamId, correlationId, globalPid"
device = "CUPTI_ACTIVITY_KIND_"
kernels = pd.read_sql(f"SELECT {place}, demangledName FROM {device}KERNEL", database)
copies = pd.read_sql(f"SELECT {place}, bytes, copyKind FROM {device}MEMCPY", database)
calls = pd.read_sql(
    f"SELECT start AS launch, globalTid, correlationId, nameId FROM {device}RUNTIME", database)
marks = pd.read_sql(
    "SELECT start, end, eventType, globalTid, textId, text FROM NVTX_EVENTS", database)
marks["text"] = marks["text"].fillna(marks["textId"].map(texts))
kernels["pid"], calls["pid"] = kernels["globalPid"] // 2**24, calls["globalTid"] // 2**24
joined = kernels.merge(calls, on=["pid", "correlationId"], how="left")
joined["time"], joined["name"] = joined["end"] - joined["start"], joined["demangledName"].map(texts)
joined.groupby("name")["time"].agg(["sum", "count", "min", "max"])
copies.assign(time=copies["end"] - copies["start"]).groupby("copyKind")[["time", "bytes"]].sum()
for _, mine in joined.groupby(["pid", "deviceId"]):
    mine = mine.sort_values("start")
    before = mine["end"].cummax().shift(fill_value=0)
    (mine["end"] - mine[["start"]].max(axis=1).clip(lower=before)).clip(lower=0).sum()
"""
_SECONDS = "processor_seconds"


def measured(python: str, body: str, trace: Path) -> dict[str, Any]:
    """Reads the trace in a fresh process on one core."""
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(
        [python, "-c", _MEASURED.format(body=body), str(trace)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    if done.returncode:
        raise SystemExit(f"{python} could not read {trace}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


_NUMBER = re.compile(r'("(?:ts|correlation|External id|id|Ev Idx)": ?"?)(-?\d+)(\.\d+)?')
_MICROSECONDS = re.compile(r'"ts": ?"?(-?\d+)')


def repeat(source: Path, output: Path, size: float) -> int:
    """Writes ``source`` to ``output`` until that has ``size`` bytes; returns the number of repeats.

    Times, correlation ids and the ids of arrows increase with every repeat, so that the output is
    one long run. The text keeps the profiler's layout.
    """
    packed = source.read_bytes()
    text = (gzip.decompress(packed) if source.suffix == ".gz" else packed).decode()
    begin = text.index("[", text.index('"traceEvents"')) + 1
    _, length = json.JSONDecoder().raw_decode(text[begin - 1 :])
    end = begin - 1 + length - 1
    head, body, tail = text[:begin], text[begin:end].rstrip(), text[end:]
    times = [int(found) for found in _MICROSECONDS.findall(body)]
    # The marks at the end of a trace are long after its events.
    span = sorted(times)[-3] - sorted(times)[2] + 1000
    parts = _NUMBER.split(body)
    names, numbers, decimals, rest = (parts[k::4] for k in (1, 2, 3, 4))
    steps = [span if '"ts"' in name else 10_000_000 for name in names]
    values = [int(number) for number in numbers]
    repeats = 0
    with output.open("w") as stream:
        stream.write(head)
        written = len(head)
        while written < size:
            pieces = [parts[0]]
            for name, value, decimal, step, after in zip(
                names, values, decimals, steps, rest, strict=True
            ):
                pieces += (name, str(value + repeats * step), decimal or "", after)
            chunk = ("," if repeats else "") + "".join(pieces)
            stream.write(chunk)
            written += len(chunk)
            repeats += 1
        stream.write(tail)
    return repeats


def repeat_report(source: Path, output: Path, size: float) -> int:
    """The same for an SQLite export of Nsight Systems: repeats the rows of tables with times."""
    shutil.copyfile(source, output)
    database = sqlite3.connect(output)
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("ATTACH ? AS source", (str(source),))
    named = "SELECT name FROM source.sqlite_master WHERE type = 'table'"
    listed = {
        name: [row[1] for row in database.execute(f'PRAGMA source.table_info("{name}")')]
        for (name,) in database.execute(named)
    }
    timed = {name: columns for name, columns in listed.items() if {"start", "end"} <= {*columns}}
    ranges = [
        database.execute(f'SELECT min(start), max("end") FROM source."{name}"').fetchone()
        for name in timed
        if name.startswith("CUPTI")
    ]
    span = max(end for _, end in ranges) - min(begin for begin, _ in ranges) + 1_000_000
    steps = {"start": span, "end": span, "correlationId": 10_000_000}
    repeats, written = 1, source.stat().st_size
    while written < size:
        for name, columns in timed.items():
            moved = ", ".join(
                f'"{c}" + {repeats * steps.get(c, 0)}' if c in steps else f'"{c}"' for c in columns
            )
            database.execute(f'INSERT INTO main."{name}" SELECT {moved} FROM source."{name}"')
        database.commit()
        repeats += 1
        written = output.stat().st_size
    database.close()
    return repeats


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--megabytes", type=float, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help="interpreter that has HolisticTraceAnalysis, or pandas")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = options.trace.suffix == ".sqlite"
        options.peer = options.peer or (sys.executable if report else None)
        path = Path(folder) / ("rank0.sqlite" if report else "rank0.json")
        make = repeat_report if report else repeat
        repeats = make(options.trace, path, options.megabytes * 1e6)
        print(f"{options.trace.name} {repeats} times: {path.stat().st_size / 1e6:.0f} MB")
        sides = {"here": (sys.executable, _OURS)}
        if options.peer:
            name = "pandas" if report else "HolisticTraceAnalysis"
            sides[name] = (options.peer, _PANDAS if report else _PEER)
        best: dict[str, dict[str, Any]] = {}
        for _ in range(options.rounds):
            for name, (python, body) in sides.items():
                found = measured(python, body, path)
                print(
                    f"{name:<24}{found['seconds']:8.2f} s{found['processor_seconds']:8.2f} s of "
                    f"the processor{found['peak_megabytes']:8.0f} MB",
                    flush=True,
                )
                best[name] = min(best.get(name, found), found, key=lambda f: f[_SECONDS])
        if options.peer:
            here, peer = best.values()
            print(
                f"{peer[_SECONDS] / here[_SECONDS]:.1f} times as fast, with "
                f"{here['peak_megabytes'] / peer['peak_megabytes']:.2f} of the memory"
            )


if __name__ == "__main__":
    main()
