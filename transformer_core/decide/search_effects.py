"""The effects of techniques and of their pairs, as far as measurements tell.

The logarithm of a combination's throughput over that of the baseline is modelled as a sum: an effect
of each of its techniques, and one of each pair of them. All are normally distributed, and every
session narrows their distribution (Bayesian linear regression; Bishop, Pattern Recognition and
Machine Learning, 2006, 3.3). So a session tells something about combinations that took no part in
it, too, and a single noisy ratio does not outweigh everything else.

A search measures combinations that are the best for effects drawn from this distribution (Thompson
1933, doi:10.1093/biomet/25.3-4.285): most often those that are likely to be good, now and then those
about which little is known. Draws use Matheron's rule (Wilson et al. 2020,
arXiv:2002.09309), which needs no matrix of all effects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

Parts = frozenset[str]
Array = NDArray[np.float64]

UNKNOWN = 0.1  # standard deviation of the effect of a technique that was not measured alone
IN_PAIRS = 0.03
"""Usual standard deviation of what two techniques gain or lose by being together. Measurements may
show that it is larger: twice as much is one standard deviation of its logarithm away."""
FACTORS = (1.0, 2.0, 4.0)  # considered: more would make every combination look possible
REMEMBERED = 2_000  # combinations whose features and steps are kept: some 50 MB
LEAST_NOISE = 0.002
"""Least standard deviation of a measured logarithm: a short run never tells more."""


class Noise(NamedTuple):
    """How measurements of one session deviate, as standard deviations of logarithms of ratios."""

    own: float  # of each ratio by itself
    common: float  # of all ratios together, since they have the same reference

    @classmethod
    def of_ratios(cls, deviation: float) -> "Noise":
        """The noise of ratios with this standard deviation. The reference runs in several
        processes, so it has the smaller part: a fourth of the variance, if they are three."""
        deviation = max(deviation, LEAST_NOISE)
        return cls(deviation * 0.75**0.5, deviation * 0.25**0.5)


@dataclass
class Effects:
    """The distribution of the effects of ``parts`` and of their pairs."""

    parts: tuple[str, ...]
    alone: Mapping[str, tuple[float, float]]  # of techniques measured alone: effect and error
    random: np.random.Generator

    def __post_init__(self) -> None:
        self._place = {part: place for place, part in enumerate(self.parts)}
        self._pairs = np.array([*combinations(range(len(self.parts)), 2)], int).reshape(-1, 2)
        # A search asks for the same combinations again and again.
        self._features = lru_cache(REMEMBERED)(self._features_of)
        first = [self.alone.get(part, (0.0, UNKNOWN)) for part in self.parts]
        self._first = np.array([effect for effect, _ in first] + [0.0] * len(self._pairs))
        self._errors = np.array([max(error, LEAST_NOISE) for _, error in first])
        self._rows = np.zeros((0, len(self._first)))
        self._found = np.zeros(0)
        self._noise = np.zeros((0, 0))
        self._update()

    def learn(self, measured: Mapping[Parts, float], noise: Noise) -> None:
        """Takes in the logarithms that one session has measured."""
        if not measured:
            return
        count = len(measured)
        self._rows = np.vstack([self._rows, [self._features(parts) for parts in measured]])
        self._found = np.concatenate([self._found, [*measured.values()]])
        self._noise = block_diag(self._noise, noise.own**2 * np.eye(count) + noise.common**2)
        self._update()

    def drawn(self) -> Array:
        """Effects drawn from the distribution."""
        effects = self._first + self._deviations * self.random.standard_normal(len(self._first))
        noise = self._root @ self.random.standard_normal(len(self._found))
        return effects + self._gain @ (self._found - self._rows @ effects - noise)

    def speed(self, parts: Parts, effects: Array | None = None) -> float:
        """Logarithm of the throughput over that of the baseline, by these effects or the mean."""
        return float(self._features(parts) @ (self.mean if effects is None else effects))

    def step(self, parts: Parts, over: Parts) -> tuple[float, float]:
        """Logarithm of the throughput of one combination over that of another, and its standard
        deviation."""
        row = self._features(parts) - self._features(over)
        spread = row * self._deviations**2
        variance = spread @ row - (spread @ self._rows.T) @ (row @ self._gain)
        return float(row @ self.mean), sqrt(max(float(variance), 0.0))

    def _features_of(self, parts: Parts) -> Array:
        there = np.zeros(len(self.parts))
        there[[self._place[part] for part in parts]] = 1.0
        return np.concatenate([there, there[self._pairs[:, 0]] * there[self._pairs[:, 1]]])

    def _update(self) -> None:
        self._deviations = max(map(self._deviations_for, FACTORS), key=self._likelihood)
        spread = self._deviations[:, None] ** 2 * self._rows.T
        self._gain = np.linalg.solve(self._rows @ spread + self._noise, spread.T).T
        self._root = np.linalg.cholesky(self._noise)
        self.mean = self._first + self._gain @ (self._found - self._rows @ self._first)

    def _deviations_for(self, factor: float) -> Array:
        """The standard deviation of each effect before any session."""
        return np.concatenate([self._errors, np.full(len(self._pairs), factor * IN_PAIRS)])

    def _likelihood(self, deviations: Array) -> float:
        """Logarithm of the likelihood of these standard deviations by all measurements."""
        covariance = (self._rows * deviations**2) @ self._rows.T + self._noise
        residual = self._found - self._rows @ self._first
        fit = residual @ np.linalg.solve(covariance, residual) + np.linalg.slogdet(covariance)[1]
        usual = np.log2(deviations[-1] / IN_PAIRS) if len(self._pairs) else 0.0
        return -0.5 * float(fit + usual**2)
