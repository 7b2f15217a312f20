"""Width of intervals, and how often all of a study hold, by number of sessions and of rounds.

    python -m benchmarks.sessions --between 0.03 --noise 0.08

Simulates studies with the same number of windows, and judges them like real ones. On a machine whose
other users only ever lengthen windows, their times are skewed: ``--skewed``.
"""

import argparse

import numpy as np

from schemas.results import LogRatio, Pair
from transformer_core.decide.intervals import simultaneous_ratios
from transformer_core.measure.session_ratio import log_ratio_of

DESIGNS = ((2, 40), (3, 24), (4, 16), (5, 12), (6, 8), (8, 5))


def study(
    random: np.random.Generator,
    variants: int,
    sessions: int,
    rounds: int,
    between: float,
    noise: float,
    processes: int = 1,
    skewed: bool = False,
) -> list[list[LogRatio]]:
    """Log-ratios of equal sides in shared sessions. The reference runs in so many ``processes``; with
    one, half of each variance is the reference's. ``skewed`` noise is exponential, else it has a
    t-distribution."""

    def times(sides: int) -> np.ndarray:
        """[sides, sessions, rounds] logarithms."""
        shape = sides, sessions, rounds
        own = between * random.normal(size=(*shape[:2], 1))
        if skewed:
            windows = random.standard_exponential(shape)
        else:
            windows = random.standard_t(4, size=shape) / np.sqrt(2)
        return (own + noise * windows) / np.sqrt(2)

    # [variants, sessions, rounds, processes]
    logs = np.moveaxis(times(processes), 0, -1) - times(variants)[..., None]
    return [
        [log_ratio_of(Pair(str(n), "reference"), session) for session in one]
        for n, one in enumerate(logs)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sessions", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--between", type=float, default=0.03, help="deviation between sessions")
    parser.add_argument("--noise", type=float, default=0.08, help="deviation between windows")
    parser.add_argument("--processes", type=int, default=1, help="processes of the reference")
    parser.add_argument("--skewed", action="store_true", help="skewed deviations between windows")
    parser.add_argument("--studies", type=int, default=200)
    given = parser.parse_args()
    random = np.random.default_rng(1)
    for variants in (1, 16):
        for sessions, rounds in DESIGNS:
            widths, ratios, held = [], [], 0
            for _ in range(given.studies):
                size = variants, sessions, rounds
                noise = given.between, given.noise
                made = study(random, *size, *noise, given.processes, given.skewed)
                found = simultaneous_ratios(made)
                held += all(interval.low <= 1 <= interval.high for interval in found)
                ratios += [interval.median for interval in found]
                widths += [np.log(interval.high / interval.low) / 2 for interval in found]
            print(
                f"{variants} comparisons, {sessions} x {rounds}: "
                f"{np.mean(ratios) - 1:+.1%} +- {np.median(widths):.1%}, "
                f"all hold in {held / given.studies:.0%} of studies"
            )


if __name__ == "__main__":
    main()
