"""Checkpoints that resume a run exactly, in formats that cannot execute code when read.

A checkpoint is a folder ``step-<n>`` with one safetensors file for each rank and everything else
in JSON. A rank writes its own rows of sharded tensors without communication; only the main rank
writes replicated tensors. The joined pieces are the model's tensors by name, so every strategy can
load the checkpoints of every other. (The metadata file of torch.distributed.checkpoint is a pickle,
which could execute anything.) Ranks that train apart write and load all of their own tensors, and
their own loss scales: the metadata of a rank's file holds its numbers, and the random state of
Python and NumPy, from which users' models may draw.

We write the folder under a temporary name, rename it when every rank has written its part, and
rename it again before we delete it, so a folder with the final name is always complete. Its files
have digests (:mod:`transformer_core.common.digests`). We keep the last two checkpoints: if the newest
is damaged, a run resumes from the one before. Several hosts need a shared file system.
"""

import json
import random
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from schemas.config.run_spec import RunSpec
from schemas.errors import ConfigError, PeerLost
from transformer_core.common.digests import check, record, write_result
from transformer_core.common.progress import log
from transformer_core.parallel.sharded_weights import divided_like, is_sharded, named_tensors, piece
from transformer_core.parallel.topology import Process
from transformer_core.training.assemble import Setup

_PREFIX = "step-"
_KEPT = 2
_PATIENCE = 600.0  # seconds that the main rank waits for the parts of the others
_FAREWELL = 10.0  # the same after an error that ends the training: they may be gone
_MODEL, _OPTIMIZER, _RANDOM, _MESSAGES = "model/", "optimizer/", "random/", "messages/"
_BUFFER = "buffer/"  # of the model, not among its saved ones
_COUNTED = "groups"
_NUMBERS = "numbers"


def save(folder: Path, setup: Setup, step: int, state: dict[str, Any]) -> Path | None:
    """Writes the checkpoint of ``step`` (optimizer steps done), and keeps the one before it.

    Every rank must call this. ``state`` is stored as JSON. Returns the path on the main rank; None
    on the others, or if a thread writes the checkpoint during the training, until :func:`wait`.
    """
    final = folder / f"{_PREFIX}{step:08d}"
    partial = folder / f".{final.name}.partial"
    main = setup.process.is_main
    wait()
    if main:
        for left_over in folder.glob(f".{_PREFIX}*"):
            shutil.rmtree(left_over)
        partial.mkdir(parents=True)
    setup.strategy.synchronise()
    shared, scalars = _state(setup)
    every = main or setup.strategy.apart
    # If ranks divide the optimizer's state, each holds that of different parameters.
    divided = setup.spec.training.optimizer.state.divided
    own = {}
    for name, tensor in shared.items():
        mine = piece(tensor, every or (divided and name.startswith(_OPTIMIZER)))
        if mine is not None and name.startswith(_BUFFER):
            # It may be a view of another or of a weight, and a file holds no memory twice.
            mine = mine.to("cpu", copy=True)
        if mine is not None:
            own[name] = mine.contiguous()
    messages = {f"{_MESSAGES}{name}": t for name, t in setup.strategy.memory().items()}
    own |= messages | _random_state(setup.strategy.devices)
    found = {
        "step": step,
        "spec": identity(setup.spec),
        "world_size": setup.process.world_size,
        "state": state,
    }
    draws = {"python": random.getstate(), "numpy": np.random.get_state()}
    counts = {"optimizer": scalars, "precision": setup.precision.state(), "draws": draws}
    numbers = json.dumps(counts, default=np.ndarray.tolist)
    if setup.spec.training.checkpoint_writing == "behind":
        # Copies, because training continues to change the tensors.
        copied = {name: tensor.to("cpu", copy=True) for name, tensor in own.items()}
        work = (setup.process, final, partial, copied, numbers, json.dumps(found))
        _failed.clear()
        _writing.append(ThreadPoolExecutor(1, "checkpoint").submit(_write_behind, *work))
        return None
    _write(setup.process, final, partial, own, numbers)
    setup.strategy.synchronise()
    if not main:
        return None
    return _complete_with(final, partial, json.dumps(found))


def identity(spec: RunSpec) -> str:
    """Digest of a run spec without the interval of its checkpoints, which changes no training."""
    training = spec.training.model_copy(update={"checkpoint_every": 0})
    return spec.model_copy(update={"training": training}).digest()


def wait() -> None:
    """Waits until the checkpoint being written, if any, is on disk. Raises an error of the write."""
    while _writing:
        _writing.pop().result()


def finish_after_error() -> None:
    """Waits for the checkpoint being written, if any, when an error ends the training. That error
    counts, not one of the write."""
    _failed.set()
    with suppress(Exception):
        wait()


_writing: list[Future[None]] = []  # the checkpoint being written
_failed = threading.Event()  # whether an error ends the training


def _write_behind(
    process: Process, final: Path, partial: Path, own: dict[str, Tensor], numbers: str, text: str
) -> None:
    """Writes a rank's part of a checkpoint, on a thread; the main rank's thread completes it."""
    _write(process, final, partial, own, numbers)
    # Ranks signal through files, since a collective here would mix with those of the training.
    (partial / f"{process.rank}.done").touch()
    if process.is_main:
        done = {rank: partial / f"{rank}.done" for rank in range(process.world_size)}
        deadline = time.monotonic() + _PATIENCE
        while missing := [rank for rank, path in done.items() if not path.exists()]:
            if _failed.is_set():
                deadline = min(deadline, time.monotonic() + _FAREWELL)
            if time.monotonic() > deadline:
                ranks = f"rank{'s'[: len(missing) > 1]} {', '.join(map(str, missing))}"
                raise PeerLost(f"{ranks} did not write a part of the checkpoint {final}")
            time.sleep(0.02)
        for path in done.values():
            path.unlink()
        _complete_with(final, partial, text)


def _write(
    process: Process, final: Path, partial: Path, own: dict[str, Tensor], numbers: str
) -> None:
    file = _shard(partial, process.rank)
    try:
        save_file(own, file, metadata={_NUMBERS: numbers})
    except SafetensorError as error:  # it names no file
        raise SafetensorError(f"{file}: {error}") from None
    record(file, of=final / file.name)


def _complete_with(final: Path, partial: Path, text: str) -> Path:
    """Gives the written checkpoint its final name, and deletes older ones, and later ones of another
    run or damaged, from which this run did not resume."""
    write_result(partial / "state.json", text, of=final / "state.json")
    _discard(final)
    partial.rename(final)
    every = _complete(final.parent)
    kept = [path for path in every if path <= final][-_KEPT:]
    for path in every:
        if path not in kept:
            _discard(path)
    return final


def latest(folder: Path, setup: Setup) -> Path | None:
    """The newest intact checkpoint of this run spec, if there is one; only the interval of checkpoints
    may differ.

    Every rank must call this. The log names damaged checkpoints, and those of other run specs.
    """
    if _writing:
        wait()
        setup.strategy.synchronise()  # until the main rank has renamed it
    own = next((path for path in reversed(_complete(folder)) if _usable(path, setup)), None)
    # Every host must be able to read it, so the oldest of all ranks' choices counts.
    steps = setup.strategy.gather([-1.0 if own is None else float(_step(own))])
    oldest = int(min(step for (step,) in steps))
    return None if oldest < 0 else folder / f"{_PREFIX}{oldest:08d}"


def load(path: Path, setup: Setup) -> tuple[int, dict[str, Any]]:
    """Restores weights, optimizer and random state; returns the steps done and ``state``.

    The checkpoint may come from another strategy or number of ranks. If the number differs, it has
    no random state and messages for the ranks, so these keep their random state and start without
    messages.

    Raises ValueError if it belongs to another model.
    """
    record = _record(path)
    alone = setup.process.rank if setup.strategy.apart else None
    tensors = _Tensors(path, alone)
    with safe_open(_shard(path, alone or 0), "pt") as own:
        numbers = json.loads(own.metadata()[_NUMBERS])
    _load_model(setup, tensors)
    _load_optimizer(setup, tensors, numbers["optimizer"])
    setup.precision.load(numbers["precision"])
    if record["world_size"] == setup.process.world_size:
        with safe_open(_shard(path, setup.process.rank), "pt") as own:
            _load_random_state(own, setup.strategy.devices)
            _load_draws(**json.loads(own.metadata()[_NUMBERS])["draws"])
            names = [name for name in own.keys() if name.startswith(_MESSAGES)]  # noqa: SIM118
            messages = {name.removeprefix(_MESSAGES): own.get_tensor(name) for name in names}
        setup.strategy.remember(messages)
    return record["step"], record["state"]


def _record(path: Path) -> dict[str, Any]:
    return json.loads((path / "state.json").read_text())


def _usable(path: Path, setup: Setup) -> bool:
    try:
        check(path / "state.json")
        record = _record(path)
        if record["spec"] != identity(setup.spec):
            return _left_out(setup, str(path), "is of another run spec")
        for rank in range(record["world_size"]):
            check(_shard(path, rank))
            with safe_open(_shard(path, rank), "pt"):
                pass
    except ConfigError as error:
        return _left_out(setup, error.problems[0].file, error.problems[0].message)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        return _left_out(setup, str(path), f"cannot be read ({error})")
    return True


def _left_out(setup: Setup, file: str, message: str) -> bool:
    if setup.process.is_main:
        log.warning("%s %s: ignoring this checkpoint", file, message)
    return False


def _step(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX))


def _shard(path: Path, rank: int) -> Path:
    return path / f"rank-{rank:05d}.safetensors"


def _complete(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if path.name[-8:].isdigit())


def _discard(path: Path) -> None:
    """Deletes a checkpoint; an interrupted deletion leaves no folder with the final name."""
    if path.exists():
        removed = path.rename(path.with_name(f".{path.name}.removed"))
        shutil.rmtree(removed)


def _state(setup: Setup) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and optimizer state by name: this rank's tensors, and the numbers."""
    weights = named_tensors(setup.model)
    tensors = {f"{_MODEL}{name}": tensor for name, tensor in weights.items()}
    tensors |= {f"{_BUFFER}{name}": value for name, value in _buffers(setup.model).items()}
    # Some optimizers keep counts in their groups, where all counts are equal.
    group = setup.optimizer.param_groups[0]
    scalars = {f"{_COUNTED}/{key}": group[key] for key in getattr(setup.optimizer, "counted", ())}
    for name, parameter in weights.items():
        for key, value in setup.optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                scalars[f"{name}/{key}"] = value
                continue
            if is_sharded(parameter) and value.dim() and not is_sharded(value):
                raise ValueError(f"{key} of {name} is not sharded as its parameter is")
            tensors[f"{_OPTIMIZER}{name}/{key}"] = value
    return tensors, scalars


class _Tensors:
    """The tensors of a checkpoint, read on demand, one at a time: those of all ranks, or of ``rank``."""

    def __init__(self, path: Path, rank: int | None) -> None:
        self.holders: dict[str, list[Any]] = {}
        files = sorted(path.glob("rank-*.safetensors")) if rank is None else [_shard(path, rank)]
        for file in files:
            opened = safe_open(file, "pt")
            for name in opened.keys():  # noqa: SIM118 (a file is not a mapping)
                self.holders.setdefault(name, []).append(opened)

    def below(self, prefix: str) -> list[str]:
        """The names that start with ``prefix``, without it."""
        return [name.removeprefix(prefix) for name in self.holders if name.startswith(prefix)]

    def whole(self, name: str) -> Tensor:
        """Joins the pieces of all ranks in order."""
        pieces = [file.get_tensor(name) for file in self.holders[name]]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


@torch.no_grad()
def _load_model(setup: Setup, tensors: _Tensors) -> None:
    weights = named_tensors(setup.model)
    if other := weights.keys() ^ tensors.below(_MODEL):
        raise ValueError(f"the checkpoint is of another model: only one of them has {min(other)}")
    for name, weight in weights.items():
        saved = tensors.whole(f"{_MODEL}{name}")
        if saved.shape != weight.shape and not isinstance(weight, nn.Parameter):
            replace_buffer(setup.model, name, saved.to(setup.process.device))
            continue
        if saved.shape != weight.shape:
            shapes = f"{tuple(saved.shape)} instead of {tuple(weight.shape)}"
            raise ValueError(f"the checkpoint is of another model: {name} is {shapes}")
        weight.copy_(divided_like(saved, weight))
    buffers = _buffers(setup.model)
    for name in tensors.below(_BUFFER):
        saved, buffer = tensors.whole(f"{_BUFFER}{name}"), buffers.get(name)
        if buffer is not None and buffer.shape == saved.shape and 0 not in buffer.stride():
            buffer.copy_(saved)
        else:  # a table that grows, for example, or one number in several places
            replace_buffer(setup.model, name, saved.to(setup.process.device), persistent=False)


def replace_buffer(model: nn.Module, name: str, value: Tensor, persistent: bool = True) -> None:
    """Replaces a buffer by one of another shape: some grow in training, such as tables of positions."""
    owner, _, last = name.rpartition(".")
    model.get_submodule(owner).register_buffer(last, value, persistent=persistent)


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that the model does not save itself."""
    saved = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name not in saved}


def _load_optimizer(setup: Setup, tensors: _Tensors, scalars: dict[str, Any]) -> None:
    # The groups (learning rate, betas) come from the run spec, not from the checkpoint.
    optimizer, weights = setup.optimizer, named_tensors(setup.model)
    step_on_device = {
        parameter: group.get("fused") or group.get("capturable")
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    # An optimizer with divided state wraps another, which holds this rank's share.
    kept = {
        parameter
        for group in getattr(optimizer, "optim", optimizer).param_groups
        for parameter in group["params"]
    }
    optimizer.state.clear()
    for full_name in tensors.below(_OPTIMIZER):
        name, key = full_name.rsplit("/", 1)
        if weights[name] not in kept:
            continue
        parameter, value = weights[name], tensors.whole(f"{_OPTIMIZER}{full_name}")
        if value.shape == parameter.shape and key != "step":
            value = divided_like(value, parameter)
        elif key != "step" or step_on_device[parameter]:
            value = value.to(parameter.device)
        optimizer.state[parameter][key] = value
    for full_name, number in scalars.items():
        name, key = full_name.rsplit("/", 1)
        if name == _COUNTED:
            for group in optimizer.param_groups:
                group[key] = number
        else:
            optimizer.state[weights[name]][key] = number


def _random_state(devices: Sequence[torch.device]) -> dict[str, Tensor]:
    """The random state of the host and of each GPU that this process drives."""
    state = {f"{_RANDOM}cpu": torch.get_rng_state()}
    for number, device in enumerate(devices):
        if device.type == "cuda":
            state[f"{_RANDOM}cuda-{number}"] = torch.cuda.get_rng_state(device)
    return state


def _load_random_state(tensors: Any, devices: Sequence[torch.device]) -> None:
    torch.set_rng_state(tensors.get_tensor(f"{_RANDOM}cpu"))
    for number, device in enumerate(devices):
        name = f"{_RANDOM}cuda-{number}"
        if device.type == "cuda" and name in [*tensors.keys()]:  # not after a training on the CPU
            torch.cuda.set_rng_state(tensors.get_tensor(name), device)


def _load_draws(python: Sequence[Any], numpy: Sequence[Any]) -> None:
    """Restores the random state of Python and NumPy."""
    version, words, gauss = python
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(numpy))
