"""The slope of a loss with dropout."""

from typing import Any

import pytest

from schemas.base import merge
from tests.attacks.planted.changes import TEXTS
from tests.attacks.short_trainings import spec_of
from tests.measure.short_runs import this_rank
from tests.training.small_training import VOCABULARY, small_texts
from transformer_core.certify import dropout
from transformer_core.certify.dropout_bounds import SLOPE
from transformer_core.training.assemble import assemble


def slope() -> float:
    """That of a language model whose loss is curved, since its gradient is small."""
    sizes = {"layers": 1, "d_model": 16, "d_ff": 32, "heads": 2, "dropout": 0.1}
    model = {"kind": "huggingface_causal", "architecture": "gpt2", **sizes}
    spec = spec_of(merge(TEXTS, {"model": model, "training": {"seed": 2}}))
    found = dropout.dropout_moments(assemble(spec, this_rank(), VOCABULARY, *(small_texts(),) * 2))
    assert found is not None
    assert found.slope is not None
    return found.slope


def test_a_curved_loss_has_the_slope_of_its_gradient() -> None:
    pytest.importorskip("transformers")
    assert abs(slope() - 1) < SLOPE / 2


def test_a_wrong_gradient_shows_in_a_curved_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    real = dropout._draw

    def draw(*given: Any) -> tuple[float, float]:
        loss, norm = real(*given)
        return loss, 1.01 * norm

    monkeypatch.setattr(dropout, "_draw", draw)
    assert abs(slope() - 1) > 2 * SLOPE
