"""Text from a language model: with and without a cache, greedy and sampled, with any prompts."""

import pytest
import torch

from schemas.config.model import Sampling
from tests.models.test_models_decoder_only import V
from tests.models.test_models_decoder_only import build as decoder
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD

PROMPTS = [[BOS, 5, 6, 7], [BOS], [BOS, 9]]


def build(**fields):
    model = decoder(**fields).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.mul_(8)
    return model


def uncached(model, prompt, length):
    tokens = list(prompt)
    for _ in range(length):
        logits = model.logits(torch.tensor([tokens]))[0, -1]
        logits[[PAD, BOS]] = -torch.inf
        token = int(logits.argmax())
        if token == EOS:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


@torch.no_grad()
@pytest.mark.parametrize(
    "fields",
    [
        {"kv_heads": 2},
        {"positions": {"kind": "learned", "length": 32}},
        {"positions": {"kind": "sinusoidal"}},
        {"attention": {"kind": "reference"}},
    ],
)
def test_equals_decoding_without_a_cache(fields):
    model = build(**fields)
    found = model.generate(PROMPTS, 9)
    assert found == [uncached(model, prompt, 9) for prompt in PROMPTS]
    assert len({tuple(text) for text in found}) > 1
    assert model.generate(PROMPTS[:1], 9) == found[:1]  # without padding


@torch.no_grad()
def test_texts_end_with_eos_and_leave_the_batch():
    model = build()
    # Make EOS follow a token that only the first text has.
    first = model.generate(PROMPTS, 9)[0]
    weight = model.embedding.weight
    weight[EOS] = weight[first[3]] * 1.01
    found = model.generate(PROMPTS, 9)
    assert found == [uncached(model, prompt, 9) for prompt in PROMPTS]
    assert len(found[0]) < 9
    assert not any(EOS in text for text in found)


def test_the_seed_draws_the_text():
    model = build()
    texts = [model.generate(PROMPTS, 12, Sampling(seed=seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    fewer = model.generate(PROMPTS[:2], 12, Sampling(seed=1))
    assert fewer == texts[0][:2], "a text does not depend on the number of others"
    assert model.generate(PROMPTS, 12, Sampling(top_k=1)) == model.generate(PROMPTS, 12)
    assert model.generate(PROMPTS[:1], 12, Sampling()) != model.generate(PROMPTS[:1], 12)


def test_tokens_are_drawn_as_often_as_they_are_probable():
    model = build()
    prompts = [[BOS, 5, 6]] * 4_000
    sampling = Sampling(temperature=1, top_k=3)
    drawn = torch.tensor([text or [EOS] for text in model.generate(prompts, 1, sampling)])
    logits = model.logits(torch.tensor(prompts[:1]))[0, -1].detach()
    logits[[PAD, BOS]] = -torch.inf
    top, index = logits.topk(3)
    shares = torch.bincount(drawn.flatten(), minlength=V)[index] / len(prompts)
    assert float(shares.sum()) == pytest.approx(1)
    # Five standard deviations of 4,000 draws.
    torch.testing.assert_close(shares, top.softmax(-1), rtol=0, atol=0.04)
    cold = model.generate(prompts[:50], 1, Sampling(temperature=0.001))
    assert cold == model.generate(prompts[:50], 1)


def test_bad_calls_are_refused():
    model = build()
    with pytest.raises(ValueError, match="begin it with BOS"):
        model.generate([[BOS], []], 3)
    with pytest.raises(ValueError, match="training mode"):
        model.train().generate(PROMPTS, 3)
    assert model.eval().generate([], 3) == []
