"""Weights under the same names for all models that compute the same function."""

from torch import Tensor, nn

from transformer_core.model.layers import qkv_projection


def canonical_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of ``model`` by names that do not depend on how it computes.

    A model that has a ``canonical_state_dict`` of its own gives that; in the others, projections
    have the names that ``separate`` gives them. The tensors are detached and share memory with the
    model.
    """
    own = getattr(model, "canonical_state_dict", None)
    return qkv_projection.canonical_state_dict(model) if own is None else own()
