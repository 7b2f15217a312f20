"""The contenders of ``python -m benchmarks.step`` in translation: each is a training
step, made from one description."""

import argparse
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter
from torch import Tensor, nn

from schemas.config.data import FixedSize, TokenBudget
from schemas.config.model import AnyModel, SizedModel
from schemas.config.training import Training
from transformer_core.data.batching.collate import Batch
from transformer_core.data.batching.feeding import Feed
from transformer_core.data.sharding.shard_store import open_shards
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.decide.utilisation import Lengths, training_flops
from transformer_core.models.objective import Objective
from transformer_core.models.registry import build_model
from transformer_core.training.optimizer import build_optimizer
from transformer_core.training.precision import Precision, build_precision

CPU = torch.device("cpu")
PUBLISHED = "as published"
_FAST = {"tokens": {"kind": "unpadded"}}
_FUSED = {"dropout_method": {"kind": "fused"}, "memory_products": "together"}
_PADDED = _FUSED | {"attention": {"kind": "fused_softmax"}}
_MORE = _FAST | _FUSED
_ALL = _FAST | _PADDED
_BF16 = {"precision": {"kind": "bf16"}}
_WEIGHTS_TOO = {"precision": {"kind": "bf16_weights"}}
_LOSS: dict[str, Any] = {"loss": {"kind": "one_pass"}}
_ONE_PASS: dict[str, Any] = _LOSS | {"clipping": "folded"}
_MARIAN: dict[str, Any] = {"model": {"kind": "huggingface"}, "peer": True, "weights": False}
_X: dict[str, Any] = {"model": {"kind": "x_transformers"}, "peer": True, "weights": False}
_ONEDNN = {"precision": {"kind": "fp32_onednn"}}
_MODEL: TypeAdapter[Any] = TypeAdapter(AnyModel)
_LONGEST = 256  # tokens of a sentence, for models that need a limit
SAME_IN_BF16 = 0.02  # largest relative difference of losses that should be equal


def sizes_of(options: argparse.Namespace) -> dict[str, Any]:
    """The sizes of every contender's model."""
    return {
        "encoder_layers": options.layers,
        "decoder_layers": options.layers,
        "d_model": options.d_model,
        "d_ff": 4 * options.d_model,
        "heads": options.heads,
        "dropout": options.dropout,
    }


def model_of(sizes: dict[str, Any], change: dict[str, Any]) -> Any:
    """The schema of a model of these sizes that differs from the default by ``change``."""
    return _MODEL.validate_python({"kind": "transformer"} | sizes | change)


@dataclass(frozen=True)
class Contender:
    """How a contender differs from the project's default model and training."""

    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    peer: bool = False  # whether it is another library's, with torch's own loss
    weights: bool = True  # whether it starts from the same weights, so that its loss must be equal

    @property
    def low(self) -> bool:
        kind: str = self.training.get("precision", {}).get("kind", "fp32")
        return kind.startswith("bf16")


CONTENDERS = {
    PUBLISHED: Contender(
        model={
            "attention": {"kind": "published"},
            "qkv": {"kind": "separate"},
            "dropout_method": {"kind": "torch"},
            "norm_method": {"kind": "published"},
        },
        training={"loss": {"kind": "kl_divergence"}, "optimizer": {"kind": "adam"}},
    ),
    "torch.nn.Transformer": Contender(model={"kind": "torch_nn"}, peer=True),
    "Marian of transformers": Contender(**_MARIAN),
    "x-transformers": Contender(**_X),
    "single": Contender(),
    "one-pass loss": Contender({}, _LOSS),
    "one-pass loss, unpadded": Contender(_FAST, _LOSS),
    "and fused dropout, folded clipping": Contender(_MORE, _ONE_PASS),
    "and fused softmax": Contender(_ALL, _ONE_PASS),
    "single by oneDNN": Contender({}, _ONEDNN),
    "one-pass loss by oneDNN": Contender({}, _LOSS | _ONEDNN),
    "all but unpadded in 32 bits, by oneDNN": Contender(_PADDED, _ONE_PASS | _ONEDNN),
    "all of these in 32 bits, by oneDNN": Contender(_ALL, _ONE_PASS | _ONEDNN),
    "torch.nn.Transformer in bf16": Contender({"kind": "torch_nn"}, _BF16, peer=True),
    "Marian of transformers in bf16": Contender(training=_BF16, **_MARIAN),
    "x-transformers in bf16": Contender(training=_BF16, **_X),
    "single in bf16": Contender({}, _BF16),
    "one-pass loss in bf16": Contender({}, _LOSS | _BF16),
    "all but unpadded in bf16": Contender(_PADDED, _ONE_PASS | _BF16),
    "all but unpadded in bf16, weights too": Contender(_PADDED, _ONE_PASS | _WEIGHTS_TOO),
    "one-pass loss, unpadded in bf16": Contender(_FAST, _LOSS | _BF16),
    "all of these in bf16": Contender(_ALL, _ONE_PASS | _BF16),
    "all of these in bf16, residual too": Contender(_ALL | {"residual": "bf16"}, _ONE_PASS | _BF16),
    "all of these in bf16, weights too": Contender(_ALL, _ONE_PASS | _WEIGHTS_TOO),
}


class XTransformers(nn.Module):
    """An encoder-decoder of x-transformers (PyPI) of the same size, normalization before each
    sub-layer, embeddings tied."""

    def __init__(self, spec: SizedModel, vocabulary: int) -> None:
        super().__init__()
        from x_transformers import XTransformer

        options = {
            "num_tokens": vocabulary,
            "heads": spec.heads,
            "max_seq_len": _LONGEST,
            "attn_dim_head": spec.d_model // spec.heads,
            "ff_mult": spec.d_ff / spec.d_model,
            "attn_dropout": spec.dropout,
            "ff_dropout": spec.dropout,
            "emb_dropout": spec.dropout,
        }
        sides = {
            f"{side}_{key}": value for side in ("enc", "dec") for key, value in options.items()
        }
        self.both = XTransformer(
            dim=spec.d_model,
            tie_token_emb=spec.tied_embeddings,
            enc_depth=spec.encoder_layers,
            dec_depth=spec.decoder_layers,
            **sides,
        )

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        """source [b, s], target_input [b, t] -> logits [b, t, v]."""
        mask = source != PAD
        memory = self.both.encoder(source, mask=mask, return_embeddings=True)
        return self.both.decoder.net(target_input, context=memory, context_mask=mask)


class PeerObjective(nn.Module):
    """Another library's model and torch's cross-entropy."""

    def __init__(self, model: nn.Module, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, source: Tensor, target_input: Tensor, target_output: Tensor) -> Tensor:
        """The loss sum, a scalar."""
        logits = self.model(source, target_input)
        return F.cross_entropy(
            logits.flatten(0, 1),
            target_output.flatten(),
            ignore_index=PAD,
            label_smoothing=self.smoothing,
            reduction="sum",
        )


REFERENCE, DROPOUT = PUBLISHED, 0.1


def batches(options: argparse.Namespace) -> list[Batch]:
    """The first batches of an epoch, the same for all contenders."""
    batching = (
        FixedSize(kind="fixed_size", pairs=options.size)
        if options.batching == "fixed"
        else TokenBudget(tokens=options.size)
    )
    store = open_shards(options.shards)
    with closing(Feed(store, batching, 1, 0, 1, 1, CPU).batches()) as taken:
        return [next(taken).micro_batches[0] for _ in range(options.batches)]


def flops(options: argparse.Namespace, name: str, batch: Batch) -> float:
    """FLOPs of a step for all tokens except padding."""
    vocabulary = open_shards(options.shards).manifest.vocabulary
    s, t = (np.asarray((x != PAD).sum(1)) for x in (batch.source, batch.target_output))
    sums = (s, t, s * s, t * t, s * t)
    lengths = Lengths(*(np.array([values.sum()]) for values in sums))
    return float(training_flops(model_of(sizes_of(options), {}), vocabulary, lengths)[0])


def same_as(name: str) -> tuple[str, float]:
    """The contender whose loss ``name`` must have, and within which share; "" for none. The
    published code smooths over two tokens fewer and normalizes by the deviation of a sample."""
    contender = CONTENDERS[name]
    return PUBLISHED if contender.weights else "", SAME_IN_BF16 if contender.low else 0.01


def make(
    name: str, options: argparse.Namespace
) -> tuple[Callable[[Batch], float], Callable[[Batch], float]]:
    """A step of training, and the loss per token of a batch without dropout."""
    contender, sizes = CONTENDERS[name], sizes_of(options)
    vocabulary = open_shards(options.shards).manifest.vocabulary
    training = Training.model_validate(contender.training)
    torch.manual_seed(training.seed)
    network: nn.Module
    if contender.model.get("kind") == "x_transformers":
        network = XTransformers(model_of(sizes, {"kind": "torch_nn"}), vocabulary)
    else:
        network = build_model(model_of(sizes, contender.model), vocabulary)
    smoothing = training.label_smoothing
    objective = (
        PeerObjective(network, smoothing)
        if contender.peer
        else Objective(network, smoothing, training.loss)
    )
    precision = build_precision(training.precision, CPU, training.clipping)
    masters = precision.convert(network)
    optimizer = build_optimizer(training.optimizer, objective, CPU, masters)

    def loss_of(batch: Batch) -> Tensor:
        with precision.autocast():
            loss: Tensor = objective(batch.source, batch.target_input, batch.target_output)
        return loss / int((batch.target_output != PAD).sum())

    return steps_of(objective, precision, optimizer, training.clip_norm, loss_of)


def steps_of(
    module: nn.Module,
    precision: Precision,
    optimizer: torch.optim.Optimizer,
    clip_norm: float,
    loss_of: Callable[[Any], Tensor],
) -> tuple[Callable[[Any], float], Callable[[Any], float]]:
    """A step of training, and the loss per token of a batch without dropout."""

    def step(batch: Any) -> float:
        module.train()
        for group in optimizer.param_groups:
            group["lr"] = 1e-4
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(batch)
        precision.backward(loss)
        precision.step(optimizer, module.parameters(), clip_norm)
        return float(loss.detach())

    @torch.no_grad()
    def plain(batch: Any) -> float:
        module.eval()
        return float(loss_of(batch))

    return step, plain
