"""The decoder against GPT-2 and Llama of the transformers library, with copied weights."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks._copied_weights import gpt2_weights, llama_weights
from schemas.config.model import DecoderOnly, HuggingFaceCausal
from tests.models.test_models_decoder_only import SIZES, V
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.registry import build_model

pytest.importorskip("transformers")

GPT2 = {
    "positions": {"kind": "learned", "length": 1024},
    "norm": {"kind": "layer"},
    "feed_forward": {"kind": "gelu"},
    "bias": True,
}
UNTIED = {"tied_embeddings": False}
MODELS = {
    "gpt2": (GPT2, {"tied_embeddings": True}, gpt2_weights),
    "llama": (
        UNTIED | {"kv_heads": 2},
        UNTIED | {"options": {"num_key_value_heads": 2}},
        llama_weights,
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)


def pair(name):
    """Our model, the library's with the same weights, and the translation of names."""
    ours, theirs, translate = MODELS[name]
    own = build_model(DecoderOnly(**SIZES, **ours), V)
    spec = HuggingFaceCausal(kind="huggingface_causal", architecture=name, **SIZES, **theirs)
    torch.manual_seed(4)
    other = build_model(spec, V)
    with torch.no_grad():
        for p in other.parameters():  # zero biases would hide mix-ups
            p.add_(torch.randn_like(p) * 0.05)
    own.load_state_dict(translate(other.causal.state_dict(), SIZES["layers"]))
    return own.eval(), other.eval(), translate


@every_model
def test_logits_loss_and_gradients_are_those_of_the_library(name):
    own, other, translate = pair(name)
    generator = torch.Generator().manual_seed(5)
    tokens, targets = (torch.randint(4, V, (3, 12), generator=generator) for _ in range(2))
    tokens[1, 8:] = targets[1, 8:] = PAD
    logits = other.causal(tokens).logits
    torch.testing.assert_close(own.logits(tokens), logits, rtol=1e-4, atol=1e-5)
    expected = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum"
    )
    loss = own(tokens, targets)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(other(tokens, targets), expected)
    loss.backward()
    expected.backward()
    gradients = {n: p.grad for n, p in other.causal.named_parameters()}
    torch.testing.assert_close(
        {n: p.grad for n, p in own.named_parameters()},
        dict(translate(gradients, SIZES["layers"])),
        rtol=1e-3,
        atol=1e-4,
    )


@every_model
def test_generated_text_equals_that_of_the_library(name):
    own, other, _ = pair(name)
    with torch.no_grad():
        (own.output or own.embedding).weight.mul_(5)
        other.causal.get_output_embeddings().weight.mul_(5)
    prompts = [[1, 5, 6, 7], [1], [1, 9]]
    found = own.generate(prompts, 8)
    assert found == other.generate(prompts, 8)
    assert len({tuple(text) for text in found}) > 1
    # The library's own loop, one prompt at a time.
    for prompt, text in zip(prompts, found, strict=True):
        tokens = other.causal.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=8,
            do_sample=False,
            suppress_tokens=[0, 1],
        )
        after = tokens[0, len(prompt) :].tolist()
        assert text == (after[: after.index(2)] if 2 in after else after)
