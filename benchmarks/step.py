"""The speed of a training step, against the published code and other libraries: ``python -m
benchmarks.step --shards results/data/<corpus>/shards/train/manifest.json``.

Every contender runs in its own process with the same batches, allocator, threads, dropout, label
smoothing and clipping. Contenders take turns, a step of each in every round, and wait while others
train. Before that, the losses of those with the same weights are compared. The shards come from a
study, for instance from that of Multi30k, whose files may be in a folder::

    snakemake --cores all results/data/multi30k/shards/train/manifest.json \\
        --configfile config/studies/multi30k.yaml --config 'corpus={"folder": "path/to/multi30k"}'

``--task language_model`` compares this project's decoder with transformers' GPT-2 and Llama, with
the same weights, and with x-transformers' decoder, on rows of random tokens; it needs no shards.

``pip install -e ".[benchmarks,models]"`` installs the peers; one that is missing is left out, with
the reason.
"""

import argparse
import math
import multiprocessing as mp
import os
import resource
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from scipy import special
from tqdm import tqdm

from benchmarks import _contenders, _language_contenders
from benchmarks._contenders import CONTENDERS
from benchmarks._rounds import Row, missing, show, write_csv
from schemas.config.parallel import Allocator
from schemas.config.training import Fp32, Fp32Onednn
from transformer_core.run.launcher import allocator_environment
from transformer_core.training.precision import set_matmul

TASKS = {"translation": _contenders, "language_model": _language_contenders}


def work(name: str, options: argparse.Namespace, orders: Connection) -> None:
    """Runs a contender: on the order ``loss`` it reports its loss, on a number it trains on that
    batch."""
    torch.set_num_threads(options.threads)
    try:
        data: list[Any] = TASKS[options.task].batches(options)
        step, plain = TASKS[options.task].make(name, options)
    except Exception as error:  # reported to the parent, which continues without this one
        orders.send(f"{type(error).__name__}: {error}")
        return
    orders.send(None)
    while (order := orders.recv()) is not None:
        if order == "loss":
            orders.send(plain(data[0]))
            continue
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        began = time.perf_counter()
        step(data[order])
        seconds = time.perf_counter() - began
        usage = resource.getrusage(resource.RUSAGE_SELF)
        orders.send((seconds, usage.ru_minflt - faults, usage.ru_maxrss))


def matrix_rate(threads: int, form: torch.dtype = torch.float32) -> float:
    """FLOP/s of the best of some matrix products of the model's sizes, in 32 bits or ``form``, by
    torch's choice of library or by oneDNN."""
    torch.set_num_threads(threads)
    a, b = torch.randn(2048, 1024).to(form), torch.randn(1024, 1024).to(form)
    best = math.inf
    onednn = Fp32Onednn(kind="fp32_onednn")
    for precision in (Fp32(), onednn) if torch.backends.mkldnn.is_available() else (Fp32(),):
        set_matmul(precision, a.device)
        for _ in range(5):
            began = time.perf_counter()
            a @ b
            best = min(best, time.perf_counter() - began)
            if best > 0.2:
                break  # without instructions for the format, a product takes seconds
    set_matmul(Fp32(), a.device)
    return 2 * 2048 * 1024 * 1024 / best


def interval(logs: Any) -> tuple[float, float, float]:
    """Ratio and its 95 % interval from the logarithms of the rounds' ratios."""
    middle, error = np.mean(logs), np.std(logs, ddof=1) / math.sqrt(len(logs))
    # As scipy.stats.t.ppf, whose module takes half a second to import, in each process.
    half = special.stdtrit(len(logs) - 1, 0.975) * error
    return tuple(float(np.exp(x)) for x in (middle, middle - half, middle + half))  # type: ignore[return-value]


def measure(options: argparse.Namespace) -> list[Row]:
    """Compares the losses, then times the rounds."""
    task = TASKS[options.task]
    unit = options.batching if options.task == "translation" else f"rows of {options.context},"
    part = f"step, {unit} {options.size}, allocator {options.allocator}"
    context, workers = mp.get_context("spawn"), {}
    for name in options.only or task.CONTENDERS:
        workers[name], theirs = context.Pipe()
        context.Process(target=work, args=(name, options, theirs), daemon=True).start()
    failed = {name: why for name, orders in workers.items() if (why := orders.recv()) is not None}
    rows = [missing(part, name, reason) for name, reason in failed.items()]
    workers = {name: orders for name, orders in workers.items() if name not in failed}
    losses = {name: _ask(orders, "loss") for name, orders in workers.items()}
    for name, loss in losses.items():
        like, most = task.same_as(name)
        if like in losses and abs(loss - losses[like]) > most * losses[like]:
            raise SystemExit(f"{name}: loss {loss:.4f}, {like}: {losses[like]:.4f}; not the same")
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    faults: dict[str, list[int]] = {name: [] for name in workers}
    memory = dict.fromkeys(workers, 0)
    rate = low_rate = 0.0
    for turn in tqdm(range(options.warmup + options.rounds), desc="rounds", disable=None):
        rate = max(rate, matrix_rate(options.threads))
        low_rate = max(low_rate, matrix_rate(options.threads, torch.bfloat16))
        for name, orders in workers.items():
            took, missed, memory[name] = _ask(orders, turn % options.batches)
            if turn >= options.warmup:
                seconds[name].append(took)
                faults[name].append(missed)
    for orders in workers.values():
        orders.send(None)
    data = task.batches(options)
    turns = range(options.warmup, options.warmup + options.rounds)
    first = next(iter(seconds))
    for name, times in seconds.items():
        work_of = [task.flops(options, name, batch) for batch in data]
        done = sum(work_of[turn % options.batches] for turn in turns)
        ratio, low, high = interval(np.log(seconds[first]) - np.log(times))
        used = done / sum(times) / rate
        note = (
            f"ratio [{low:.2f}, {high:.2f}]; {over_peers(options, name, seconds)}"
            f"{used:.0%} of the fp32 matrix rate; "
            f"{np.median(faults[name]):,.0f} page faults; {memory[name] / 1024:,.0f} MiB; "
            f"loss {losses[name]:.4f}"
        )
        middle = float(np.median(times))
        rows.append(Row(part, name, "s", middle, min(times), max(times), ratio, note))
    print(
        f"matrix rates: {rate / 1e9:.0f} GFLOP/s in fp32, {low_rate / 1e9:.0f} in bf16, "
        f"on {options.threads} threads"
    )
    return rows


def over_peers(options: argparse.Namespace, name: str, seconds: dict[str, list[float]]) -> str:
    """The speed of a contender of this project against the fastest other library in its format."""
    if options.task == "language_model" or CONTENDERS[name].peer:
        return ""
    form = CONTENDERS[name].low
    peers = [n for n in seconds if CONTENDERS[n].peer and CONTENDERS[n].low == form]
    if not peers:
        return ""
    best = min(peers, key=lambda n: float(np.median(seconds[n])))
    ratio, low, high = interval(np.log(seconds[best]) - np.log(seconds[name]))
    return f"{ratio:.2f} [{low:.2f}, {high:.2f}] over {best}; "


def _ask(orders: Connection, order: Any) -> Any:
    orders.send(order)
    return orders.recv()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--task", choices=TASKS, default="translation")
    parser.add_argument("--shards", type=Path, metavar="MANIFEST", help="of a translation")
    parser.add_argument("--context", type=int, default=256, help="tokens of a row of text")
    parser.add_argument("--vocabulary", type=int, default=8192, help="of texts (default: 8192)")
    parser.add_argument("--batching", choices=("fixed", "tokens"), default="tokens")
    parser.add_argument("--size", type=int, help="pairs (64) or tokens (4096) of a batch")
    parser.add_argument("--batches", type=int, default=4, help="different batches (default: 4)")
    parser.add_argument(
        "--layers", type=int, default=3, help="of encoder and decoder each (default: 3)"
    )
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, help="(default: 0.1; for texts 0)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds that are timed (default: 8)")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before these (default: 2)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--allocator", choices=get_args(Allocator), default="kept")
    parser.add_argument("--only", nargs="+", metavar="CONTENDER")
    parser.add_argument("--output", type=Path, help="CSV file of the table")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: an interval needs at least 2")
    if options.task == "translation" and options.shards is None:
        parser.error("--shards: a translation needs the manifest of its shards")
    task = TASKS[options.task]
    if unknown := set(options.only or ()) - set(task.CONTENDERS):
        parser.error(f"--only {' '.join(unknown)}: choose from {', '.join(task.CONTENDERS)}")
    if options.only and task.REFERENCE not in options.only:
        options.only.insert(0, task.REFERENCE)
    if options.dropout is None:
        options.dropout = task.DROPOUT
    options.size = options.size or (64 if options.batching == "fixed" else 4096)
    # A process takes its allocator from the environment in which it starts.
    os.environ.update(allocator_environment(options.allocator))
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    rows = measure(options)
    if options.output is not None:
        write_csv(rows, options.output)
    print(show(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
