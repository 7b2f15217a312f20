"""A certificate checks decoding: caches, masks and positions, of both kinds of models."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


class Sums(nn.Module):
    """Adds up the embeddings of the source and of the target so far, one token at a time if there is a
    ``cache``."""

    padded = False  # whether padding counts
    late = False  # whether a cache forgets the token before
    mixed = False  # whether it stays with its row

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        return self.decode(self.encode(source), source, target_input)

    def encode(self, source: Tensor) -> Tensor:
        known = self.tokens(source)
        return known.sum(1) if self.padded else known.mul((source != 0)[:, :, None]).sum(1)

    def new_cache(self) -> Any:
        return Sum(self)

    def decode(self, memory: Any, source: Any, target_input: Tensor, cache: Any = None) -> Tensor:
        read = self.tokens(target_input).cumsum(1)
        if cache is not None:
            read = read + cache.total
            cache.total = 0 * read[:, -1:] if self.late else read[:, -1:]
        return self.output((read + memory[:, None]).tanh())


class Sum:
    def __init__(self, model: Sums) -> None:
        self.total: Any = 0
        self.mixed = model.mixed

    def reorder(self, rows: Tensor) -> None:
        if not self.mixed:
            self.total = self.total[rows]

    def select(self, rows: Tensor) -> None:
        self.total = self.total[rows]


def sums(spec: Any, vocabulary: int) -> nn.Module:
    model = Sums(vocabulary, spec.d_model)
    for name, value in spec.options.items():
        setattr(model, name, value)
    return model


OWN: dict[str, Any] = {
    "model": {"kind": "import", "factory": "test_measure_checked_decoding:sums", **SMALL}
}


@pytest.mark.parametrize("change", [{}, {"factory": "docs.examples.own_model:build"}])
def test_a_model_of_your_own_decodes_as_its_forward_pass_computes(change):
    found = decoded(OWN, change)
    assert found.error < 1e-5


@pytest.mark.parametrize("option", ["padded", "late", "mixed"])
def test_faults_in_decoding_a_model_of_your_own_are_found(option):
    found = decoded(OWN, {"options": {option: True}})
    assert found.error > 0.01
    assert found.rounding < 1e-5


@pytest.mark.parametrize("architecture", ["gpt2", "llama", None])
def test_models_of_another_library_decode_as_their_forward_pass_computes(architecture):
    pytest.importorskip("transformers")
    if architecture is None:
        found = decoded({"model": {"kind": "huggingface", **SMALL}})
    else:
        kind = {"kind": "huggingface_causal", "layers": 1, "architecture": architecture, **SMALL}
        found = decoded(TEXTS | {"model": kind})
    assert found.error < 1e-5


def test_decoding_is_not_checked_without_room_for_it():
    assert decoded(TEXTS, GPT2 | {"positions": {"kind": "learned", "length": 10}}) is None


def test_reduced_formats_are_allowed_their_own_rounding():
    study = TRANSLATION | {"training": {"precision": {"kind": "bf16"}}}
    found = decoded(study)
    assert 1e-3 < found.error < 4 * found.rounding
