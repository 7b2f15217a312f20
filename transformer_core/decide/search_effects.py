"""The effects of techniques and of their pairs, as far as measurements tell.

The logarithm of a combination's throughput over that of the baseline is modelled as a sum: an effect
of each of its techniques, and one of each pair of them. All are normally distributed, and every
session narrows their distribution (Bayesian linear regression; Bishop, Pattern Recognition and
Machine Learning, 2006, 3.3). So a session tells something about combinations that took no part in
it, too, and a single noisy ratio does not outweigh everything else.

Most pairs hardly change each other, and a few clash: bfloat16 and unpadded tokens halve the speed
together where each gains alone. So a pair is either weak or strong, and which are strong is sampled
(George & McCulloch 1993, doi:10.1080/01621459.1993.10476353). If all pairs had one distribution, a
slow combination would make all its pairs look bad, and the search would avoid all of them.

A search measures combinations that are the best for effects drawn from this distribution (Thompson
1933, doi:10.1093/biomet/25.3-4.285): most often those that are likely to be good, now and then those
about which little is known. Draws use Matheron's rule (Wilson et al. 2020,
arXiv:2002.09309), which needs no matrix of all effects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from math import log, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.special import expit

Parts = frozenset[str]
Array = NDArray[np.float64]

UNKNOWN = 0.1  # standard deviation of the effect of a technique that was not measured alone
WEAK = 0.02  # of what two techniques usually gain or lose by being together
STRONG = 0.3  # of the same where they clash or help each other
SHARE = 0.05  # of pairs that are strong
SETTLING, KEPT = 10, 30
"""Sweeps through all pairs until it no longer matters which of them were strong at the start, and
sweeps whose results are kept."""
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


class Fit(NamedTuple):
    """The distribution of all effects after the measurements, given which pairs are strong."""

    deviations: Array  # of each effect before the measurements
    gain: NDArray[np.floating[Any]]  # how far each measured logarithm moves each effect
    mean: Array


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
        self._strong = np.zeros(len(self._pairs), bool)
        self._rows = np.zeros((0, len(self._first)))
        self._found = np.zeros(0)
        self._noise = np.zeros((0, 0))

    def learn(self, measured: Mapping[Parts, float], noise: Noise) -> None:
        """Takes in the logarithms that one session has measured."""
        if not measured:
            return
        count = len(measured)
        self._rows = np.vstack([self._rows, [self._features(parts) for parts in measured]])
        self._found = np.concatenate([self._found, [*measured.values()]])
        self._noise = block_diag(self._noise, noise.own**2 * np.eye(count) + noise.common**2)
        for known in ("_fits", "mean"):  # computed again when next needed
            self.__dict__.pop(known, None)

    def drawn(self) -> Array:
        """Effects drawn from the distribution."""
        fit = self._fits[self.random.integers(len(self._fits))]
        effects = self._first + fit.deviations * self.random.standard_normal(len(self._first))
        noise = np.linalg.cholesky(self._noise) @ self.random.standard_normal(len(self._found))
        return effects + fit.gain @ (self._found - self._rows @ effects - noise)

    def speed(self, parts: Parts, effects: Array | None = None) -> float:
        """Logarithm of the throughput over that of the baseline, by these effects or the mean."""
        return float(self._features(parts) @ (self.mean if effects is None else effects))

    def step(self, parts: Parts, over: Parts) -> tuple[float, float]:
        """Logarithm of the throughput of one combination over that of another, and its standard
        deviation."""
        row = self._features(parts) - self._features(over)
        spreads = [row * fit.deviations**2 for fit in self._fits]
        within = [
            spread @ row - (spread @ self._rows.T) @ (row @ fit.gain)
            for spread, fit in zip(spreads, self._fits, strict=True)
        ]
        between = np.var([row @ fit.mean for fit in self._fits])
        return float(row @ self.mean), sqrt(max(float(np.mean(within) + between), 0.0))

    def _features_of(self, parts: Parts) -> Array:
        there = np.zeros(len(self.parts))
        there[[self._place[part] for part in parts]] = 1.0
        return np.concatenate([there, there[self._pairs[:, 0]] * there[self._pairs[:, 1]]])

    @cached_property
    def mean(self) -> Array:
        """The mean of each effect."""
        return np.mean([fit.mean for fit in self._fits], axis=0)

    @cached_property
    def _fits(self) -> list[Fit]:
        for _ in range(SETTLING):
            self._sample()
        return [self._fit() for _ in range(KEPT)]

    def _deviations(self) -> Array:
        """The standard deviation of each effect before any session."""
        return np.concatenate([self._errors, np.where(self._strong, STRONG, WEAK)])

    def _fit(self) -> Fit:
        self._sample()
        deviations = self._deviations()
        spread = deviations[:, None] ** 2 * self._rows.T
        gain = np.linalg.solve(self._rows @ spread + self._noise, spread.T).T
        mean = self._first + gain @ (self._found - self._rows @ self._first)
        return Fit(deviations, gain, mean)

    def _sample(self) -> None:
        """Draws for each pair whether it is strong, given all others (Gibbs sampling)."""
        rows = self._rows[:, len(self.parts) :]
        covariance = (self._rows * self._deviations() ** 2) @ self._rows.T + self._noise
        inverse = np.linalg.inv(covariance)
        residual = self._found - self._rows @ self._first
        seen = rows.any(axis=0)
        self._strong[~seen] = self.random.random(np.count_nonzero(~seen)) < SHARE
        for pair in self.random.permutation(np.flatnonzero(seen)):
            sign = -1 if self._strong[pair] else 1
            change = sign * (STRONG**2 - WEAK**2)
            # The covariance changes by a matrix of rank one (Sherman & Morrison 1950).
            along = inverse @ rows[:, pair]
            growth = 1 + change * (rows[:, pair] @ along)
            fit = log(growth) - change * (residual @ along) ** 2 / growth
            if self.random.random() < expit(sign * log(SHARE / (1 - SHARE)) - 0.5 * fit):
                self._strong[pair] = not self._strong[pair]
                inverse -= change / growth * np.outer(along, along)
