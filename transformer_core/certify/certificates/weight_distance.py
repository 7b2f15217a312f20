"""How far two trainings from the same weights have come apart."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem
from transformer_core.common.seals import check

Tensors = Mapping[str, NDArray[Any]]

UNDETERMINED = re.compile(r"(^|\.)key\.bias$")
"""Biases of the keys add the same number to all scores of a query, which softmax takes out again:
their gradient is 0 but for rounding, and Adam makes updates of full size from that rounding."""


@dataclass(frozen=True)
class Weights:
    """The weights of two trainings at their end, and of the reference at its start."""

    run: Tensors
    reference: Tensors
    initial: Tensors


@dataclass(frozen=True)
class Apart:
    """The tensor in which two trainings differ most."""

    deviation: float
    """2-norm of the difference over the 2-norm of what the reference's training changed."""
    tensor: str
    left_out: list[str]
    """Tensors on which the loss does not depend."""


def largest_difference(weights: Weights, everything: bool) -> Apart:
    """The tensor that differs most; with ``everything``, those without a gradient count too.

    A tensor that only one of the runs has, or with another shape, differs by 1; so does one that
    the reference did not change, if it differs at all.
    """
    names = sorted(weights.run.keys() | weights.reference.keys())
    left_out = [] if everything else [name for name in names if UNDETERMINED.search(name)]
    found = {name: _deviation(weights, name) for name in names if name not in left_out}
    tensor = max(found, key=lambda name: found[name])
    return Apart(found[tensor], tensor, left_out)


def _deviation(weights: Weights, name: str) -> float:
    mine, theirs = weights.run.get(name), weights.reference.get(name)
    if mine is None or theirs is None or mine.shape != theirs.shape:
        return 1.0
    apart = np.linalg.norm(mine.astype(np.float64) - theirs)
    changed = np.linalg.norm(theirs.astype(np.float64) - weights.initial[name])
    if changed == 0:
        return float(apart > 0)
    return float(apart / changed)


def read_tensors(path: Path) -> Tensors:
    """The tensors of a safetensors file; ConfigError if there is none to read."""
    check(path)
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        remedy = f"make it again: snakemake --cores all {path}"
        problem = ConfigProblem(str(path), WHOLE_FILE, None, str(error), remedy)
        raise ConfigError([problem]) from None
