"""An imitated second device: a Python back end for PrivateUse1 that keeps the numbers on the CPU.

:func:`outcomes` takes one step of variants on it, in a process that may not use the CPU alone any
more. An operator that gets tensors of both devices raises, as on a GPU.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration

NAME = "second"


MODULE = SimpleNamespace(
    is_initialized=lambda: True,
    is_available=lambda: True,
    current_device=lambda: 0,
    device_count=lambda: 1,
    _is_in_bad_fork=lambda: False,
    manual_seed_all=lambda seed: None,
    get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
)
"""The module torch.second."""


class There(Tensor):
    """A tensor on the imitated device that wraps one on the CPU."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> "There":
        made = Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=torch.device(NAME, 0),
        )
        made.here = here
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return fallback(func, *args, **(kwargs or {}))


class Mixed(RuntimeError):
    """An operator got tensors of both devices."""


_TAKE_BOTH = ("_to_copy", "copy_", "index", "index_put_", "_index_put_impl_")
"""Operators that CUDA, too, lets take tensors of both devices: copies and indexing."""


def fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the numbers that the CPU holds."""
    name = func._schema.name.split("::")[-1]
    flat: list[Tensor] = []

    def unwrap(x: Any) -> Any:
        if isinstance(x, Tensor):
            flat.append(x)
            return x.here if isinstance(x, There) else x
        return torch.device("cpu") if isinstance(x, torch.device) and x.type == NAME else x

    plain_args, plain_kwargs = each(args, unwrap), {k: each(x, unwrap) for k, x in kwargs.items()}
    there = [x for x in flat if isinstance(x, There)]
    here = [x for x in flat if not isinstance(x, There) and x.dim() > 0]
    if there and here and name not in _TAKE_BOTH:
        raise Mixed(f"{name}: Expected all tensors to be on the same device")
    device = kwargs.get("device")
    to_there = torch.device(device).type == NAME if device is not None else bool(there)
    found = func(*plain_args, **plain_kwargs)
    known = {id(x.here): x for x in there}

    def wrap(x: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(x, There):
            return x
        # An operator that changes its argument in place must return the same tensor.
        return known[id(x)] if id(x) in known else There(x) if to_there else x

    return each(found, wrap)


def each(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with ``change`` applied to everything in its tuples and lists."""
    if isinstance(value, tuple | list):
        return type(value)(each(x, change) for x in value)
    return change(value)


def in_autocast(operator: Any) -> Any:
    """``operator`` on arguments that are converted to autocast's format."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            dtype = torch.get_autocast_dtype(NAME)

            def cast(x: Any) -> Any:
                return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

            return operator(*each(args, cast), **{k: each(x, cast) for k, x in kwargs.items()})

    return call


def register() -> torch.device:
    backend_registration._setup_privateuseone_for_python_backend(rename=NAME, backend_module=MODULE)
    library = torch.library.Library("_", "IMPL")
    library.fallback(fallback, "PrivateUse1")
    library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    products = torch.library.Library("aten", "IMPL")
    for name in ("linear", "matmul", "mm", "bmm", "addmm", "scaled_dot_product_attention"):
        operator = getattr(torch.ops.aten, name)
        products.impl(name, in_autocast(operator), "AutocastPrivateUse1")
    # torch's own arange resizes an empty tensor, which a wrapper cannot do.
    for overload in ("default", "start", "start_step"):
        operator = getattr(torch.ops.aten.arange, overload)
        products.impl(operator.name(), partial(fallback, operator), "PrivateUse1")
    register.keep = library, products
    return torch.device(NAME, 0)


def step(spec: Any, device: torch.device) -> str:
    """The outcome of a step of ``spec`` on ``device``: "ok", or what was wrong."""
    from schemas.results import BatchShape
    from tests.training.small_training import VOCABULARY
    from transformer_core.measure import memory_prediction
    from transformer_core.measure.heaviest_batch import blank_batch
    from transformer_core.models.registry import build_model
    from transformer_core.parallel.topology import Process
    from transformer_core.training.loop import optimizer_step

    process = Process(0, 1, 0, 1, device)
    with memory_prediction._silent_group(spec, process):
        model = build_model(spec.model, VOCABULARY).to(device)
        strategy = memory_prediction.expected_strategy(spec, process)
        trainer = memory_prediction._trainer(spec, process, strategy, model)
        trainer.module.train()
        shape = BatchShape(rows=4, source_tokens=7, target_tokens=6)
        batch = blank_batch([shape] * spec.training.accumulation.micro_batches, device)
        loss, norm = optimizer_step(trainer, batch, 1e-3)
        places = {x.device.type for x in (loss, norm, *model.parameters())}
    return "ok" if places == {NAME} and bool(loss.isfinite()) else f"on {places}: {loss}"


def short_run(device: torch.device) -> str:
    """Whether a short run that is checked on ``device`` gives the same certificate as on the CPU."""
    from tempfile import TemporaryDirectory

    from tests.measure.short_runs import this_rank
    from tests.training.small_training import small_spec, small_store
    from transformer_core.certify import checker, short_run_worker, tensors

    stores, found = (small_store(), small_store(9, seed=1)), []
    model = {"encoder_layers": 1, "decoder_layers": 1}
    spec = small_spec(model=model, training={"precision": {"kind": "bf16"}, "steps": 2})
    for where in (torch.device("cpu"), device):
        tensors.checking_device = lambda setup, where=where: where
        with TemporaryDirectory() as folder:
            process, output = this_rank(), Path(folder)
            found.append(short_run_worker.record(spec, process, stores, output, True, 0.1))
    expected, checked = (each.trajectory for each in found)
    same = expected.losses == checked.losses and expected.checks.updates == checked.checks.updates
    pairs = zip(expected.checks.points, checked.checks.points, strict=True)
    near = all(abs(a.expected_norm / b.expected_norm - 1) < 1e-6 for a, b in pairs)
    replayed = len(checked.after_resuming.points) == len(expected.after_resuming.points) > 0

    real = checker.Checker._passed

    def faulty(self, seen, form):
        result = real(self, seen, form)
        if self.exact.device == device:
            next(iter(result.gradients.values())).mul_(1.001)
        return result

    checker.Checker._passed = faulty
    try:
        with TemporaryDirectory() as folder:
            short_run_worker.record(spec, this_rank(), stores, Path(folder), True, 0.1)
    except RuntimeError as error:
        told = "computes a different gradient of" in str(error)
    else:
        told = False
    return "ok" if same and near and replayed and told else f"{same} {near} {replayed} {told}"


def outcomes(names: Sequence[str]) -> dict[str, str]:
    """Takes a step of each variant, and does other work, on the device; returns "ok" or the error of each."""
    from tests.training.test_training_cuda_layout import (
        SPECS,
        in_turn,
        on_a_cpu,
        sentences,
        with_one_layer,
    )
    from transformer_core.models import qkv_projection, sublayers
    from transformer_core.models.device_kind import laid_out_for

    # The compiler would trace into this device's Python code and give up.
    torch._dynamo.config.disable = True
    qkv_projection.require_cuda = lambda: None
    qkv_projection.concurrently = qkv_projection.between_synchronisations = in_turn
    sublayers.flash_over_sentences = sentences
    device, found = register(), {}

    def step_of_variant(name: str, device: torch.device) -> str:
        with laid_out_for("cuda"):
            return step(with_one_layer(on_a_cpu(SPECS[name])), device)

    work = {name: partial(step_of_variant, name) for name in names}
    work["mixed"] = lambda device: torch.ones(3, device=device) + torch.ones(3)
    work["short run"] = short_run
    for name, each in work.items():
        try:
            found[name] = str(each(device))
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found
