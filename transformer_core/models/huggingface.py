"""Models of the transformers library, with random weights: MarianMT (Junczys-Dowmunt et al., ACL
2018) for translations, and causal language models."""

import inspect
import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schemas.config.model import MARIAN_POSITIONS, HuggingFace, HuggingFaceCausal
from schemas.errors import Unsupported, nearest
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD
from transformer_core.models.decoding import LanguageModel, PrefixCache
from transformer_core.models.interface import HeadLoss
from transformer_core.models.loss import token_loss_sum, whole_head_loss
from transformer_core.models.positions import places_within, together


class LibraryCache:
    """Keys and values of a model of the library, as a
    :class:`~transformer_core.models.interface.Cache`."""

    def __init__(self, key_values: Any) -> None:
        self.key_values = key_values

    @property
    def length(self) -> int:
        return int(self.key_values.get_seq_length())

    def select(self, rows: Tensor) -> None:
        # The library calls it reorder, but accepts fewer or more rows, too.
        self.key_values.reorder_cache(rows)

    reorder = select


class MarianEncoderDecoder(nn.Module):
    """Source and target token ids in, logits of the next target tokens out.

    MarianMT normalizes after each sub-layer; the spec sets everything else. Raises ValueError for
    more than :data:`MARIAN_POSITIONS` tokens.
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
                # Embeddings scaled by sqrt(d_model) then match the positions in size, and give
                # logits of variance near one as a tied output map.
                init_std=spec.d_model**-0.5,
                max_position_embeddings=MARIAN_POSITIONS,
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
        return self.decode(self.encode(source), source, target_input)

    def encode(self, source: Tensor) -> Tensor:
        _check_length("source", source.size(1))
        encoder = self.marian.get_encoder()
        return encoder(source, attention_mask=(source != PAD).long()).last_hidden_state

    def decode(
        self,
        memory: Tensor,
        source: Tensor,
        target_input: Tensor,
        cache: LibraryCache | None = None,
    ) -> Tensor:
        _check_length("target", target_input.size(1) + (cache.length if cache else 0))
        x = self.marian.get_decoder()(
            target_input,
            encoder_hidden_states=memory,
            encoder_attention_mask=(source != PAD).long(),
            past_key_values=cache and cache.key_values,
            use_cache=cache is not None,
        ).last_hidden_state
        # We leave out the library's bias, which is zero and not trained.
        return self.marian.lm_head(x)

    def new_cache(self) -> LibraryCache:
        from transformers import DynamicCache, EncoderDecoderCache

        return LibraryCache(EncoderDecoderCache(DynamicCache(), DynamicCache()))

    def canonical_state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers, with this project's names for projections. The tensors are
        detached and share memory with the model."""
        names = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
        return {
            ".".join(names.get(part, part) for part in name.split(".")): tensor
            for name, tensor in self.state_dict().items()
        }


def build_huggingface(spec: HuggingFace | HuggingFaceCausal, vocabulary: int) -> nn.Module:
    """Builds the model of ``spec`` on torch's default device; the library draws its weights from
    torch's seed. Raises Unsupported if the library is not installed."""
    try:
        # Imported late, because the library is optional and takes a while.
        import transformers  # noqa: F401
    except ImportError as error:
        raise Unsupported(
            f"model.kind {spec.kind} needs the transformers library ({error}): "
            "pip install -c constraints.txt -e '.[models]'"
        ) from error
    if isinstance(spec, HuggingFace):
        return MarianEncoderDecoder(spec, vocabulary)
    return HuggingFaceDecoder(spec, vocabulary)


def _check_length(side: str, tokens: int) -> None:
    if tokens > MARIAN_POSITIONS:
        raise ValueError(
            f"a {side} of {tokens} tokens is longer than the {MARIAN_POSITIONS} positions of MarianMT: "
            "lower filter.max_tokens"
        )


_NAMES = {
    "layers": ("decoder_layers",),
    "d_ff": (
        *("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "decoder_ffn_dim"),
        *("dff", "dim_ff", "d_inner", "feed_forward_size"),
    ),
    "heads": ("num_key_value_heads", "decoder_attention_heads"),
}
"""The fields of a spec by their names in the library's configurations, if these have them."""
_DROPOUT = re.compile(r"(dropout|dropout_prob|dropout_rate|pdrop)$")  # names of such fields


class HuggingFaceDecoder(LanguageModel):
    """A :class:`~transformer_core.models.decoding.LanguageModel` around one of the library's. Raises
    ValueError if it sees later tokens, or if the library refuses the settings.

    Losses that never hold all logits require these to be the product of last hidden states and
    output map; raises ValueError for architectures that compute them differently.
    """

    def __init__(self, spec: HuggingFaceCausal, vocabulary: int) -> None:
        super().__init__()
        from transformers import AutoModelForCausalLM

        self.spec = spec
        config = configuration(spec, vocabulary)
        try:
            self.causal: Any = AutoModelForCausalLM.from_config(
                config, attn_implementation=spec.attention
            )
            # Rotary positions have no table, and reach further than the configuration says.
            limit: Any = getattr(config, "max_position_embeddings", None)
            ids = self.causal.get_input_embeddings()
            tables = [
                table
                for table in self.causal.modules()
                if isinstance(table, nn.Embedding) and table is not ids
                if limit and table.num_embeddings >= limit
            ]
            # RoBERTa's begins with a place for padding. Larger ones may hold other things than places.
            padding = (table.padding_idx for table in tables if table.num_embeddings == limit)
            self.first_place = 1 + max((at for at in padding if at is not None), default=-1)
            self.positions = limit - self.first_place if tables else None
            # A bias is 0 at first, but is trained.
            head = self.causal.get_output_embeddings()
            self.plain_head = head is not None and getattr(head, "bias", None) is None
            self.takes_places = "position_ids" in inspect.signature(self.causal.forward).parameters
            self.separates = self.takes_places
            if ids.weight.device.type != "meta":
                self._try(vocabulary)
        except (RuntimeError, ValueError) as error:
            # Not by the library: CUDA error, CUBLAS_STATUS_ALLOC_FAILED, can't allocate memory.
            if isinstance(error, RuntimeError) and re.search(r"\b(CU|HIP)|alloc", str(error)):
                raise
            raise _refused(spec, error) from error

    @torch.no_grad()
    def _try(self, vocabulary: int) -> None:
        """Tries with a few tokens whether logits are hidden states times output map, and do not depend
        on the document before theirs in a row. ValueError if they depend on later tokens."""
        training, ends = self.training, (vocabulary - 1, vocabulary - 2)
        self.eval()
        device = next(self.parameters()).device
        tokens = torch.tensor([[EOS, BOS, end] for end in ends], device=device)
        logits = self.causal(tokens, use_cache=False).logits
        if not _alike(logits[:, :2]):
            raise ValueError("the logits change with later tokens, which they should predict")
        if self.plain_head:
            head = self.causal.get_output_embeddings()
            hidden = 1e3 * self.causal.base_model(tokens, use_cache=False).last_hidden_state
            # Logits start too small to show a cap on them.
            with head.register_forward_pre_hook(lambda _, given: (1e3 * given[0],)):
                large = self.causal(tokens, use_cache=False).logits
            product = F.linear(hidden, head.weight)
            self.plain_head = torch.allclose(product, large, rtol=1e-4, atol=1e-2)
        if self.separates:
            known = self._apart(torch.tensor([[1, 2, 2]] * 2, device=device))
            logits = self.causal(tokens.roll(1, 1), use_cache=False, **known).logits
            self.separates = _alike(logits[:, 1:])
        self.train(training)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        segments: Tensor | None = None,
        loss: HeadLoss = whole_head_loss,
    ) -> Tensor:
        self._check_length(tokens.size(1))
        known = self._known(tokens, segments)
        if targets is None or loss is whole_head_loss:
            logits: Tensor = self.causal(tokens, use_cache=False, **known).logits
            return logits if targets is None else token_loss_sum(logits, targets)
        if not self.plain_head:
            raise ValueError(
                f"model.architecture = {self.spec.architecture}: its logits are not just the "
                "product of hidden states and output map; remedy: set training.loss: {kind: whole}"
            )
        hidden = self.causal.base_model(tokens, use_cache=False, **known).last_hidden_state
        return loss(hidden, self.causal.get_output_embeddings().weight, targets)

    def new_cache(self) -> LibraryCache | PrefixCache:
        from transformers import DynamicCache

        return LibraryCache(DynamicCache()) if _caches(self.causal) else PrefixCache()

    def step(
        self, tokens: Tensor, real: Tensor | None, cache: LibraryCache | PrefixCache
    ) -> Tensor:
        if isinstance(cache, PrefixCache):
            return self._after(cache.extend(tokens), real)
        self._check_length(cache.length + tokens.size(1))
        known: dict[str, Any] = {}
        if real is not None:
            known["attention_mask"] = real.long()
            if self.takes_places:
                places = (real.cumsum(1) - 1).clamp(min=0) + self.first_place
                known["position_ids"] = places[:, cache.length :]
        result = self.causal(tokens, past_key_values=cache.key_values, use_cache=True, **known)
        return result.logits[:, -1]

    def _check_length(self, tokens: int) -> None:
        if self.positions is not None and tokens > self.positions:
            raise ValueError(
                f"model.architecture = {self.spec.architecture}: a row of {tokens} tokens is longer "
                f"than the table of {self.positions} positions; remedy: set model.options: "
                f"{{max_position_embeddings: {tokens + self.first_place}}}, or a shorter task.context"
            )

    def _after(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        """As :meth:`step`, of whole texts. Padding moves to the end, where no token sees it, since
        recurrent models take no mask."""
        if real is None:
            return self.logits(tokens)[:, -1]
        lengths, columns = real.sum(1), torch.arange(tokens.size(1), device=tokens.device)
        moved = tokens.gather(1, (columns - lengths[:, None]) % tokens.size(1))
        return self.logits(moved)[torch.arange(len(tokens)), lengths - 1]

    def _known(self, tokens: Tensor, segments: Tensor | None) -> dict[str, Any]:
        if segments is None:
            return {}
        if not self.separates:
            why = "has layers that take no mask, so the documents in a row would see each other"
            if not self.takes_places:
                why = "takes no position_ids, so documents in a row cannot each begin at position 0"
            architecture = f"model.architecture = {self.spec.architecture}"
            raise ValueError(f"{architecture} {why}; remedy: set task.texts: joined")
        return self._apart(segments)

    def _apart(self, segments: Tensor) -> dict[str, Any]:
        mask = together(segments, segments).tril()
        if self.spec.attention == "eager":  # adds the mask to the scores
            dtype = next(self.causal.parameters()).dtype
            lowest = torch.finfo(dtype).min
            mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, lowest)
        places = places_within(segments) + self.first_place
        return {"attention_mask": mask, "position_ids": places}


def configuration(spec: HuggingFaceCausal, vocabulary: int) -> Any:
    """The library's configuration of ``spec``; ValueError for an unknown architecture or option."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if spec.architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        remedy = nearest(spec.architecture, sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
        raise ValueError(
            f"model.architecture = {spec.architecture} is not a causal language model of the "
            f"transformers library; remedy: {remedy}"
        )
    pattern = AutoConfig.for_model(spec.architecture)
    text = pattern.get_text_config(decoder=True).model_type
    if text != pattern.model_type:
        found = text in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        raise ValueError(
            f"model.architecture = {spec.architecture} holds several models, whose sizes are not set "
            f"here; remedy: {f'use {text}' if found else 'choose another architecture'}"
        )
    wanted: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": spec.d_model,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "tie_word_embeddings": spec.tied_embeddings,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    if hasattr(pattern, "is_decoder"):  # without it, BERT and its like see later tokens
        wanted["is_decoder"] = True
    if "head_dim" in vars(pattern):  # others compute it
        wanted["head_dim"] = spec.d_model // spec.heads
    for field, names in _NAMES.items():
        wanted |= {name: getattr(spec, field) for name in names if hasattr(pattern, name)}
    wanted |= {name: spec.dropout for name in vars(pattern) if _DROPOUT.search(name)}
    for name in spec.options:
        if not hasattr(pattern, name):
            known = [key for key in vars(pattern) if not key.startswith("_")]
            raise ValueError(
                f"model.options.{name} is not a field of the configuration of "
                f"{spec.architecture}; remedy: {nearest(name, known)}"
            )
    try:
        return AutoConfig.for_model(spec.architecture, **(wanted | spec.options))
    except Exception as error:  # some of the library's have no other base
        raise _refused(spec, error) from error


def _refused(spec: HuggingFaceCausal, error: Exception) -> ValueError:
    return ValueError(
        f"model.architecture = {spec.architecture} with these settings: "
        f"{' '.join(str(error).split())}; remedy: change the sizes, model.attention or model.options, "
        "or choose another architecture"
    )


def _caches(causal: Any) -> bool:
    """Whether the model continues a text from cached keys and values. Tries it with three tokens, as
    recurrent models ignore them or need states of another kind."""
    from transformers import DynamicCache

    cache, device = DynamicCache(), next(causal.parameters()).device
    tokens = torch.tensor([[BOS, EOS, EOS + 1]], device=device)
    # In 16 bits, a GPU's kernels for one token and for three round to different numbers.
    with torch.autocast(device.type, enabled=False):
        try:
            for token in tokens.split(1, dim=1):
                continued = causal(token, past_key_values=cache, use_cache=True).logits[:, -1]
        except (AttributeError, IndexError, TypeError, ValueError):
            return False
        whole = causal(tokens, use_cache=False).logits[:, -1]
    return torch.allclose(continued, whole, rtol=1e-3, atol=1e-4)


def _alike(rows: Tensor) -> bool:
    """Whether two rows are equal up to rounding."""
    first, second = rows.float()
    return bool((first - second).abs().max() <= 1e-5 * first.abs().max())
