"""How far trained weights have come apart."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from schemas.errors import ConfigError
from transformer_core.certify.bounds import Tensors, Weights, changes_apart, read_tensors

INITIAL: Tensors = {"a": np.zeros(4, np.float32), "b": np.ones((2, 2), np.float32)}
TRAINED: Tensors = {"a": np.full(4, 0.5, np.float32), "b": np.full((2, 2), 3.0, np.float32)}


def apart(run: Tensors, reference: Tensors = TRAINED) -> tuple[float, str]:
    initial = INITIAL | {name: np.zeros_like(value) for name, value in reference.items()
                         if name not in INITIAL}  # fmt: skip
    found = changes_apart(Weights(run, reference, initial))
    tensor = max(found, key=lambda name: found[name])
    return found[tensor], tensor


def test_equal_weights():
    assert apart(TRAINED)[0] == 0.0


def test_a_difference_is_relative_to_what_training_changed():
    run = {"a": TRAINED["a"], "b": TRAINED["b"] + np.float32(0.02)}
    deviation, tensor = apart(run)
    assert tensor == "b"
    assert deviation == pytest.approx(0.02 / 2.0, rel=1e-5)


def test_the_largest_tensor_does_not_hide_a_small_one():
    big = {"big": np.ones(10_000), "small": np.ones(1)}
    run = {"big": np.ones(10_000), "small": np.array([1.5])}
    assert apart(run, big) == (0.5, "small")


def test_missing_tensors_and_other_shapes_differ_wholly():
    assert apart({"a": TRAINED["a"]}) == (1.0, "b")
    assert apart(TRAINED | {"c": np.zeros(1)}) == (1.0, "c")
    assert apart(TRAINED | {"b": np.full(4, 3.0)}) == (1.0, "b")


def test_what_the_reference_did_not_change_must_be_equal():
    still = {"a": INITIAL["a"], "b": TRAINED["b"]}
    assert apart(still, still)[0] == 0.0
    assert apart({"a": INITIAL["a"] + 1e-6, "b": TRAINED["b"]}, still) == (1.0, "a")


def test_files(tmp_path):
    save_file(dict(TRAINED), tmp_path / "good.safetensors")
    assert np.array_equal(read_tensors(tmp_path / "good.safetensors")["b"], TRAINED["b"])
    with pytest.raises(ConfigError, match="make it again: snakemake"):
        read_tensors(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"123")
    with pytest.raises(ConfigError, match=r"bad\.safetensors"):
        read_tensors(tmp_path / "bad.safetensors")
