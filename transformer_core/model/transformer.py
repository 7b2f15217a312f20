"""The encoder-decoder of "Attention Is All You Need" (arXiv 1706.03762)."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from schemas.model import Transformer
from transformer_core.data.vocabulary import PAD
from transformer_core.model.cache import DecoderCache
from transformer_core.model.dropout import Dropout
from transformer_core.model.layers import DecoderLayer, EncoderLayer
from transformer_core.model.positions import Positions
from transformer_core.model.projection import Projection
from transformer_core.model.segments import (
    places_within,
    source_segments,
    target_segments,
    together,
)

Head = Callable[[Tensor, Tensor], Tensor]
"""What becomes of the decoder's output [b, t, d] and the output map [v, d]; usually logits."""


class EncoderDecoder(nn.Module):
    """Source and target token ids in, logits of the next target tokens out.

    With tied embeddings one matrix [v, d] embeds source and target and maps the decoder's output to
    logits (3.4 of the paper). The output map has no bias, tied or not: its v numbers would only
    encode how frequent each token is.

    ``pre`` normalization ends each stack with a layer normalization, since nothing else bounds the
    residual stream; ``post`` has one at the end of its last layer already.

    With ``checkpoint: layers`` each layer is computed once more in the backward pass, with the same
    random numbers, instead of keeping what is inside it.

    With ``packed`` set, a row may hold several pairs, which do not see each other
    (:mod:`transformer_core.model.segments`). Decoding with a cache takes one pair in a row.
    """

    def __init__(self, spec: Transformer, vocabulary: int) -> None:
        super().__init__()
        d_model, tied, pre = spec.d_model, spec.tied_embeddings, spec.norm == "pre"
        self.scale = d_model**0.5
        self.checkpoint = spec.checkpoint == "layers"
        self.packed = False
        self.source_embedding = nn.Embedding(vocabulary, d_model)
        # None, not the same module once more: a matrix has one name in the state dict.
        self.target_embedding = None if tied else nn.Embedding(vocabulary, d_model)
        self.output = None if tied else nn.Linear(d_model, vocabulary, bias=False)
        self.positions = Positions(d_model)
        self.dropout = Dropout(spec.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(spec) for _ in range(spec.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(spec) for _ in range(spec.decoder_layers))
        self.encoder_norm = nn.LayerNorm(d_model) if pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(d_model) if pre else nn.Identity()

    def forward(self, source: Tensor, target_input: Tensor, head: Head = F.linear) -> Tensor:
        """source [b, s], target_input [b, t] (BOS first) -> logits [b, t, v] of the next tokens.

        Another ``head`` may make something else of the decoder's output, without its logits.
        """
        return self.decode(self.encode(source), source, target_input, head=head)

    def encode(self, source: Tensor) -> Tensor:
        """source [b, s] -> memory [b, s, d]."""
        mask, within = source_mask(source), None
        if self.packed:
            segments = source_segments(source)
            mask, within = together(segments, segments), places_within(segments)
        x = self._embed(self.source_embedding, source, places=within)
        for layer in self.encoder:
            x = self._layer(layer, x, mask)
        return self.encoder_norm(x)

    def decode(
        self,
        memory: Tensor,
        source: Tensor,
        target_input: Tensor,
        cache: DecoderCache | None = None,
        head: Head = F.linear,
    ) -> Tensor:
        """Logits [b, t, v] for target_input [b, t], given memory [b, s, d] of source [b, s].

        With a cache, target_input holds what follows the cached prefix: any number of tokens after
        an empty one, else one; ValueError otherwise.
        """
        start = 0 if cache is None else cache.length
        if start and target_input.size(1) > 1:
            raise ValueError(
                f"target_input has {target_input.size(1)} tokens after a cached prefix of {start}; "
                "decode one token at a time"
            )
        mask, own_mask, within = source_mask(source), None, None
        if self.packed and cache is None:
            segments = target_segments(target_input)
            mask, within = together(segments, source_segments(source)), places_within(segments)
            own_mask = together(segments, segments).tril()
        embedding = self.target_embedding or self.source_embedding
        x = self._embed(embedding, target_input, start, within)
        for i, layer in enumerate(self.decoder):
            layer_cache = None if cache is None else cache.layers[i]
            x = self._layer(layer, x, memory, mask, layer_cache, own_mask)
        output = self.source_embedding if self.output is None else self.output
        return head(self.decoder_norm(x), output.weight)

    def new_cache(self) -> DecoderCache:
        """An empty cache for :meth:`decode`."""
        return DecoderCache(len(self.decoder))

    def _layer(self, layer: nn.Module, *inputs: Any) -> Tensor:
        if self.checkpoint and torch.is_grad_enabled():
            result: Tensor = checkpoint(layer, *inputs, use_reentrant=False)
            return result
        return layer(*inputs)

    def _embed(
        self,
        embedding: nn.Embedding,
        tokens: Tensor,
        start: int = 0,
        places: Tensor | None = None,
    ) -> Tensor:
        return self.dropout(self.positions(embedding(tokens) * self.scale, start, places))


def source_mask(source: Tensor) -> Tensor:
    """source [b, s] -> [b, 1, 1, s], True at tokens, False at padding."""
    return (source != PAD)[:, None, None, :]


def build_transformer(spec: Transformer, vocabulary: int) -> EncoderDecoder:
    """An :class:`EncoderDecoder` on torch's default device, its weights drawn from torch's seed."""
    device = torch.get_default_device()
    # Built without storage, so that constructors neither draw random numbers nor fill memory twice.
    with torch.device("meta"):
        model = EncoderDecoder(spec, vocabulary)
    model.to_empty(device=device)
    _initialise(model)
    return model


def _initialise(module: nn.Module) -> None:
    """Draw the weights; they depend on the shape of the model, not on the kinds of its parts.

    Matrices are Xavier-uniform as in the Annotated Transformer, biases zero. Embeddings are normal
    with standard deviation d_model^-0.5: scaled by sqrt(d_model) they then match the size of the
    positions, and as a tied output map they give logits of variance near one.
    """
    for child in module.children():
        if isinstance(child, Projection):
            child.initialise()
        elif isinstance(child, nn.LayerNorm):
            child.reset_parameters()
        elif isinstance(child, nn.Embedding):
            nn.init.normal_(child.weight, std=child.embedding_dim**-0.5)
        elif isinstance(child, nn.Linear):
            nn.init.xavier_uniform_(child.weight)
            if child.bias is not None:
                nn.init.zeros_(child.bias)
        else:
            _initialise(child)
