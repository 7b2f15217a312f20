"""How far trained weights have diverged."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from schemas.errors import ConfigError
from schemas.results.certificates import CourseFloor
from transformer_core.certify.bounds import (
    Tensors,
    Weights,
    _of_weights,
    changes_apart,
    read_tensors,
)

INITIAL: Tensors = {"a": np.zeros(4, np.float32), "b": np.ones((2, 2), np.float32)}
TRAINED: Tensors = {"a": np.full(4, 0.5, np.float32), "b": np.full((2, 2), 3.0, np.float32)}
ONE_LARGE = {"large": np.ones(10_000), "small": np.ones(1)}
STILL = {"a": INITIAL["a"], "b": TRAINED["b"]}


@pytest.mark.parametrize(
    ("run", "reference", "deviation", "tensor"),
    [
        (TRAINED, TRAINED, 0.0, "a"),
        # Relative to what training changed: from 1 to 3.
        (TRAINED | {"b": TRAINED["b"] + np.float32(0.02)}, TRAINED, 0.01, "b"),
        # The largest tensor does not hide a small one.
        (ONE_LARGE | {"small": np.array([1.5])}, ONE_LARGE, 0.5, "small"),
        # No bound allows missing tensors and other shapes.
        ({"a": TRAINED["a"]}, TRAINED, 1e300, "b"),
        (TRAINED | {"c": np.zeros(1)}, TRAINED, 1e300, "c"),
        (TRAINED | {"b": np.full(4, 3.0)}, TRAINED, 1e300, "b"),
        # Weights that the reference did not change must be equal.
        (STILL, STILL, 0.0, "a"),
        (STILL | {"a": INITIAL["a"] + 1e-6}, STILL, 1.0, "a"),
    ],
)
def test_the_largest_difference(run, reference, deviation, tensor):
    initial = {name: np.zeros_like(value) for name, value in reference.items()} | INITIAL
    found = changes_apart(Weights(run, reference, initial))
    largest = max(found, key=lambda name: found[name])
    assert (largest, found[largest]) == (tensor, pytest.approx(deviation, rel=1e-5))


def test_frozen_weights_do_not_lower_the_usual_floor():
    """As of a frozen model with a few tensors to adapt it, one of which shows little rounding by luck."""
    floors = {"one": 8e-3, "other": 8e-3, "lucky": 1e-6} | {f"frozen {i}": 0.0 for i in range(9)}
    initial = {name: np.zeros(1) for name in floors}
    trained = {name: np.full(1, float(floor > 0)) for name, floor in floors.items()}
    weights = Weights(trained | {"lucky": np.full(1, 1.01)}, trained, initial)
    (found,) = _of_weights(weights, CourseFloor(loss=0.0, grad_norm=0.0, weights=floors), 0.05)
    assert (found.where, found.holds) == ("lucky", True)


def test_files(tmp_path):
    save_file(dict(TRAINED), tmp_path / "good.safetensors")
    assert np.array_equal(read_tensors(tmp_path / "good.safetensors")["b"], TRAINED["b"])
    with pytest.raises(ConfigError, match="make it: snakemake"):
        read_tensors(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"123")
    with pytest.raises(ConfigError, match=r"bad\.safetensors"):
        read_tensors(tmp_path / "bad.safetensors")
