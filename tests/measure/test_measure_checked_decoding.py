"""A certificate checks decoding: caches, masks and positions, of both kinds of models."""

from typing import Any

import pytest
import torch

from schemas.config.run_spec import RunSpec
from schemas.results.certificates import DecodedTokens
from tests.attacks.planted.planting import arguments, swap
from transformer_core.certify.checker import plain_function
from transformer_core.certify.evaluation import checked_decoding
from transformer_core.models import language_model as decoder
from transformer_core.models.language_model import Decoder
from transformer_core.models.qkv_projection import canonical_state_dict
from transformer_core.models.registry import build_model

VOCABULARY = 30
SMALL = {"d_model": 16, "heads": 4, "d_ff": 20}
TRANSLATION: dict[str, Any] = {"model": {"kind": "transformer", **SMALL}}
TEXTS: dict[str, Any] = {
    "task": {"kind": "language_model", "context": 16, "prompt": 2, "continuation": 4},
    "model": {"kind": "decoder_only", "layers": 2, "initial_std": 0.3, **SMALL},
}
GPT2 = {
    "bias": True,
    "positions": {"kind": "learned", "length": 16},
    "norm": {"kind": "layer"},
    "feed_forward": {"kind": "gelu"},
}


def decoded(study: dict[str, Any], change: dict[str, Any] | None = None) -> DecodedTokens | None:
    spec = RunSpec.model_validate(
        {"variant": "test"} | study | {"model": study["model"] | (change or {})}
    )
    torch.manual_seed(1)
    model = build_model(spec.model, VOCABULARY)
    weights = {name: w.clone() for name, w in canonical_state_dict(model).items()}
    plain = plain_function(spec, VOCABULARY, 0.0)
    return checked_decoding(spec, model, weights, plain, torch.device("cpu"))


@pytest.mark.parametrize(
    ("study", "change"),
    [
        (TRANSLATION, {}),
        (TRANSLATION, {"norm": "post", "tied_embeddings": False}),
        (TRANSLATION, {"kind": "torch_nn"}),
        (TEXTS, {"kv_heads": 2}),
        (TEXTS, GPT2),
        (TEXTS, {"positions": {"kind": "sinusoidal"}, "feed_forward": {"kind": "relu"}}),
    ],
)
def test_healthy_decoding_is_exact_but_for_rounding(study, change):
    found = decoded(study, change)
    # The angles of rotary positions are computed in 32 bits.
    assert 0 < found.error < 1e-5
    assert found.rounding == 0.0  # not measured: no program is more exact


def everything_is_real(real: torch.Tensor, start: int) -> tuple[Any, ...]:
    return torch.ones_like(real), start


def places_with_padding(model: Any, tokens: Any, places: Any, start: int) -> tuple[Any, ...]:
    counted = torch.arange(start, start + tokens.size(1)).expand_as(tokens)
    return model, tokens, counted, start


@pytest.mark.parametrize(
    "fault",
    [
        swap(decoder, "seen_in_decoding", arguments(everything_is_real)),
        swap(Decoder, "_embed", arguments(places_with_padding)),
    ],
)
def test_faults_with_prompts_of_several_lengths_are_found(fault):
    with fault():
        found = decoded(TEXTS, GPT2)
    assert found.error > 0.01 > 10 * found.rounding > 0


def test_decoding_is_not_checked_without_room_for_it():
    assert decoded(TEXTS, GPT2 | {"positions": {"kind": "learned", "length": 10}}) is None


def test_reduced_formats_are_allowed_their_own_rounding():
    study = TRANSLATION | {"training": {"precision": {"kind": "bf16"}}}
    found = decoded(study)
    assert 1e-3 < found.error < 4 * found.rounding
