"""``torch.nn.Transformer`` with the embeddings, positions and output map of this project."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schemas.config.model import TorchTransformer, Transformer
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.decoding import PrefixCache
from transformer_core.models.dropout import Dropout
from transformer_core.models.positions import Positions
from transformer_core.models.qkv_projection import canonical_state_dict
from transformer_core.models.sublayers import without_weights
from transformer_core.models.transformer import build_transformer


class TorchEncoderDecoder(nn.Module):
    """Source and target token ids in, logits of the next target tokens out.

    With the same weights it computes the same function as
    :class:`~transformer_core.models.transformer.EncoderDecoder`; :meth:`canonical_state_dict` maps
    their names. ``torch.nn.Transformer`` does not cache keys and values, so decoding computes the
    whole prefix at every step.
    """

    def __init__(self, spec: TorchTransformer, vocabulary: int) -> None:
        super().__init__()
        d_model, tied = spec.d_model, spec.tied_embeddings
        self.scale = d_model**0.5
        self.source_embedding = nn.Embedding(vocabulary, d_model)
        self.target_embedding = None if tied else nn.Embedding(vocabulary, d_model)
        self.output = None if tied else nn.Linear(d_model, vocabulary, bias=False)
        self.positions = Positions(d_model)
        self.dropout = Dropout(spec.dropout)
        layer = (d_model, spec.heads, spec.d_ff, spec.dropout)
        pre = spec.norm == "pre"
        encoder_layer = nn.TransformerEncoderLayer(*layer, batch_first=True, norm_first=pre)
        decoder_layer = nn.TransformerDecoderLayer(*layer, batch_first=True, norm_first=pre)
        # torch.nn.Transformer's own stacks normalize again after post-norm layers, and evaluate
        # with nested tensors, which fewer devices and precisions support.
        self.transformer = nn.Transformer(
            d_model,
            spec.heads,
            custom_encoder=nn.TransformerEncoder(
                encoder_layer,
                spec.encoder_layers,
                norm=nn.LayerNorm(d_model) if pre else None,
                enable_nested_tensor=False,
            ),
            custom_decoder=nn.TransformerDecoder(
                decoder_layer, spec.decoder_layers, norm=nn.LayerNorm(d_model) if pre else None
            ),
            batch_first=True,
        )

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        return self.decode(self.encode(source), source, target_input)

    def encode(self, source: Tensor) -> Tensor:
        x = self._embed(self.source_embedding, source)
        return self.transformer.encoder(x, src_key_padding_mask=source == PAD)

    def decode(
        self, memory: Tensor, source: Tensor, target_input: Tensor, cache: PrefixCache | None = None
    ) -> Tensor:
        prefix = target_input if cache is None else cache.extend(target_input)
        t = prefix.size(1)
        hidden = torch.ones(t, t, dtype=torch.bool, device=prefix.device).triu(1)
        x = self.transformer.decoder(
            self._embed(self.target_embedding or self.source_embedding, prefix),
            memory,
            tgt_mask=hidden,
            tgt_is_causal=True,
            memory_key_padding_mask=source == PAD,
        )[:, -target_input.size(1) :]
        if self.output is None:
            return F.linear(x, self.source_embedding.weight)
        return self.output(x)

    def new_cache(self) -> PrefixCache:
        return PrefixCache()

    def canonical_state_dict(self) -> dict[str, Tensor]:
        """The parameters by their names in this project's encoder-decoder with separate projections.
        The tensors are detached and share memory with the model."""
        state = {
            name: parameter.detach()
            for name, parameter in self.named_parameters()
            if not name.startswith("transformer.")
        }
        stacks: list[tuple[str, Any]] = [
            ("encoder", self.transformer.encoder),
            ("decoder", self.transformer.decoder),
        ]
        for name, stack in stacks:
            for i, layer in enumerate(stack.layers):
                state.update(_layer(f"{name}.{i}.", layer))
            if stack.norm is not None:
                state.update(_named(f"{name}_norm.", stack.norm))
        return state

    def _embed(self, embedding: nn.Embedding, tokens: Tensor) -> Tensor:
        return self.dropout(self.positions(embedding(tokens) * self.scale))


def build_torch_nn(spec: TorchTransformer, vocabulary: int) -> TorchEncoderDecoder:
    """Builds a :class:`TorchEncoderDecoder` on torch's default device, with the weights that
    :func:`~transformer_core.models.transformer.build_transformer` draws from torch's seed."""
    shared = spec.model_dump(exclude={"kind"})
    pattern = canonical_state_dict(build_transformer(Transformer(**shared), vocabulary))
    model = without_weights(TorchEncoderDecoder, spec, vocabulary)
    for name, tensor in model.canonical_state_dict().items():
        tensor.copy_(pattern[name])
    return model


def _layer(prefix: str, layer: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the canonical names and tensors of one of torch's encoder or decoder layers."""
    attentions = [("self_attention.", ("project.", "project.", "project."), layer.self_attn)]
    norms = [layer.norm1, layer.norm2]
    if hasattr(layer, "multihead_attn"):
        projects = ("project_state.", "project_memory.", "project_memory.")
        attentions.append(("cross_attention.", projects, layer.multihead_attn))
        norms.append(layer.norm3)
    for name, projects, attention in attentions:
        weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
        parts = zip(projects, ("query", "key", "value"), weights, biases, strict=True)
        for project, part, weight, bias in parts:
            yield f"{prefix}{name}{project}{part}.weight", weight.detach()
            yield f"{prefix}{name}{project}{part}.bias", bias.detach()
        yield from _named(f"{prefix}{name}output.", attention.out_proj)
    yield from _named(f"{prefix}feed_forward.inner.", layer.linear1)
    yield from _named(f"{prefix}feed_forward.outer.", layer.linear2)
    for i, norm in enumerate(norms):
        yield from _named(f"{prefix}residuals.{i}.norm.", norm)


def _named(prefix: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((f"{prefix}{name}", p.detach()) for name, p in module.named_parameters())
