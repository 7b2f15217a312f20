"""The contenders of ``python -m benchmarks.step --task language_model``."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks._contenders import CPU, SAME_IN_BF16, steps_of
from benchmarks._copied_weights import gpt2_weights, llama_weights
from schemas.config.model import DecoderOnly, HuggingFaceCausal
from schemas.config.training import AdamW, Training
from transformer_core.data.tokenizing.special_tokens import UNK
from transformer_core.models.loss import one_pass_loss_sum, whole_head_loss
from transformer_core.models.registry import build_model
from transformer_core.training.optimizer import build_optimizer
from transformer_core.training.precision import build_precision

GPT2, LLAMA = "GPT-2 of transformers", "Llama of transformers"
REFERENCE, DROPOUT = GPT2, 0.0
Batch = tuple[Tensor, Tensor]  # tokens and targets, each [b, n], without padding
_GPT2_FORM: dict[str, Any] = {
    "positions": {"kind": "learned"},
    "norm": {"kind": "layer"},
    "feed_forward": {"kind": "gelu"},
    "bias": True,
}
_LLAMA_FORM: dict[str, Any] = {"tied_embeddings": False}


@dataclass(frozen=True)
class LanguageContender:
    """A model of one of two architectures, this project's or a library's."""

    like: str  # the contender of another library whose weights, or at least size, it has
    library: str = ""  # its library, if not this project's: then the loss is torch's own
    weights: bool = True  # whether it has the weights of ``like``, so that its loss must be equal
    one_pass: bool = False
    precision: dict[str, Any] = field(default_factory=lambda: {"kind": "fp32"})


_BF16, _WEIGHTS = {"kind": "bf16"}, {"kind": "bf16_weights"}
CONTENDERS: dict[str, LanguageContender] = {}
for _like in (GPT2, LLAMA):
    _form = f"{_like.partition(' ')[0]}'s form"
    CONTENDERS |= {
        _like: LanguageContender(_like, library="transformers"),
        f"this project in {_form}": LanguageContender(_like),
        f"{_form}, one-pass loss": LanguageContender(_like, one_pass=True),
        f"{_like} in bf16": LanguageContender(_like, library="transformers", precision=_BF16),
        f"{_form}, one-pass loss in bf16": LanguageContender(_like, "", True, True, _BF16),
        f"{_form}, weights in bf16 too": LanguageContender(_like, precision=_WEIGHTS),
    }
CONTENDERS["x-transformers"] = LanguageContender(LLAMA, "x_transformers", weights=False)


def batches(options: argparse.Namespace) -> list[Batch]:
    """Rows of random tokens, the same for all contenders: they do not change a step's time."""
    generator = torch.Generator().manual_seed(1)
    rows = max(1, options.size // options.context)
    shape = (rows, options.context + 1)
    drawn = [
        torch.randint(UNK + 1, options.vocabulary, shape, generator=generator)
        for _ in range(options.batches)
    ]
    return [(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()) for tokens in drawn]


def own_spec(options: argparse.Namespace, like: str) -> DecoderOnly:
    """This project's model of the form of ``like``."""
    form = _GPT2_FORM if like == GPT2 else _LLAMA_FORM
    return DecoderOnly.model_validate(_sizes(options, like) | form)


def _sizes(options: argparse.Namespace, like: str) -> dict[str, Any]:
    # Llama has three matrices instead of two: with two thirds of the width, as many weights.
    d_ff = 4 * options.d_model if like == GPT2 else 8 * options.d_model // 24 * 8
    return {
        "layers": options.layers,
        "d_model": options.d_model,
        "d_ff": d_ff,
        "heads": options.heads,
        "dropout": options.dropout,
    }


def flops(options: argparse.Namespace, name: str, batch: Batch) -> float:
    """FLOPs of a step of a contender, as in PaLM (arXiv 2204.02311, appendix B): forward and
    backward of all matrix products, attention of all keys of a row."""
    spec = own_spec(options, CONTENDERS[name].like)
    with torch.device("meta"):
        layers = build_model(spec, options.vocabulary).layers
    weights = sum(p.numel() for p in layers.parameters() if p.dim() == 2)
    weights += spec.d_model * options.vocabulary
    tokens = batch[0]
    attention = 2 * spec.layers * spec.d_model * tokens.size(1)
    return 6.0 * tokens.numel() * (weights + attention)


class _XTransformers(nn.Module):
    """A decoder of x-transformers (PyPI) in Llama's form."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        from x_transformers import Decoder, TransformerWrapper

        self.net = TransformerWrapper(
            num_tokens=options.vocabulary,
            max_seq_len=options.context,
            use_abs_pos_emb=False,
            attn_layers=Decoder(
                dim=options.d_model,
                depth=options.layers,
                heads=options.heads,
                attn_dim_head=options.d_model // options.heads,
                attn_flash=True,
                attn_dropout=options.dropout,
                ff_dropout=options.dropout,
                ff_mult=_sizes(options, LLAMA)["d_ff"] / options.d_model,
                ff_swish=True,
                ff_glu=True,
                ff_no_bias=True,
                rotary_pos_emb=True,
                use_rmsnorm=True,
            ),
        )

    def logits(self, tokens: Tensor) -> Tensor:
        """tokens [b, n] -> logits [b, n, v]."""
        return self.net(tokens)


def _network(contender: LanguageContender, options: argparse.Namespace) -> nn.Module:
    torch.manual_seed(1)
    if contender.library == "x_transformers":
        return _XTransformers(options)
    gpt2 = contender.like == GPT2
    kind = {"kind": "huggingface_causal", "architecture": "gpt2" if gpt2 else "llama"}
    spec = HuggingFaceCausal.model_validate(
        _sizes(options, contender.like) | kind | {"tied_embeddings": gpt2}
    )
    theirs: Any = build_model(spec, options.vocabulary)
    if contender.library:
        return theirs
    own = build_model(own_spec(options, contender.like), options.vocabulary)
    translate = gpt2_weights if gpt2 else llama_weights
    own.load_state_dict(translate(theirs.causal.state_dict(), options.layers))
    return own


def same_as(name: str) -> tuple[str, float]:
    """The contender whose loss ``name`` must have, and within which share; "" for none."""
    contender = CONTENDERS[name]
    coarse = contender.precision["kind"] != "fp32"
    return contender.like if contender.weights else "", SAME_IN_BF16 if coarse else 1e-5


def make(
    name: str, options: argparse.Namespace
) -> tuple[Callable[[Batch], float], Callable[[Batch], float]]:
    """A step of training, and the loss per token of a batch without dropout."""
    contender = CONTENDERS[name]
    network: Any = _network(contender, options)
    training = Training.model_validate({"precision": contender.precision})
    precision = build_precision(training.precision, CPU)
    masters = precision.convert(network)
    optimizer = build_optimizer(AdamW(), network, CPU, masters)
    own_loss = partial(one_pass_loss_sum, smoothing=0.0) if contender.one_pass else whole_head_loss

    def loss_of(batch: Batch) -> Tensor:
        tokens, targets = batch
        with precision.autocast():
            if contender.library:
                logits = network.logits(tokens)
                return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
            loss: Tensor = network(tokens, targets, None, own_loss)
        return loss / targets.numel()

    return steps_of(network, precision, optimizer, training.clip_norm, loss_of)
