"""MarianMT of the transformers library behind the interface of a model."""

import builtins

import pytest
import torch

from schemas.config.model import HuggingFace, Transformer
from schemas.errors import Unsupported
from tests.models.token_batches import pairs
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.huggingface import POSITIONS
from transformer_core.models.registry import build_model

pytest.importorskip("transformers")

V = 41
SIZES = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "heads": 2}


def build(seed=1, vocabulary=V, **fields):
    torch.manual_seed(seed)
    spec = HuggingFace(kind="huggingface", **{**SIZES, "dropout": 0.0, **fields})
    return build_model(spec, vocabulary)


def parameters(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("tied", [True, False])
def test_is_as_large_as_this_projects_model(tied):
    fields = {"tied_embeddings": tied, "d_model": 32, "d_ff": 128, "heads": 4}
    theirs = parameters(build(vocabulary=500, **fields))
    with torch.device("meta"):
        ours = parameters(build_model(Transformer(**{**SIZES, **fields}), 500))
    assert theirs == pytest.approx(ours, rel=0.02)


def test_takes_every_setting():
    fields = {"encoder_layers": 1, "decoder_layers": 3, "d_model": 24, "d_ff": 20, "heads": 3}
    config = build(**fields, dropout=0.25).marian.config
    assert (config.encoder_layers, config.decoder_layers) == (1, 3)
    assert (config.encoder_ffn_dim, config.decoder_ffn_dim) == (20, 20)
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (3, 3)
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.25,) * 3
    assert (config.pad_token_id, config.bos_token_id, config.decoder_start_token_id) == (0, 1, 1)


def test_equals_the_librarys_own_forward():
    source, target = pairs(V)
    model = build().eval()
    marian = model.marian(
        input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target
    )
    torch.testing.assert_close(model(source, target), marian.logits)


def test_a_source_beyond_the_positions_is_refused():
    model = build()
    source, target = torch.full((1, POSITIONS + 1), 5), torch.full((1, 2), 5)
    with pytest.raises(ValueError, match=r"source of 1025 tokens .*filter\.max_tokens"):
        model(source, target)
    with pytest.raises(ValueError, match="target of 1025 tokens"):
        model(target, source)


def test_a_machine_without_the_library_is_unsupported(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "transformers":
            raise ImportError("No module named 'transformers'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Unsupported, match=r"pip install .*\[models\]"):
        build()
