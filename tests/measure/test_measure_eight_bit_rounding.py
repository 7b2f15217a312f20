"""8-bit moments: an emulated rounding, and trainings whose optimizer keeps them."""

from pathlib import Path

import pytest
import torch

from schemas.results.certificates import Checks, TensorDistance
from tests.measure.short_runs import Silent
from tests.training.small_training import VOCABULARY, small_setup, small_spec
from transformer_core.certify.checker import Checker
from transformer_core.certify.floors import MARGIN
from transformer_core.certify.short_run_worker import Recorder
from transformer_core.certify.tensors import CanonicalTensors
from transformer_core.certify.updates import kept_moments, levels, rounded
from transformer_core.training.loop import train


@pytest.mark.parametrize("signed", [True, False])
def test_levels_fill_eight_bits(signed):
    found = levels(signed)
    assert 250 <= len(found.unique()) == len(found) <= 256
    assert found[-1] == 1.0
    # A number between two levels of the first decade is off by half a part of it at the most.
    assert float(found[found > 0.1].diff().max()) < 0.9 / (64 if signed else 128) + 1e-9


def test_rounding_is_to_the_nearest_level_of_each_block_of_a_large_tensor():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5000 + 64, generator=generator, dtype=torch.float64)
    found = rounded(values, (5000, 64), signed=True)
    assert torch.equal(found[5000:], values[5000:]), "a small tensor keeps 32 bits"
    block = values[256:512]
    scale = block.abs().max()
    distances = (block[:, None] / scale - levels(True)).abs()
    assert torch.allclose((found[256:512] - block).abs(), distances.min(1).values * scale)


def checked(folder: Path) -> Checks:
    model = {"kind": "transformer", "d_model": 64, "d_ff": 64, "heads": 2, "dropout": 0.0}
    optimizer = {"kind": "adamw_8bit"}
    setup = small_setup(small_spec(model=model, training={"optimizer": optimizer, "steps": 5}))
    tensors = CanonicalTensors(setup, VOCABULARY)
    checker = Checker(setup, tensors, folder / "resumed")
    train(setup, Recorder(setup.strategy, Silent(), checker), folder, validate_last=False)
    kept = kept_moments(tensors)
    assert kept is not None
    assert all(bool(torch.isfinite(each).all()) for of in kept for each in of.values())
    found = checker.read()
    assert found is not None
    return found


def beyond(updates: list[TensorDistance]) -> set[str]:
    return {u.tensor for u in updates if u.error > max(1e-3, MARGIN * u.rounding)}


@pytest.mark.slow
def test_updates_follow_from_the_stored_moments(tmp_path, monkeypatch):
    pytest.importorskip("bitsandbytes")
    updates = checked(tmp_path).updates
    assert beyond(updates) == set()
    large = next(u for u in updates if u.tensor == "decoder.0.feed_forward.inner.weight")
    assert large.error < 1e-3, "the update itself is not rounded"
    moment = next(u for u in updates if u.tensor == f"{large.tensor}, second moment")
    assert 1e-3 < moment.error < MARGIN * moment.rounding < 0.5

    from transformer_core.training import eight_bit_adamw

    real = eight_bit_adamw.BlockwiseAdamW.step

    def forgetting(self: torch.optim.Optimizer, closure: None = None) -> object:
        done = real(self, closure)
        for state in self.state.values():
            state["state1"].fill_(128 if state["state1"].dtype == torch.uint8 else 0)
        return done

    monkeypatch.setattr(eight_bit_adamw.BlockwiseAdamW, "step", forgetting)
    lost = beyond(checked(tmp_path / "lost").updates)
    assert f"{large.tensor}, first moment" in lost
