"""From the schema of a model to the model."""

from collections.abc import Callable
from typing import Any

from torch import nn

from schemas.config.model import AnyLanguageModel, AnyModel
from transformer_core.models.attention import leave_out_cudnn
from transformer_core.models.huggingface import build_huggingface, build_huggingface_causal
from transformer_core.models.language_model import build_decoder
from transformer_core.models.torch_nn import build_torch_nn
from transformer_core.models.transformer import EncoderDecoder, build_transformer
from transformer_core.models.user_model import build_imported

BUILDERS: dict[str, Callable[[Any, int], nn.Module]] = {
    "transformer": build_transformer,
    "torch_nn": build_torch_nn,
    "huggingface": build_huggingface,
    "import": build_imported,
}
"""Builder of a model by the ``kind`` of its schema."""

LANGUAGE_BUILDERS: dict[str, Callable[[Any, int], nn.Module]] = {
    "decoder_only": build_decoder,
    "huggingface_causal": build_huggingface_causal,
}
"""Builder of a language model by the ``kind`` of its schema."""


def build_model(
    spec: AnyModel | AnyLanguageModel, vocabulary: int, packed: bool = False
) -> nn.Module:
    """The model of ``spec`` over ``vocabulary`` tokens, with initial weights.

    It lies on torch's default device (``torch.device`` as a context), and its weights depend on
    torch's seed. It follows :class:`transformer_core.models.interface.Model`; with ``packed``, also
    where a row holds several pairs. Raises ValueError for a kind of model that cannot do that.
    """
    leave_out_cudnn()
    if spec.kind in LANGUAGE_BUILDERS:
        return build_language_model(spec, vocabulary)  # type: ignore[arg-type]
    model = BUILDERS[spec.kind](spec, vocabulary)
    if packed:
        if not isinstance(model, EncoderDecoder):
            raise ValueError(f"a model of kind {spec.kind} cannot tell the pairs of a row apart")
        model.packed = True
    return model


def build_language_model(spec: AnyLanguageModel, vocabulary: int) -> nn.Module:
    """The model of ``spec`` over ``vocabulary`` tokens, with initial weights.

    It lies on torch's default device, and its weights depend on torch's seed. It follows
    :class:`transformer_core.models.interface.LanguageModel`.
    """
    leave_out_cudnn()
    return LANGUAGE_BUILDERS[spec.kind](spec, vocabulary)
