"""Changes the first document of packed rows: predictions for the others must not change."""

from typing import Any

import torch
from torch import Tensor, nn

from transformer_core.audit.probes.probed_call import ProbedCall
from transformer_core.audit.probes.tokens import bound, integers, swapped


def documents(probed: ProbedCall) -> None:
    """Change the first document of a packed row: predictions for the others must not change."""
    found = _document_of_tokens(bound(probed.call))
    tokens = next(iter(integers(probed.call)), None)
    if found is None or tokens is None or found.shape != tokens.shape:
        probed.notes.cannot("documents", "no packed rows are seen: no positions that restart")
        return
    parts = dict(probed.call.inner.named_modules())
    for name, inputs in probed.again(inside=True).inputs.items():
        if isinstance(parts[name], nn.Embedding) and any(torch.equal(t, found) for t in inputs):
            probed.notes.cannot("documents", "segments are embedded: parts of one text")
            return
    first = found == found[:, :1]
    values = tokens.flatten()
    changed = torch.where(
        first, values[torch.randperm(len(values), device=values.device)].view_as(tokens), tokens
    )
    new = probed.again(args=swapped(probed.call, tokens, changed))
    for old, now, _, length in probed.rows_of_tokens(tokens, new):
        others = ~first[:, :length].reshape(-1)
        probed.notes.holds("documents", "the first document of each packed row changed")
        probed.same(
            "documents",
            old[others],
            now[others],
            "predictions of one document change with another document of its row",
            "let attention see only the tokens of its own document: a block mask, or "
            "variable lengths",
        )


def _document_of_tokens(given: dict[str, Any]) -> Tensor | None:
    """The document of each token of a packed row, as a number; None if rows are not packed."""
    for name, value in given.items():
        if not isinstance(value, Tensor) or value.dim() != 2 or value.is_floating_point():
            continue
        lower = name.lower()
        if any(word in lower for word in ("document", "doc_id", "segment", "seq_idx")):
            if bool((value != value[:, :1]).any()):
                return value
        elif "position" in lower or lower in ("pos", "places"):
            begins = value == 0
            if bool((begins.sum(1) > 1).any()):
                return begins.cumsum(1)
    return None
