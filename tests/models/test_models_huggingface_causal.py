"""Causal models of the transformers library behind the interface of a language model."""

import pytest
import torch

from schemas.config.model import HuggingFaceCausal
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.loss import one_pass_loss_sum
from transformer_core.models.registry import build_model

pytest.importorskip("transformers")

V, SIZES = 37, {"layers": 2, "d_model": 24, "d_ff": 40, "heads": 4}


def build(architecture="gpt2", **fields):
    torch.manual_seed(1)
    spec = HuggingFaceCausal(
        kind="huggingface_causal", architecture=architecture, **{**SIZES, **fields}
    )
    return build_model(spec, V)


def one_pass(hidden, output, targets):
    return one_pass_loss_sum(hidden, output, targets, 0.0)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen3", "gpt_neox"])
def test_takes_sizes_and_computes_documents_apart(architecture):
    model = build(architecture, tied_embeddings=False).eval()
    config = model.causal.config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (24, 2, 4)
    tokens = torch.randint(4, V, (2, 8), generator=torch.Generator().manual_seed(1))
    segments = torch.tensor([[0] * 3 + [1] * 5, [0] * 8])
    apart = model.logits(tokens, segments)
    for part in (slice(0, 3), slice(3, 8)):
        alone = model.logits(tokens[:1, part])
        torch.testing.assert_close(apart[:1, part], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_losses_without_all_logits_have_the_same_gradients(attention):
    tokens, targets = (
        torch.randint(4, V, (2, 8), generator=torch.Generator().manual_seed(seed))
        for seed in (1, 2)
    )
    targets[0, 5:] = PAD
    segments = torch.tensor([[0] * 3 + [1] * 5, [0] * 8])
    found = []
    for options in ({}, {"loss": one_pass}):
        model = build(attention=attention)
        loss = model(tokens, targets, segments, **options)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in model.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_sets_dropout_of_every_kind():
    config = build(dropout=0.25).causal.config
    assert (config.attn_pdrop, config.embd_pdrop, config.resid_pdrop) == (0.25,) * 3


def test_logits_that_are_more_than_a_product_take_the_whole_loss():
    model = build("granite", options={"logits_scaling": 4.0})
    tokens = torch.randint(4, V, (2, 8))
    assert model(tokens, tokens).isfinite()
    with pytest.raises(ValueError, match=r"granite.*training\.loss"):
        model(tokens, tokens, None, one_pass)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architecture": "gpt22"}, "no causal language model.*gpt2"),
        ({"options": {"n_ctxx": 3}}, r"model\.options\.n_ctxx.*gpt2"),
    ],
)
def test_what_the_library_does_not_have_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        build(**fields)


def test_documents_need_places():
    model = build("bloom", attention="eager")
    tokens = torch.randint(4, V, (2, 8))
    assert model(tokens, tokens).isfinite()
    with pytest.raises(ValueError, match=r"bloom has no position_ids"):
        model(tokens, tokens, torch.zeros_like(tokens))
