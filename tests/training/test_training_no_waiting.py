"""No step reads a tensor on the host: a host that waits for its GPU launches nothing meanwhile."""

from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.small_training import small_setup, small_spec
from transformer_core.models.device_kind import laid_out_for
from transformer_core.parallel import messages
from transformer_core.training.assemble import Setup
from transformer_core.training.loop import optimizer_step

CASES: dict[str, dict[str, Any]] = {
    "published": {"model": {"attention": {"kind": "published"}}},
    "packed": {"batching": {"rows": {"kind": "packed"}}},
    "unclipped": {"training": {"clip_norm": 0.0}},
    "chunked": {"training": {"loss": {"kind": "chunked", "rows": 7}}},
    "central": {"parallel": {"kind": "central"}},
    "central_local_loss": {"parallel": {"kind": "central", "local_loss": True}},
}
"""Settings that no study of GPUs has: test_training_cuda_layout.py steps through their variants."""
_WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")
"""Operators whose result the host needs, or whose shape depends on numbers."""


class Waited(Exception):
    """The host would wait for its device."""


class NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket).split(".")[-1]
        if name in _WAITS or name.startswith("_unique"):
            raise Waited(name)
        return func(*args, **(kwargs or {}))


def step(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second step of a training, which must not wait."""
    batches = setup.strategy.batches(setup.feed, 0, 0)
    for number, batch in enumerate(islice(batches, 2)):
        if number == 0:
            optimizer_step(setup, batch, 1e-3)
            continue
        with monkeypatch.context() as patched, NoWaiting():
            for reading in ("tolist", "numpy", "cpu"):
                patched.setattr(Tensor, reading, _refused(reading))
            optimizer_step(setup, batch, 1e-3)
    batches.close()


def _refused(reading: str) -> Any:
    def refuse(*_: Any, **__: Any) -> None:
        raise Waited(reading)

    return refuse


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("name", CASES)
def test_no_step_waits(name, monkeypatch):
    with laid_out_for("cuda"):
        setup = small_setup(small_spec(**CASES[name]))
        setup.module.train()
        step(setup, monkeypatch)


@pytest.mark.usefixtures("group")
def test_planted_fault_numbers_of_the_central_scheme_through_the_device(monkeypatch):
    def through_the_device(self: Any, name: str, numbers: Any) -> list[int]:
        return torch.tensor(numbers).tolist()

    setup = small_setup(small_spec(parallel={"kind": "central"}))
    monkeypatch.setattr(messages.Hub, "broadcast_numbers", through_the_device)
    batches = setup.strategy.batches(setup.feed, 0, 0)
    monkeypatch.setattr(Tensor, "tolist", _refused("tolist"))
    with NoWaiting(), pytest.raises(Waited):
        next(batches)
    monkeypatch.undo()


def test_planted_fault_a_norm_that_is_read():
    with NoWaiting(), pytest.raises(Waited, match="_local_scalar_dense"):
        float(torch.ones(3).norm())
