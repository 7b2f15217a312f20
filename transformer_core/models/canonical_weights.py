"""Weights under the same names for all models that compute the same function."""

from torch import Tensor, nn

from transformer_core.models import qkv_projection


def canonical_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of ``model`` by names that do not depend on how it computes.

    A model that has a ``canonical_state_dict`` of its own gives that; in the others, projections
    have the names that ``separate`` gives them. One that has several names, as tied matrices of
    other libraries do, comes once, under the first: sums over all tensors count it once. The
    tensors are detached and share memory with the model.
    """
    own = getattr(model, "canonical_state_dict", None)
    state = qkv_projection.canonical_state_dict(model) if own is None else own()
    unique: dict[object, tuple[str, Tensor]] = {}
    for name, tensor in state.items():
        # A state dict holds detached tensors, whose identity tells nothing; parts of one parameter
        # differ in offset or shape.
        storage = tensor.untyped_storage()._cdata
        view = (storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        unique.setdefault(view, (name, tensor))
    return dict(unique.values())
