"""Turns the dropout of a script off.

This is a separate module because torch's compiler traces the functions that replace torch's, and in
the process of a side the main module is the script.
"""

from typing import Any

import torch


def without_dropout(rates: set[float]) -> None:
    """Disables dropout, to compare programs that draw different masks. Adds the rates that the script
    requests to ``rates``."""
    functional: Any = torch.nn.functional

    def note(rate: float) -> None:
        if rate and not torch.compiler.is_compiling():
            rates.add(float(rate))

    def undropped(value: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        note(p * training)
        return value

    for name in ("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d"):
        setattr(functional, name, undropped)
    functional.dropout3d = undropped
    attention = functional.scaled_dot_product_attention

    def attend(
        q: Any, k: Any, v: Any, mask: Any = None, dropout_p: float = 0.0, *args: Any, **more: Any
    ) -> Any:
        if "attn_mask" in more:
            mask = more.pop("attn_mask")
        note(dropout_p)
        return attention(q, k, v, mask, 0.0, *args, **more)

    functional.scaled_dot_product_attention = attend
