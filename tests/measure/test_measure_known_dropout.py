"""Dropout is measured correctly with known inputs, at any rate."""

from typing import Any

import pytest
import torch

from tests.attacks.short_trainings import spec_of
from tests.measure.short_runs import this_rank
from tests.training.small_training import small_store
from transformer_core.certify import dropout as module
from transformer_core.certify.dropout import (
    enough_tokens,
    known_dropout,
    readable,
    readable_vocabulary,
)
from transformer_core.certify.dropout_bounds import judge_dropout
from transformer_core.training.assemble import assemble


def wrong() -> list[str]:
    """Where dropout with a rate of a half differs from the run spec."""
    model = {"dropout": 0.5, "d_model": 128, "d_ff": 256, "heads": 8}
    spec = spec_of({"model": model}, {})
    vocabulary = readable_vocabulary(spec, 2_000)
    assert vocabulary is not None
    setup = assemble(readable(spec), this_rank(), vocabulary, small_store(), small_store(9, seed=1))
    found = judge_dropout(known_dropout(setup, vocabulary), 0.5)
    return [deviation.where for deviation in found if not deviation.holds]


@pytest.mark.slow
def test_dropping_a_tenth_too_much_is_detected(monkeypatch):
    assert wrong() == []
    before = module.KnownDropout.read

    def with_another(self: Any) -> Any:
        for part in self.setup.module.modules():
            if isinstance(getattr(part, "dropout", None), float):
                part.dropout = 0.55
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.55
        return before(self)

    monkeypatch.setattr(module.KnownDropout, "read", with_another)
    found = wrong()
    assert any(where.endswith(" dropped") for where in found)
    assert any("scaled by" in where for where in found)


@pytest.mark.parametrize(("dropout", "tokens"), [(0.0, 16), (0.1, 16), (0.2, 16), (0.5, 64)])
def test_enough_tokens_show_an_encoders_dropout(dropout, tokens):
    assert enough_tokens((1 - dropout) ** 2) == tokens
