"""Dropout is measured correctly with known inputs, at any rate and for narrow models."""

from typing import Any

import pytest
import torch

from schemas.base import merge
from tests.attacks.short_trainings import spec_of
from tests.training.small_training import small_store
from transformer_core.certify import dropout as module
from transformer_core.certify.dropout import (
    enough_tokens,
    known_dropout,
    readable,
    readable_vocabulary,
)
from transformer_core.certify.dropout_bounds import judge_dropout
from transformer_core.parallel.topology import Process
from transformer_core.training.assemble import assemble

ONE = Process(0, 1, 0, 1, torch.device("cpu"))


def judged(dropout: float, width: int, heads: int, change: dict[str, Any]) -> list[Any]:
    model = {"dropout": dropout, "d_model": width, "d_ff": 2 * width, "heads": heads}
    spec = spec_of(merge({"model": model}, change), {})
    vocabulary = readable_vocabulary(spec, 2_000)
    assert vocabulary is not None
    setup = assemble(readable(spec), ONE, vocabulary, small_store(), small_store(9, seed=1))
    return judge_dropout(known_dropout(setup, vocabulary), dropout)


@pytest.mark.slow
@pytest.mark.parametrize(("dropout", "width", "heads", "seed"), [(0.3, 24, 4, 2), (0.5, 128, 8, 1)])
def test_correct_dropout_is_accepted(dropout, width, heads, seed):
    for deviation in judged(dropout, width, heads, {"training": {"seed": seed}}):
        assert deviation.measured <= deviation.bound, deviation.where


@pytest.mark.slow
def test_dropping_too_much_is_detected(monkeypatch):
    """By a tenth, at a rate of a half."""
    before = module.KnownDropout.read

    def with_another(self: Any) -> Any:
        for part in self.setup.module.modules():
            if isinstance(getattr(part, "dropout", None), float):
                part.dropout = 0.55
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.55
        return before(self)

    monkeypatch.setattr(module.KnownDropout, "read", with_another)
    found = judged(0.5, 128, 4, {})
    assert any(deviation.measured > deviation.bound for deviation in found)


@pytest.mark.parametrize(("dropout", "tokens"), [(0.0, 16), (0.1, 16), (0.2, 16), (0.5, 64)])
def test_enough_tokens_show_an_encoders_dropout(dropout, tokens):
    assert enough_tokens((1 - dropout) ** 2) == tokens
