"""Loads and checks the parts of the user's function: module, batches, loss and optimizer."""

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from schemas.config.own_training import ImportedTask
from schemas.errors import nearest

_REQUIRED = ("module", "batches", "loss", "optimizer")
_OPTIONAL = ("clip_norm",)


@dataclass(frozen=True)
class Parts:
    """Your own training, as one rank sees it."""

    module: nn.Module
    """The model."""
    batches: Iterator[Any]
    """The batches of this rank, one for each optimizer step: tensors, or tuples, lists or
    dictionaries of them, whose first dimension is that of the samples."""
    loss: Callable[[nn.Module, Any], Tensor]
    """The mean loss of a batch, a scalar."""
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    """The optimizer of parameters."""
    clip_norm: float
    """Largest norm of the gradient; 0 does not clip."""


def load_parts(task: ImportedTask, rank: int, world_size: int, seed: int) -> Parts:
    """Loads the parts that ``task.factory`` gives a rank; ValueError if one is missing or of a
    wrong type.

    What the function itself raises is not caught.
    """
    made = _function(task.factory)(rank=rank, world_size=world_size, seed=seed, **task.options)
    if not isinstance(made, dict):
        raise _wrong(task, f"gives a {type(made).__name__}", f"return {_shape()}")
    missing = [name for name in _REQUIRED if name not in made]
    if missing:
        raise _wrong(task, f"gives no {' and no '.join(missing)}", f"return {_shape()}")
    for name in made:
        if name not in (*_REQUIRED, *_OPTIONAL):
            near = nearest(name, (*_REQUIRED, *_OPTIONAL))
            raise _wrong(task, f"gives {name}, which is not known", near)
    if not isinstance(made["module"], nn.Module):
        found = type(made["module"]).__name__
        raise _wrong(task, f"module is a {found}", "give a torch.nn.Module")
    for name in ("loss", "optimizer"):
        if not callable(made[name]):
            raise _wrong(task, f"{name} is a {type(made[name]).__name__}", "give a function")
    try:
        batches = iter(made["batches"])
    except TypeError:
        found = type(made["batches"]).__name__
        raise _wrong(task, f"batches is a {found}", "give an iterable without end") from None
    clip_norm = float(made.get("clip_norm") or 0.0)
    return Parts(made["module"], batches, made["loss"], made["optimizer"], clip_norm)


def next_batch(task: ImportedTask, batches: Iterator[Any]) -> Any:
    """The next batch; ValueError where there is none."""
    try:
        return next(batches)
    except StopIteration:
        raise _wrong(task, "batches have an end", "begin again at the end of the data") from None


def checked_loss(task: ImportedTask, loss: Any) -> Tensor:
    """``loss`` if it is a scalar tensor; ValueError otherwise."""
    if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
        found = (
            f"{loss.dtype} {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        )
        raise _wrong(task, f"loss gives a {found}", "return the mean loss, a scalar tensor")
    return loss


def place_of(function: Callable[..., Any]) -> tuple[str, int] | None:
    """File and line of the ``def`` of a function below the current folder; None for a lambda, or
    where there is no source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_name == "<lambda>":
        return None
    file = Path(code.co_filename)
    if not file.is_file() or not file.resolve().is_relative_to(Path.cwd()):
        return None
    return str(file.resolve().relative_to(Path.cwd())), code.co_firstlineno


def _function(factory: str) -> Callable[..., Any]:
    module_name, _, name = factory.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing != module_name and not module_name.startswith(f"{missing}."):
            raise  # a module that the user's own module imports
        raise ValueError(
            f"task.factory = {factory}: there is no module {missing}; remedy: start snakemake in "
            "the folder that holds it, or install it"
        ) from None
    function = getattr(module, name, None)
    if not callable(function):
        names = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise ValueError(
            f"task.factory = {factory}: {module_name} has no function {name}; remedy: "
            f"{nearest(name, names)}"
        )
    return function


def _shape() -> str:
    return f"a dictionary of {', '.join(_REQUIRED)} and, if you clip, clip_norm"


def _wrong(task: ImportedTask, problem: str, remedy: str) -> ValueError:
    """One line, since the reason of a failed run shows no more."""
    return ValueError(f"task.factory = {task.factory}: {problem}; remedy: {remedy}")
