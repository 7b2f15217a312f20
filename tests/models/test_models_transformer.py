"""The encoder-decoder against torch's own, and its properties."""

import pytest
import torch
from torch import nn

from schemas.config.model import Transformer
from transformer_core.models.loss import token_loss_sum
from transformer_core.models.qkv_projection import Projection
from transformer_core.models.registry import build_model

V = 20
SOURCE = torch.tensor([[4, 5, 6, 7, 8], [9, 10, 11, 0, 0], [12, 0, 0, 0, 0]])
TARGET = torch.tensor([[1, 13, 14, 15], [1, 16, 17, 0], [1, 18, 0, 0]])


def build(seed=0, **changes):
    torch.manual_seed(seed)
    spec = {"d_model": 16, "d_ff": 32, "heads": 4, "dropout": 0.0} | changes
    return build_model(Transformer.model_validate(spec), V)


def randomise(model):
    """Give every parameter a value of its own: zeros and ones would hide mistakes."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)


def copy_linear(ours, theirs):
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)


def copy_attention(projections, output, theirs):
    blocks = [block for projection in projections for block in projection.blocks()]
    assert [part for part, _, _ in blocks] == ["query", "key", "value"]
    theirs.in_proj_weight.copy_(torch.cat([weight for _, weight, _ in blocks]))
    theirs.in_proj_bias.copy_(torch.cat([bias for _, _, bias in blocks]))
    copy_linear(output, theirs.out_proj)


@torch.no_grad()
def torch_transformer(model, norm, layers=2):
    """``nn.Transformer`` with the weights of ``model``."""
    ends = nn.LayerNorm(16) if norm == "pre" else None
    options = {"batch_first": True, "norm_first": norm == "pre", "dropout": 0.0}
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 4, 32, **options),
        layers,
        norm=ends,
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(16, 4, 32, **options),
        layers,
        norm=nn.LayerNorm(16) if norm == "pre" else None,
    )
    # Before the weights are copied: the constructor draws them anew.
    whole = nn.Transformer(16, 4, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    for ours, theirs in zip(model.encoder, encoder.layers, strict=True):
        attention = ours.self_attention
        copy_attention([attention.project], attention.output, theirs.self_attn)
    for ours, theirs in zip(model.decoder, decoder.layers, strict=True):
        attention = ours.self_attention
        copy_attention([attention.project], attention.output, theirs.self_attn)
        cross = ours.cross_attention
        projections = [cross.project_state, cross.project_memory]
        copy_attention(projections, cross.output, theirs.multihead_attn)
    for stack, torch_stack in ((model.encoder, encoder), (model.decoder, decoder)):
        for ours, theirs in zip(stack, torch_stack.layers, strict=True):
            copy_linear(ours.feed_forward.inner, theirs.linear1)
            copy_linear(ours.feed_forward.outer, theirs.linear2)
            for number, residual in enumerate(ours.residuals, start=1):
                copy_linear(residual.norm, getattr(theirs, f"norm{number}"))
    if norm == "pre":
        copy_linear(model.encoder_norm, encoder.norm)
        copy_linear(model.decoder_norm, decoder.norm)
    return whole


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("attention", ["reference", "sdpa"])
@pytest.mark.parametrize("qkv", ["separate", "fused"])
def test_equals_torch_transformer(norm, attention, qkv):
    model = build(norm=norm, attention={"kind": attention}, qkv={"kind": qkv})
    randomise(model)
    theirs = torch_transformer(model, norm)
    weight = model.source_embedding.weight.detach().clone().requires_grad_()

    def embed(tokens):
        return model.positions(nn.functional.embedding(tokens, weight) * 4.0)

    hidden = theirs(
        embed(SOURCE),
        embed(TARGET),
        tgt_mask=theirs.generate_square_subsequent_mask(4).isinf(),
        src_key_padding_mask=SOURCE == 0,
        memory_key_padding_mask=SOURCE == 0,
        tgt_is_causal=True,
    )
    expected = hidden @ weight.T
    logits = model(SOURCE, TARGET)
    real = TARGET != 0
    torch.testing.assert_close(logits[real], expected[real], rtol=1e-4, atol=1e-4)

    labels = TARGET.roll(-1, 1)
    token_loss_sum(logits, labels, 0.1).backward()
    nn.functional.cross_entropy(
        expected.flatten(0, 1),
        labels.flatten(),
        ignore_index=0,
        label_smoothing=0.1,
        reduction="sum",
    ).backward()
    close = {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(model.source_embedding.weight.grad, weight.grad, **close)
    for stack, torch_stack in (
        (model.encoder, theirs.encoder.layers),
        (model.decoder, theirs.decoder.layers),
    ):
        for ours, other in zip(stack, torch_stack, strict=True):
            torch.testing.assert_close(
                ours.feed_forward.inner.weight.grad, other.linear1.weight.grad, **close
            )
            torch.testing.assert_close(
                ours.self_attention.output.weight.grad,
                other.self_attn.out_proj.weight.grad,
                **close,
            )
            torch.testing.assert_close(
                ours.residuals[0].norm.weight.grad, other.norm1.weight.grad, **close
            )


def test_several_tokens_after_a_cached_prefix_are_refused():
    model = build().eval()
    memory, cache = model.encode(SOURCE), model.new_cache()
    model.decode(memory, SOURCE, TARGET, cache)
    with pytest.raises(ValueError, match="2 tokens after a cached prefix of 4"):
        model.decode(memory, SOURCE, TARGET[:, :2], cache)


def test_tied_embeddings_are_one_matrix_with_one_name():
    tied, free = build(tied_embeddings=True), build(tied_embeddings=False)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (tied, free)]
    assert sizes[1] - sizes[0] == 2 * V * 16
    for model in (tied, free):
        pointers = [tensor.data_ptr() for tensor in model.state_dict().values()]
        assert len(pointers) == len(set(pointers))


def test_initial_weights():
    model = build(d_model=64, d_ff=128, tied_embeddings=False)
    std = model.source_embedding.weight.std().item()
    assert std == pytest.approx(64**-0.5, rel=0.1)
    inner = model.encoder[0].feed_forward.inner.weight
    assert inner.abs().max().item() == pytest.approx((6 / (64 + 128)) ** 0.5, rel=0.01)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
        if isinstance(module, nn.Linear | nn.LayerNorm | Projection):
            bias = getattr(module, "bias", None)
            assert bias is None or not bias.any()


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_stays_close_and_trains(attention, dtype):
    model = build(attention={"kind": attention})
    expected = model(SOURCE, TARGET)
    with torch.autocast("cpu", dtype):
        logits = model(SOURCE, TARGET)
        loss = token_loss_sum(logits, TARGET.roll(-1, 1), 0.1)
    loss.backward()
    real = TARGET != 0
    torch.testing.assert_close(logits.float()[real], expected[real], rtol=0.1, atol=0.1)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
def test_a_sentence_of_padding_only_gives_no_nan(attention):
    model = build(attention={"kind": attention}, dropout=0.1)
    source, target = SOURCE.clone(), TARGET.clone()
    source[2] = 0
    target[2] = 0
    token_loss_sum(model(source, target), target.roll(-1, 1), 0.1).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
