"""Models of the transformers library behind this project's interfaces, and this project's decoder
against GPT-2 and Llama with copied weights."""

import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from benchmarks._copied_weights import gpt2_weights, llama_weights
from schemas.config.model import (
    MARIAN_POSITIONS,
    DecoderOnly,
    HuggingFace,
    HuggingFaceCausal,
    Transformer,
)
from schemas.errors import Unsupported
from tests.models.test_models_generation import PROMPTS, uncached
from tests.models.token_batches import pairs
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.huggingface import HuggingFaceDecoder, LibraryCache
from transformer_core.models.loss import one_pass_loss_sum
from transformer_core.models.registry import build_model

# Its import takes a second, even where other tests are collected.
pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")

V = 41
SIZES = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "heads": 2}
DECODER = {"layers": 2, "d_model": 24, "d_ff": 40, "heads": 4}


def build(seed=1, vocabulary=V, **fields):
    torch.manual_seed(seed)
    spec = HuggingFace(kind="huggingface", **{**SIZES, "dropout": 0.0, **fields})
    return build_model(spec, vocabulary)


def causal(architecture="gpt2", **fields):
    torch.manual_seed(1)
    spec = HuggingFaceCausal(
        kind="huggingface_causal", architecture=architecture, **DECODER, **fields
    )
    return build_model(spec, V)


def with_large_weights(model):
    """``model``, whose continuations depend on every token."""
    for p in model.eval().parameters():
        if p.dim() == 2:
            p.mul_(8)
    return model


def texts():
    """Tokens, targets that end with padding, and the document of each token."""
    generator = torch.Generator().manual_seed(1)
    tokens, targets = (torch.randint(4, V, (2, 8), generator=generator) for _ in range(2))
    targets[0, 5:] = PAD
    return tokens, targets, torch.tensor([[0] * 3 + [1] * 5, [0] * 8])


def one_pass(hidden, output, targets):
    return one_pass_loss_sum(hidden, output, targets, 0.0)


def parameters(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_is_as_large_as_this_projects_model(tied):
    fields = {"tied_embeddings": tied, "d_model": 32, "d_ff": 128, "heads": 4}
    theirs = parameters(build(vocabulary=500, **fields))
    with torch.device("meta"):
        ours = parameters(build_model(Transformer(**{**SIZES, **fields}), 500))
    assert theirs == pytest.approx(ours, rel=0.02)


def test_takes_every_setting():
    config = causal(dropout=0.25).causal.config
    assert (config.attn_pdrop, config.embd_pdrop, config.resid_pdrop) == (0.25,) * 3
    config = causal("bert").causal.config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.0, 0.0)
    config = causal("bart").causal.config
    assert (config.decoder_layers, config.decoder_ffn_dim) == (2, 40)
    assert config.decoder_attention_heads == 4
    fields = {"encoder_layers": 1, "decoder_layers": 3, "d_model": 24, "d_ff": 20, "heads": 3}
    config = build(**fields, dropout=0.25).marian.config
    assert (config.encoder_layers, config.decoder_layers) == (1, 3)
    assert (config.encoder_ffn_dim, config.decoder_ffn_dim) == (20, 20)
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (3, 3)
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.25,) * 3
    assert config.init_std == 24**-0.5
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
    source, target = torch.full((1, MARIAN_POSITIONS + 1), 5), torch.full((1, 2), 5)
    with pytest.raises(ValueError, match=r"source of 1025 tokens .*filter\.max_tokens"):
        model(source, target)
    with pytest.raises(ValueError, match="target of 1025 tokens"):
        model(target, source)
    with pytest.raises(ValueError, match="target of 1025 tokens"):
        model.decode(source, source, target[:, :1], SimpleNamespace(length=MARIAN_POSITIONS))


def test_a_machine_without_the_library_is_unsupported(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(Unsupported, match=r"pip install .*\[models\]"):
        build()


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen3", "gpt_neox", "roberta"])
def test_takes_sizes_and_computes_documents_apart(architecture):
    model = causal(architecture, tied_embeddings=False).eval()
    config = model.causal.config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (24, 2, 4)
    tokens, _, segments = texts()
    apart = model.logits(tokens, segments)
    for part in (slice(0, 3), slice(3, 8)):
        alone = model.logits(tokens[:1, part])
        torch.testing.assert_close(apart[:1, part], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_losses_without_all_logits_have_the_same_gradients(attention):
    found = []
    for options in ({}, {"loss": one_pass}):
        model = causal(attention=attention)
        loss = model(*texts(), **options)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in model.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_models_that_cannot_take_a_loss_or_documents():
    tokens, targets, segments = texts()
    # Their logits are more than a product: with a factor, a cap, or a bias, which is 0 at first.
    for name, options in {"granite": {"logits_scaling": 4.0}, "gemma2": {}, "ctrl": {}}.items():
        model = causal(name, attention="eager", options=options)
        assert model(tokens, targets).isfinite()
        with pytest.raises(ValueError, match=rf"{name}.*training\.loss"):
            model(tokens, targets, None, one_pass)
    bloom = causal("bloom", attention="eager")
    assert bloom(tokens, targets).isfinite()
    with pytest.raises(ValueError, match=r"bloom.*takes no position_ids"):
        bloom(tokens, targets, segments)
    jamba = causal("jamba", attention="eager")  # of its layers, only one is attention
    assert jamba(tokens, targets).isfinite()
    with pytest.raises(ValueError, match=r"jamba.*would see each other.*texts: joined"):
        jamba(tokens, targets, segments)


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["mamba", "rwkv"])
def test_a_recurrent_model_continues_from_the_whole_text(architecture):
    model = with_large_weights(causal(architecture, attention="eager"))
    assert model.generate(PROMPTS, 6) == [uncached(model, prompt, 6) for prompt in PROMPTS]


def test_in_16_bits_texts_are_continued_from_cached_keys_and_values():
    """On a GPU, kernels for one token and for three then round to different numbers."""
    model = causal("llama").eval()
    rounded = []
    model.causal.register_forward_pre_hook(
        lambda *_: rounded.append(torch.is_autocast_enabled("cpu"))
    )
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert isinstance(model.new_cache(), LibraryCache)
    assert rounded == [False] * 4


def test_a_width_of_heads_that_the_library_computes_is_not_set():
    assert causal("falcon").causal.config.ffn_hidden_size == DECODER["d_ff"]


def test_every_name_of_the_feed_forward_width_is_known():
    assert causal("ctrl").causal.config.dff == DECODER["d_ff"]


@pytest.mark.parametrize(
    ("architecture", "first"), [("gpt2", 0), ("opt", 0), ("roberta", 1), ("roc_bert", 0)]
)
def test_a_row_beyond_the_table_of_positions_is_refused(architecture, first):
    model = causal(architecture, options={"max_position_embeddings": 8 + first})
    assert model(*texts()[:2]).isfinite()
    remedy = rf"row of 9 tokens .*max_position_embeddings: {9 + first}"
    with pytest.raises(ValueError, match=remedy):
        model(torch.full((1, 9), 5))
    with pytest.raises(ValueError, match=remedy):
        model.eval().generate([[1] * 7], 3)
    rotary = causal("llama", options={"max_position_embeddings": 8})
    assert rotary(torch.full((1, 9), 5)).isfinite().all()


@pytest.mark.parametrize(
    "message", ["CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory"]
)
def test_an_error_of_a_device_remains_what_it_is(monkeypatch, message):
    def failing(*_: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(HuggingFaceDecoder, "_try", failing)
    with pytest.raises(RuntimeError, match=f"^{message}"):
        causal("gpt2")


def test_unknown_architectures_and_options_are_refused():
    with pytest.raises(ValueError, match=r"not a causal language model.*gpt2"):
        causal("gpt22")
    with pytest.raises(ValueError, match=r"model\.options\.n_ctxx.*gpt2"):
        causal(options={"n_ctxx": 3})
    with pytest.raises(ValueError, match=r"gemma3 holds several models.*use gemma3_text"):
        causal("gemma3")
    # By the library's configuration, its model, and its first forward.
    for architecture, fields in {
        "qwen3": {"options": {"head_dim": 3}},
        "bloom": {},
        "olmo": {"options": {"num_attention_heads": 8}},
    }.items():
        refused = rf"{architecture} with these settings: .*; remedy: change the sizes"
        with pytest.raises(ValueError, match=refused):
            causal(architecture, **fields)


@torch.no_grad()
def test_no_model_sees_later_tokens():
    tokens, _, _ = texts()
    for architecture in ("bert", "roberta"):
        model = with_large_weights(causal(architecture))
        other = tokens.clone()
        other[:, -1] = 3
        torch.testing.assert_close(model.logits(other)[:, :-1], model.logits(tokens)[:, :-1])
        assert model.generate(PROMPTS, 6) == [uncached(model, prompt, 6) for prompt in PROMPTS]
    with pytest.raises(ValueError, match=r"xlm with these settings: .*change with later tokens"):
        causal("xlm", attention="eager")


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
    own, other = build_model(DecoderOnly(**DECODER, **ours), V), causal(name, **theirs)
    with torch.no_grad():
        for p in other.parameters():  # zero biases would hide mix-ups
            p.add_(torch.randn_like(p) * 0.05)
    own.load_state_dict(translate(other.causal.state_dict(), DECODER["layers"]))
    return own.eval(), other.eval(), translate


@every_model
def test_logits_loss_and_gradients_are_those_of_the_library(name):
    own, other, translate = pair(name)
    tokens, targets, _ = texts()
    tokens[0, 5:] = PAD
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
        dict(translate(gradients, DECODER["layers"])),
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
