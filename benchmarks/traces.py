"""Reading a large trace here and with another program, on one core, taking turns.

``python benchmarks/traces.py TRACE [--megabytes 300] [--rounds 3] [--peer PYTHON]``: TRACE is a
Kineto trace or an SQLite export of Nsight Systems of any size, repeated until it has so many
megabytes. Of a Kineto trace the other is HolisticTraceAnalysis, which PYTHON's environment has; of
an export it is pandas, by default that of this environment, which reads the same tables whole, joins
kernels with their launches and sums them by name. Prints seconds on the clock, seconds of the
processor (user and system), and peak memory of a process each, which reads the trace and says how its time divides; then, of the rounds with the
fewest seconds of the processor, how many times those of here the peer takes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _repeated_trace import repeat, repeat_report

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
    """A fresh process on one core that reads the trace."""
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
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
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
