"""The best length of a comparison's windows on this machine: ``python -m benchmarks.windows``.

Times every step of one small training. The steps are then assigned to two sides that take turns, in
windows of different lengths. Both sides are the same, so the ratio of their speeds should be 1, and
the scatter of its estimates is the noise of the machine.
"""

import argparse
import math
import sys
import time

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import mstats

from transformer_core.measure.session_ratio import TRIM

WINDOWS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)


def step_seconds(seconds: float) -> NDArray[np.float64]:
    """[steps] of a layer that trains for that long."""
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    inputs = torch.randn(16, 16, 128)
    times = [time.perf_counter()]
    while times[-1] < times[0] + 1 + seconds:
        layer.zero_grad()
        layer(inputs).sum().backward()
        times.append(time.perf_counter())
    steps = np.diff(times)
    return steps[np.cumsum(steps) > 1]  # the first second is warm-up


def scatter(steps: NDArray[np.float64], window: float, turns: float) -> tuple[int, int, float]:
    """The number of rounds of windows of ``window`` seconds that fit into ``turns`` seconds, the
    number of estimates of the log-ratio from so many rounds, and their standard deviation, NaN for
    fewer than two."""
    length = max(1, round(window / float(np.median(steps))))
    windows = steps[: len(steps) // (2 * length) * 2 * length].reshape(-1, 2, length).mean(2)
    logs = np.log(windows[:, 0] / windows[:, 1])
    rounds = max(5, round(turns / (2 * length * float(np.median(steps)))))
    parts = logs[: len(logs) // rounds * rounds].reshape(-1, rounds)
    means = [mstats.trimmed_mean(part, (TRIM, TRIM)) for part in parts]
    return rounds, len(parts), float(np.std(means, ddof=1)) if len(parts) > 1 else math.nan


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.windows", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=120, help="to train (default: 120)")
    parser.add_argument("--turns", type=float, default=4, help="seconds of a session (default: 4)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: 1)")
    options = parser.parse_args()
    if options.seconds < 5 * options.turns:
        parser.error(f"--seconds {options.seconds:g}: give at least five times --turns")
    torch.set_num_threads(options.threads)
    steps = step_seconds(options.seconds)
    print(f"{len(steps):,} steps of {1e3 * float(np.median(steps)):.1f} ms in the median")
    print("| window, ms | rounds | estimates | scatter, % |\n|---:|---:|---:|---:|")
    for window in WINDOWS:
        rounds, estimates, deviation = scatter(steps, window, options.turns)
        shown = "give more --seconds" if math.isnan(deviation) else f"{100 * deviation:.2f}"
        print(f"| {1e3 * window:g} | {rounds} | {estimates} | {shown} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
