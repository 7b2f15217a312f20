"""MarianMT (Junczys-Dowmunt et al., ACL 2018) of the transformers library, with random weights."""

from typing import Any

from torch import Tensor, nn

from schemas.config.model import HuggingFace
from schemas.errors import Unsupported
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD

POSITIONS = 1024
"""Length of the table of positions: MarianMT's own default."""


class MarianCache:
    """Keys and values of a MarianMT: a :class:`~transformer_core.models.interface.Cache`."""

    def __init__(self) -> None:
        from transformers import DynamicCache, EncoderDecoderCache

        self.key_values: Any = EncoderDecoderCache(DynamicCache(), DynamicCache())

    @property
    def length(self) -> int:
        """Target tokens cached so far."""
        return int(self.key_values.get_seq_length())

    def reorder(self, rows: Tensor) -> None:
        """Let row i continue the prefix of row ``rows[i]``, which has the same source."""
        self.select(rows)

    def select(self, rows: Tensor) -> None:
        """Keep (or repeat) ``rows``, sources and prefixes alike."""
        # The library's name for it; it also takes fewer rows, or more, than there are.
        self.key_values.reorder_cache(rows)


class MarianEncoderDecoder(nn.Module):
    """Source and target token ids in, logits of the next target tokens out.

    Normalization comes after each sub-layer, and nothing else differs from the sizes asked for.
    ValueError for more than :data:`POSITIONS` tokens.
    """

    def __init__(self, spec: HuggingFace, vocabulary: int) -> None:
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        self.marian = MarianMTModel(
            MarianConfig(
                vocab_size=vocabulary,
                d_model=spec.d_model,
                encoder_layers=spec.encoder_layers,
                decoder_layers=spec.decoder_layers,
                encoder_ffn_dim=spec.d_ff,
                decoder_ffn_dim=spec.d_ff,
                encoder_attention_heads=spec.heads,
                decoder_attention_heads=spec.heads,
                dropout=spec.dropout,
                attention_dropout=spec.dropout,
                activation_dropout=spec.dropout,
                activation_function="relu",
                scale_embedding=True,
                # Scaled by sqrt(d_model), embeddings then match the positions in size, and as a
                # tied output map they give logits of variance near one.
                init_std=spec.d_model**-0.5,
                max_position_embeddings=POSITIONS,
                share_encoder_decoder_embeddings=spec.tied_embeddings,
                tie_word_embeddings=spec.tied_embeddings,
                pad_token_id=PAD,
                bos_token_id=BOS,
                eos_token_id=EOS,
                forced_eos_token_id=EOS,
                decoder_start_token_id=BOS,
            )
        )

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        """source [b, s], target_input [b, t] (BOS first) -> logits [b, t, v] of the next tokens."""
        return self.decode(self.encode(source), source, target_input)

    def encode(self, source: Tensor) -> Tensor:
        """source [b, s] -> memory [b, s, d]."""
        _check_length("source", source.size(1))
        encoder = self.marian.get_encoder()
        memory: Tensor = encoder(source, attention_mask=_mask(source)).last_hidden_state
        return memory

    def decode(
        self,
        memory: Tensor,
        source: Tensor,
        target_input: Tensor,
        cache: MarianCache | None = None,
    ) -> Tensor:
        """Logits [b, t, v] for target_input [b, t], given memory [b, s, d] of source [b, s].

        With a cache, target_input holds what follows its prefix.
        """
        _check_length("target", target_input.size(1) + (cache.length if cache else 0))
        x = self.marian.get_decoder()(
            target_input,
            encoder_hidden_states=memory,
            encoder_attention_mask=_mask(source),
            past_key_values=cache and cache.key_values,
            use_cache=cache is not None,
        ).last_hidden_state
        # The library also adds a bias that is zero and not trained.
        logits: Tensor = self.marian.lm_head(x)
        return logits

    def new_cache(self) -> MarianCache:
        """An empty cache for :meth:`decode`."""
        return MarianCache()

    def canonical_state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers, projections named as in this project. The tensors are detached
        and share memory with the model."""
        names = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
        return {
            ".".join(names.get(part, part) for part in name.split(".")): tensor
            for name, tensor in self.state_dict().items()
        }


def build_huggingface(spec: HuggingFace, vocabulary: int) -> MarianEncoderDecoder:
    """A MarianMT on torch's default device, its weights drawn from torch's seed by the library.

    Raises Unsupported if the library is not installed.
    """
    try:
        # Here, because the library is optional and takes a while to import.
        import transformers  # noqa: F401
    except ImportError as error:
        raise Unsupported(
            f"model.kind huggingface needs the transformers library ({error}): "
            "pip install -c constraints.txt -e '.[models]'"
        ) from error
    return MarianEncoderDecoder(spec, vocabulary)


def _mask(source: Tensor) -> Any:
    """source [b, s] -> [b, s], 1 at tokens, 0 at padding."""
    return (source != PAD).long()


def _check_length(side: str, tokens: int) -> None:
    if tokens > POSITIONS:
        raise ValueError(
            f"a {side} of {tokens} tokens is longer than the {POSITIONS} positions of MarianMT: "
            "set a smaller filter.max_tokens"
        )
