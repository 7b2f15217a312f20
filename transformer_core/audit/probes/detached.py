"""Changes tensors without a gradient: the result must not depend on them."""

import time

import torch

from transformer_core.audit.relations import Notes
from transformer_core.audit.replay import Call, again, drawn, gap
from transformer_core.audit.watcher import Watcher
from transformer_core.tune.causes import some


def detached(
    calls: list[Call], watcher: Watcher, suspects: dict[int, str], notes: Notes, end: float
) -> None:
    """Notes trainable tensors without a gradient if their change changes the inputs of the loss. Tensors
    for which no time is left by ``end`` are not tested."""
    wrong: list[str] = []
    for call in calls:
        mine = [p for p in call.inner.parameters() if id(p) in suspects]
        if not mine or time.monotonic() > end:
            continue
        try:
            base = again(call, watcher)
        except Exception:
            continue
        for parameter in mine[:32]:
            if time.monotonic() > end:
                break
            values = parameter.data.clone()
            scale = float(values.float().std()) if values.numel() > 1 else 0.0
            generator = torch.Generator().manual_seed(1)
            noise = drawn(values, generator).to(values)
            change = {id(parameter): values + 0.1 * max(scale, 0.01) * noise}
            new = again(call, watcher, change=change)
            used = [n for n in range(len(base.outputs)) if n in call.used]
            if any(gap(new.outputs[n], base.outputs[n]) > 1e-6 for n in used):
                wrong.append(suspects[id(parameter)])
    for names in _by_module(wrong).values():
        notes.found(
            "trained",
            some(names),
            "it changes the result of the model but gets no gradient: its part is detached from "
            "the loss",
            "look for detach(), .data, no_grad() or a checkpoint without an input that "
            "requires gradients; or set requires_grad to False",
        )


def _by_module(names: list[str]) -> dict[str, list[str]]:
    """Names of tensors, grouped by their layer in a list or their outermost module."""
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        cut = next((n for n, p in enumerate(parts) if p.isdigit()), 0)
        found.setdefault(".".join(parts[: cut + 1]), []).append(name)
    return found
