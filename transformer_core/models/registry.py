"""Builds models from their schemas."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from torch import Tensor, nn

from schemas.config.model import (
    AnyLanguageModel,
    AnyModel,
    DecoderOnly,
    HuggingFaceCausal,
    ImportedModel,
)
from transformer_core.common.factories import function_of, wrong
from transformer_core.models.attention import leave_out_cudnn
from transformer_core.models.decoding import PrefixCache
from transformer_core.models.huggingface import build_huggingface
from transformer_core.models.interface import Cache
from transformer_core.models.language_model import build_decoder
from transformer_core.models.torch_nn import build_torch_nn
from transformer_core.models.transformer import EncoderDecoder, build_transformer

SETTING = "model.factory"
_DECODING = ("encode", "decode", "new_cache")


class ImportedEncoderDecoder(nn.Module):
    """A user's module as a :class:`~transformer_core.models.interface.Model`.

    The module only needs ``forward(source, target_input) -> logits``. If it also has ``encode``,
    ``decode`` and ``new_cache``, translation uses them; otherwise, every decoding step computes the
    whole prefix by ``forward``.
    """

    def __init__(self, module: nn.Module, vocabulary: int, factory: str) -> None:
        super().__init__()
        self.own: Any = module
        self.vocabulary = vocabulary
        self.wrong = partial(wrong, SETTING, factory)
        self.decodes = all(hasattr(module, name) for name in _DECODING)

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        """source [b, s], target_input [b, t] (BOS first) -> logits [b, t, v] of the next tokens.

        Raises ValueError if the module returns anything else.
        """
        logits = self.own(source, target_input)
        expected = (*target_input.shape, self.vocabulary)
        if not isinstance(logits, Tensor):
            problem = f"forward returns a {type(logits).__name__}, not a tensor"
            raise self.wrong(problem, "return only the logits [b, t, v]")
        if logits.shape != expected or not logits.is_floating_point():
            raise self.wrong(
                f"forward returns {logits.dtype} {list(logits.shape)} for a source "
                f"{list(source.shape)} and a target_input {list(target_input.shape)}",
                f"return logits {list(expected)}: sentences, target tokens, vocabulary",
            )
        return logits

    def encode(self, source: Tensor) -> Tensor:
        """source [b, s] -> the memory for :meth:`decode`, one row per sentence."""
        # Without an encoder, decode() starts from the source itself.
        return self.own.encode(source) if self.decodes else source

    def decode(
        self, memory: Tensor, source: Tensor, target_input: Tensor, cache: Any = None
    ) -> Tensor:
        if self.decodes:
            return self.own.decode(memory, source, target_input, cache)
        prefix = target_input if cache is None else cache.extend(target_input)
        return self(source, prefix)[:, -target_input.size(1) :]

    def new_cache(self) -> Cache:
        return self.own.new_cache() if self.decodes else PrefixCache()


def _misfit(function: Callable[..., Any], *arguments: object) -> TypeError | None:
    """Why a function does not take these arguments; None if it does, or does not say."""
    with suppress(ValueError):  # some of C have no signature
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            return error
    return None


def build_imported(spec: ImportedModel, vocabulary: int) -> ImportedEncoderDecoder:
    """Wraps the module that the user's ``factory(spec, vocabulary)`` returns as a model.

    Raises ValueError if there is no such function, it does not take these two, it does not return a
    module, or the module has nothing to train, state that no checkpoint holds, or parameters that
    share memory. Does not catch errors of the function itself.
    """
    factory, refused = function_of(SETTING, spec.factory), partial(wrong, SETTING, spec.factory)
    if (misfit := _misfit(factory, spec, vocabulary)) is not None:
        remedy = "define it with two parameters: spec, vocabulary"
        raise refused(f"cannot be called ({misfit})", remedy)
    module = factory(spec, vocabulary)
    if not isinstance(module, nn.Module):
        problem = f"returns a {type(module).__name__}, not a torch.nn.Module"
        raise refused(problem, "return a module with forward(source, target_input) -> logits")
    missing = [name for name in _DECODING if not hasattr(module, name)]
    if 0 < len(missing) < len(_DECODING):
        problem = f"the module has no {' and no '.join(missing)}"
        raise refused(problem, f"define all of {', '.join(_DECODING)}, or none of them")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        problem = "the module has no parameter that requires a gradient"
        raise refused(problem, "return one with something to train")
    if others := [name for name, x in module.state_dict().items() if not isinstance(x, Tensor)]:
        problem = f"{others[0]} in the state of the module is not a tensor"
        raise refused(problem, "keep it in a buffer, as checkpoints hold tensors")
    for parameter in module.parameters():
        # Compiled updates and saved weights need contiguous tensors.
        parameter.data = parameter.data.contiguous()
    _unfold_buffers(module)
    if (alike := _with_the_same_memory(module)) is not None:
        parameters = all(name in dict(module.named_parameters()) for name in alike)
        what = "parameters" if parameters else "tensors"
        raise refused(
            f"{' and '.join(alike)} are two {what} with the same memory",
            "assign one parameter to both names" if parameters else "register a copy: x.clone()",
        )
    return ImportedEncoderDecoder(module, vocabulary, spec.factory)


def _unfold_buffers(module: nn.Module) -> None:
    """Gives each saved buffer that repeats its numbers (``expand``) memory for all of them: it could be
    saved, but not loaded."""
    saved = module.state_dict()
    for name, buffer in [*module.named_buffers()]:
        if name in saved and 0 in buffer.stride():
            owner, _, last = name.rpartition(".")
            module.get_submodule(owner).register_buffer(last, buffer.contiguous())


def _with_the_same_memory(module: nn.Module) -> tuple[str, str] | None:
    """The names of two saved tensors that share memory, which no file could hold."""
    spans: dict[Any, list[tuple[int, int, str]]] = {}
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        # A tied tensor is saved once, and one with gaps as a copy.
        if id(tensor) in seen or not tensor.is_contiguous():
            continue
        seen.add(id(tensor))
        begin = tensor.storage_offset() * tensor.element_size()
        end = begin + tensor.numel() * tensor.element_size()
        known = spans.setdefault(tensor.untyped_storage()._cdata, [])
        for other_begin, other_end, other in known:
            if begin < other_end and other_begin < end:
                return other, name
        known.append((begin, end, name))
    return None


BUILDERS: dict[str, Callable[[Any, int], nn.Module]] = {
    "transformer": build_transformer,
    "torch_nn": build_torch_nn,
    "huggingface": build_huggingface,
    "import": build_imported,
    "decoder_only": build_decoder,
    "huggingface_causal": build_huggingface,
}
"""Builder of a model by the ``kind`` of its schema."""


def build_model(
    spec: AnyModel | AnyLanguageModel, vocabulary: int, packed: bool = False
) -> nn.Module:
    """Builds the model of ``spec`` over ``vocabulary`` tokens, with initial weights.

    It lies on torch's default device (``torch.device`` as a context), and its weights depend on
    torch's seed. It is a :class:`transformer_core.models.interface.Model` or
    a :class:`transformer_core.models.decoding.LanguageModel`; with ``packed``, rows may hold several
    pairs. Raises ValueError for a kind of encoder-decoder that cannot take such rows.
    """
    leave_out_cudnn()
    model = BUILDERS[spec.kind](spec, vocabulary)
    if packed and not isinstance(spec, DecoderOnly | HuggingFaceCausal):
        if not isinstance(model, EncoderDecoder):
            raise ValueError(f"a model of kind {spec.kind} cannot separate the pairs of a row")
        model.packed = True
    return model
