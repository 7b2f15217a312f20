"""The encoder-decoder of "Attention Is All You Need" (arXiv 1706.03762)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from schemas.config.model import Transformer
from transformer_core.data.batching.collate import NOTHING, Known
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.attention import mask_for_kernels, takes_sentences
from transformer_core.models.compiled_layers import compile_layers, compiled_or_plain
from transformer_core.models.decoding import DecoderCache
from transformer_core.models.dropout import Dropout
from transformer_core.models.positions import (
    Positions,
    places_within,
    source_segments,
    target_segments,
    together,
)
from transformer_core.models.qkv_projection import Projection, project_together
from transformer_core.models.sublayers import (
    DecoderLayer,
    EncoderLayer,
    Memory,
    build_norm,
    in_stream_format,
    without_weights,
)
from transformer_core.models.unpadded import Blocks, sentences_of
from transformer_core.techniques.recomputation import recomputing

Head = Callable[[Tensor, Tensor], Tensor]
"""Maps the decoder's output [b, t, d] and the output map [v, d] to the model's result; usually
logits."""


class EncoderDecoder(nn.Module):
    """Source and target token ids in, logits of the next target tokens out.

    With tied embeddings one matrix [v, d] embeds source and target and maps the decoder's output to
    logits (3.4 of the paper). The output map never has a bias, whose v numbers would only encode
    the frequency of each token.

    ``pre`` normalization ends each stack with a layer normalization, since nothing else bounds the
    residual stream; ``post`` already has one at the end of its last layer.

    With ``packed`` set, a row may hold several pairs, which do not see each other
    (:mod:`transformer_core.models.positions`). Decoding with a cache takes one pair per row.

    With ``tokens: unpadded`` training only computes on real tokens
    (:mod:`transformer_core.models.unpadded`). Evaluation still takes padded rows unless its kernel
    cannot, and decoding always does.
    """

    def __init__(self, spec: Transformer, vocabulary: int) -> None:
        super().__init__()
        d_model, tied, pre = spec.d_model, spec.tied_embeddings, spec.norm == "pre"
        self.scale = d_model**0.5
        self.checkpoint, self.kept_share = spec.checkpoint, spec.kept_share
        self.packed = False
        self.blocks = getattr(spec.tokens, "blocks", 0)
        self.row_multiple = getattr(spec.tokens, "row_multiple", 1)
        self.memory_together = spec.memory_products == "together"
        # Whether each batch gets a whole mask for the decoder, against padding and later tokens.
        self.whole_masks = spec.attention.kind == "published"
        self.attention_spec = spec.attention
        self.source_embedding = nn.Embedding(vocabulary, d_model)
        # None rather than the embedding, so that the matrix has one name in the state dict.
        self.target_embedding = None if tied else nn.Embedding(vocabulary, d_model)
        self.output = None if tied else nn.Linear(d_model, vocabulary, bias=False)
        self.positions = Positions(d_model)
        self.residual = spec.residual
        self.dropout = Dropout(spec.dropout, spec.dropout_method)
        self.encoder = nn.ModuleList(EncoderLayer(spec) for _ in range(spec.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(spec) for _ in range(spec.decoder_layers))
        self.compile_kind = spec.compile
        compile_layers(spec.compile, *self.encoder, *self.decoder)
        ends = [build_norm(spec.norm_method, d_model) if pre else nn.Identity() for _ in range(2)]
        self.encoder_norm, self.decoder_norm = ends

    def forward(
        self, source: Tensor, target_input: Tensor, head: Head = F.linear, known: Known = NOTHING
    ) -> Tensor:
        """source [b, s], target_input [b, t] (BOS first) -> logits [b, t, v] of the next tokens.

        Another ``head`` may compute another result from the decoder's output, without logits. If no
        source is ``known`` to have padding, we mask nothing.
        """
        if self.blocks and (self.training or takes_sentences(self.attention_spec, source)):
            return self._forward_unpadded(source, target_input, head, known)
        masked = not known.source_full or self.needs_mask
        memory = self.encode(source, masked)
        return self.decode(memory, source, target_input, head=head, masked=masked)

    @property
    def needs_mask(self) -> bool:
        """Whether attention takes a mask even without padding."""
        return self.packed or self.whole_masks

    def _forward_unpadded(
        self, source: Tensor, target_input: Tensor, head: Head, known: Known
    ) -> Tensor:
        lengths, own_source, own_target = known.lengths or (None, None), None, None
        if self.packed:
            own_source, own_target = source_segments(source), target_segments(target_input)
        sources = sentences_of(source, own_source, self.row_multiple, lengths[0])
        targets = sentences_of(target_input, own_target, self.row_multiple, lengths[1])
        x = self._embed(self.source_embedding, sources.rows(source), places=sources.within[None])
        own = Blocks(sources, sources, self.blocks, causal=False)
        for number in range(len(self.encoder)):
            x = self._layer(self.encoder, number, x, own)
        memory = self.encoder_norm(x)
        embedding = self.target_embedding or self.source_embedding
        x = self._embed(embedding, targets.rows(target_input), places=targets.within[None])
        own = Blocks(targets, targets, self.blocks, causal=True)
        across = Blocks(targets, sources, self.blocks, causal=False)
        for number, seen in enumerate(self._memories(memory)):
            x = self._layer(self.decoder, number, x, seen, across, None, own)
        output = self.source_embedding if self.output is None else self.output
        return head(targets.batch(self.decoder_norm(x)), output.weight)

    def encode(self, source: Tensor, masked: bool = True) -> Tensor:
        """source [b, s] -> memory [b, s, d]; ``masked`` may be false if nothing is padded."""
        mask, within = source_mask(source) if masked else None, None
        if self.packed:
            segments = source_segments(source)
            mask, within = together(segments, segments), places_within(segments)
        mask = self._mask(mask)
        x = self._embed(self.source_embedding, source, places=within)
        for number in range(len(self.encoder)):
            x = self._layer(self.encoder, number, x, mask)
        return self.encoder_norm(x)

    def decode(
        self,
        memory: Tensor,
        source: Tensor,
        target_input: Tensor,
        cache: DecoderCache | None = None,
        head: Head = F.linear,
        masked: bool = True,
    ) -> Tensor:
        """Logits [b, t, v] for target_input [b, t], given memory [b, s, d] of source [b, s].

        With a cache, target_input holds the tokens after the cached prefix: any number after an
        empty one, otherwise one, or it raises ValueError. ``masked`` may be false if no source is
        padded.
        """
        start = 0 if cache is None else cache.length
        if start and target_input.size(1) > 1:
            raise ValueError(
                f"target_input has {target_input.size(1)} tokens after a cached prefix of {start}; "
                "decode one token at a time"
            )
        mask, own_mask, within = source_mask(source) if masked else None, None, None
        if self.packed and cache is None:
            segments = target_segments(target_input)
            mask, within = together(segments, source_segments(source)), places_within(segments)
            own_mask = together(segments, segments).tril()
        elif self.whole_masks and cache is None:
            own_mask = source_mask(target_input).repeat(1, 1, target_input.size(1), 1).tril()
        mask = self._mask(mask)
        own_mask = self._mask(own_mask)
        embedding = self.target_embedding or self.source_embedding
        x = self._embed(embedding, target_input, start, within)
        memories = self._memories(memory) if cache is None else [memory] * len(self.decoder)
        for number, seen in enumerate(memories):
            layer_cache = None if cache is None else cache.layers[number]
            x = self._layer(self.decoder, number, x, seen, mask, layer_cache, own_mask)
        output = self.source_embedding if self.output is None else self.output
        return head(self.decoder_norm(x), output.weight)

    def new_cache(self) -> DecoderCache:
        return DecoderCache(len(self.decoder))

    def _memories(self, memory: Tensor) -> Sequence[Memory]:
        """The memory that each decoder layer uses, from memory [b, s, d]."""
        if not self.memory_together:
            return [memory] * len(self.decoder)
        return project_together(
            [layer.cross_attention.project_memory for layer in self.decoder],  # type: ignore[misc,union-attr]
            memory,
        )

    def _mask(self, mask: Tensor | None) -> Tensor | None:
        if mask is None:
            return None
        return mask_for_kernels(self.attention_spec, mask, self.source_embedding.weight)

    def _layer(self, layers: nn.ModuleList, number: int, *inputs: Any) -> Tensor:
        call = compiled_or_plain(self.compile_kind, layers[number], self.kept_share)
        return recomputing(self.checkpoint, number, call)(*inputs)

    def _embed(
        self, embedding: nn.Embedding, tokens: Tensor, start: int = 0, places: Tensor | None = None
    ) -> Tensor:
        x = self.positions(embedding(tokens) * self.scale, start, places)
        return self.dropout(in_stream_format(x, self.residual))


def source_mask(source: Tensor) -> Tensor:
    """source [b, s] -> [b, 1, 1, s], True at tokens, False at padding."""
    return (source != PAD)[:, None, None, :]


def build_transformer(spec: Transformer, vocabulary: int) -> EncoderDecoder:
    """Builds an :class:`EncoderDecoder` on torch's default device, with weights from torch's seed."""
    model = without_weights(EncoderDecoder, spec, vocabulary)
    _initialise(model)
    return model


def _initialise(module: nn.Module) -> None:
    """Draws the weights, which depend on the shape of the model, not on the kinds of its parts.

    Matrices are Xavier-uniform as in the Annotated Transformer, biases zero. Embeddings are normal
    with standard deviation d_model^-0.5: scaled by sqrt(d_model) they match the size of the
    positions, and a tied output map then gives logits of variance near one.
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
