"""Facts about a script, observed while it trains, without knowledge of its code."""

import gc
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from transformer_core.machine.hardware import cpu_features, usable_memory_bytes
from transformer_core.machine.peak_memory import peak_rss_bytes
from transformer_core.observe.ranges import compiled_in_place
from transformer_core.parallel.nvml import cpus_near, cuda_uuid
from transformer_core.tune.boundaries import Boundaries, members, parameters_now, replacing
from transformer_core.tune.disturbance import DROPOUTS
from transformer_core.tune.nested import tensors
from transformer_core.tune.program import is_own

ATTENTION = "scaled_dot_product_attention"
CONVOLUTION = nn.modules.conv._ConvNd
AMPERE = (8, 0)  # compute capability of the first GPUs with TensorFloat-32
TRANSPARENT = (
    *("CheckpointFunctionBackward", "_DDPSinkBackward"),
    *("RegisterPreBackwardFunctionBackward", "RegisterPostBackwardFunctionBackward"),  # of FSDP2
)
"""Functions of torch, written in Python, that compute nothing themselves. A checkpoint runs a backward pass
of its own."""
VISIBLE = ("::AccumulateGrad", "::CopySlices")
"""Nodes of torch itself, named like those of extensions. The second is a change of a part in place: it keeps
the format of the whole, and what computed the part is in the graph."""


class Compiled:
    """Notes calls of compiled code in attributes, because the compiler does not guard those that it only sets."""

    classes: int


class Watch:
    """Counts the events that techniques need, in the script's process.

    ``counts`` has the number of calls of each watched function of torch. ``places`` has the line of
    the user's code that first called the outermost module, and those that made optimizers and data loaders.
    ``caller`` is the package that called the module, if it was not the user's code.
    """

    def __init__(self, boundaries: Boundaries) -> None:
        self.boundaries = boundaries
        self.counts: Counter[str] = Counter()
        self.compiled = Compiled()
        self.places: dict[str, tuple[str, int]] = {}
        self.calls: list[dict[str, Any]] = []
        """Expressions of the user's code that called an outermost module: file, line, the line and column
        at which each ends, and whether it is a ``direct`` call, not one through a function of torch, such
        as a checkpoint."""
        self.caller = ""
        self.classes = 0  # classes of the largest cross-entropy: the last dimension of its logits
        self.autocast = False
        self.normalized: set[int] = set()
        """Numbers of values per channel from which batch normalization took its statistics."""
        self.loaders: list[dict[str, Any]] = []
        self.garbage = 0  # objects in cycles that Python has freed since the first step
        self.ddp: list[dict[str, Any]] = []
        """Arguments of each DistributedDataParallel that the script made."""
        self.narrowest: set[int] = set()
        """Bytes of the shortest formats of backward passes; 0 for one that may hide a shorter one."""
        self.waits: Counter[str] = Counter()
        """How often the host waited for the GPU at each line of the user's code, while looking."""

    def install(self) -> None:
        """Watch functions of torch that techniques could replace by better ones."""
        functional, checkpoint = torch.nn.functional, torch.utils.checkpoint
        replacing(checkpoint, "checkpoint")(partial(self._counted, "checkpoint"))
        replacing(functional, ATTENTION)(self._attention)
        for name in DROPOUTS:
            replacing(functional, name)(self._dropout)
        replacing(functional, "cross_entropy")(self._cross_entropy)
        replacing(functional, "batch_norm")(self._batch_norm)
        self._making(torch.optim.Optimizer, "optimizer")
        self._making(torch.utils.data.DataLoader, "loader")
        parallel = nn.parallel.DistributedDataParallel
        self._making(parallel, "ddp")
        replacing(parallel, "register_comm_hook")(partial(self._counted, "comm_hook"))
        for owner in (torch.optim.Optimizer, nn.Module):
            replacing(owner, "zero_grad")(self._zero_grad)

    def look_for_waits(self) -> None:
        """Let torch warn whenever the host waits for the GPU (``torch.cuda.set_sync_debug_mode``),
        and count the lines instead of printing the warnings."""
        shown = warnings.showwarning

        def show(message: Any, category: Any, filename: str, lineno: int, *more: Any) -> None:
            if "synchronizing CUDA operation" not in str(message):
                shown(message, category, filename, lineno, *more)
            elif is_own(filename):
                self.waits[f"{Path(filename).name}:{lineno}"] += 1

        warnings.showwarning = show  # type: ignore[assignment]
        warnings.filterwarnings("always", message=".*synchronizing CUDA operation.*")
        if torch.cuda.is_initialized():
            torch.cuda.set_sync_debug_mode("warn")

    def stop_looking_for_waits(self) -> None:
        """Turn these warnings off: they would show in a profile."""
        if torch.cuda.is_initialized():
            torch.cuda.set_sync_debug_mode("default")

    def found(self, module: nn.Module) -> None:
        """Look at an outermost module before its first call."""
        self.autocast |= torch.is_autocast_enabled(device_of(module).type)
        self.called()

    def called(self) -> None:
        """Remember the expression that is calling an outermost module, unless its line only starts the loop
        of a library."""
        package, frame, direct = _users_frame()
        if frame is not None and package:
            self.caller = package
        elif frame is not None:
            file = str(Path(frame.f_code.co_filename).resolve())
            self.places.setdefault("call", (file, frame.f_lineno))
            position = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
            call = {"file": file, "line": frame.f_lineno, "end": [position[1], position[3]]}
            if call | {"direct": direct} not in self.calls:
                self.calls.append(call | {"direct": direct})

    def look_at(self, losses: Any) -> None:
        """Look at the graph of a backward pass before it starts."""
        self.narrowest |= {*map(_narrowest, tensors(losses))}

    def _short(self, device: torch.device) -> bool | None:
        """Whether the training computes in fewer bits than float32; None if it may do so unseen."""
        products = {"tf32", "bf16"} & formats_of_products(self.boundaries.modules, device)
        kept = {
            member.dtype
            for kind in ("parameters", "buffers")
            for _, member in members(self.boundaries.modules, kind)
        }
        if (
            not self.narrowest.isdisjoint(range(1, 4))
            or self.autocast
            or self.counts["comm_hook"] > 0
            or products
            or any(dtype.is_floating_point and dtype.itemsize < 4 for dtype in kept)
        ):
            return True
        return False if self.narrowest and 0 not in self.narrowest else None

    def note_place(self, what: str) -> None:
        """Remember the innermost line of the user's code that is running now."""
        frame = _users_frame()[1]
        if frame is not None:
            place = str(Path(frame.f_code.co_filename).resolve()), frame.f_lineno
            self.places[f"{what} {place}"] = place

    def facts(self) -> dict[str, Any]:
        """Everything seen so far, as JSON."""
        modules = self.boundaries.modules
        compiled = vars(self.compiled)
        classes = max(self.classes, compiled.get("classes", 0))
        counts = dict.fromkeys(compiled.keys() - {"classes"}, 1) | self.counts
        parameters = [p for _, p in self.boundaries.parameters()]
        inner = [part for module in modules for part in module.modules()]
        place = parameters[0].device if parameters else torch.device("cpu")
        device = place.type
        return {
            "modules": [type(module).__name__ for module in modules],
            "parameters": sum(p.numel() for p in parameters),
            "tensors": len(parameters),
            "formats": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
            "device": device,
            "block": repeated_block(modules),
            "short": self._short(place),
            "double": self.narrowest == {8} and all(p.dtype == torch.float64 for p in parameters),
            "dimensions": sorted({p.weight.dim() - 2 for p in inner if isinstance(p, CONVOLUTION)}),
            "dropout": [
                type(p).__name__ for p in inner if getattr(p, "p", 0) and "Dropout" in repr(type(p))
            ]
            or ["functional"] * bool(counts.get("dropout")),
            "heads": self._heads(classes),
            "classes": classes,
            "autocast": self.autocast,
            "compiled": any(hasattr(m, "_orig_mod") or compiled_in_place(m) for m in inner),
            "optimizers": [_class_of(o) for o in self.boundaries.optimizers],
            "groups": [
                {key: group.get(key) for key in ("fused", "foreach")}
                for o in self.boundaries.optimizers
                for group in o.param_groups
            ],
            "garbage": self.garbage / max(1, self.boundaries.backwards),
            "loaders": self.loaders,
            "ddp": self.ddp,
            "passes": len(self.boundaries.losses),
            "waits": dict(self.waits),
            "counts": counts,
            "places": self.places,
            "calls": self.calls,
            "caller": self.caller,
            "result": self.boundaries.result,
            "cycle": self.boundaries.cycle(),
            "threads": torch.get_num_threads(),
            "cpus": sorted(os.sched_getaffinity(0)),
            "near": cpus_near(place.index) if device == "cuda" else [],
            "gpu": cuda_uuid(place.index) if device == "cuda" else None,
            "capability": torch.cuda.get_device_capability(place) if device == "cuda" else None,
        }

    def _heads(self, classes: int) -> list[str]:
        """Names of the linear layers whose outputs are as wide as the logits of the loss."""
        return [
            f"{number}:{name}"
            for number, module in enumerate(self.boundaries.modules)
            for name, part in module.named_modules()
            if isinstance(part, nn.Linear) and part.out_features == classes
        ]

    def _count(self, name: str) -> None:
        """Counts a call. Code that is compiled only says that there is one: it would be compiled again
        whenever a number that it reads has changed."""
        if torch.compiler.is_compiling():
            setattr(self.compiled, name, True)
        else:
            self.counts[name] += 1

    def _counted(self, name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._count(name)
        return original(*args, **kwargs)

    def _attention(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._count(ATTENTION)
        if kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0):
            self._count("dropout")
        return original(*args, **kwargs)

    def _dropout(self, original: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        rate = kwargs.get("p", args[0] if args else 0.5)
        if rate and kwargs.get("training", args[1] if len(args) > 1 else True):
            self._count("dropout")
        return original(input, *args, **kwargs)

    def _cross_entropy(
        self, original: Any, input: Any, target: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if len(getattr(input, "shape", ())) == 2:
            if torch.compiler.is_compiling():
                self.compiled.classes = input.shape[-1]
            else:
                self.classes = max(self.classes, int(input.shape[-1]))
        return original(input, target, *args, **kwargs)

    def _batch_norm(self, original: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        training = args[4] if len(args) > 4 else kwargs.get("training", False)
        if training and not torch.compiler.is_compiling():
            self.normalized.add(input.numel() // input.shape[1])
        return original(input, *args, **kwargs)

    def _zero_grad(self, original: Any, made: Any, set_to_none: bool = True) -> None:
        self.counts["zeroed"] += not set_to_none
        original(made, set_to_none=set_to_none)

    def count_garbage(self) -> None:
        """Count the objects in cycles from now on, after the first step, in which a compiler leaves many."""
        gc.collect(1)  # not of the oldest, whose memory a fork shares
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, found: dict[str, int]) -> None:
        if phase == "stop":
            self.garbage += found["collected"]

    def _making(self, owner: Any, what: str) -> None:
        """Note where objects of a class are made, and what techniques need to know of them."""

        @replacing(owner, "__init__")
        def init(original: Any, made: Any, *args: Any, **kwargs: Any) -> None:
            self.note_place(what)
            original(made, *args, **kwargs)
            if what == "loader":
                self.loaders.append({"workers": made.num_workers, "pinned": made.pin_memory})
            elif what == "ddp":
                self.ddp.append({key: str(value) for key, value in kwargs.items()})


def _users_frame() -> tuple[str, FrameType | None, bool]:
    """The package that runs inside the user's code now, if any, the innermost frame of that code, and
    whether no function of torch runs in between."""
    package, direct = "", True
    for frame, _ in walk_stack(sys._getframe(1)):
        if is_own(frame.f_code.co_filename):
            return package, frame, direct
        name = frame.f_globals.get("__name__", "").partition(".")[0]
        if name not in ("transformer_core", "__main__", "torch"):
            package = package or name
        direct &= name != "torch" or frame.f_code.co_name == "__call__"
    return package, None, direct


def formats_of_products(modules: Iterable[nn.Module], device: torch.device) -> set[str]:
    """The formats in which products of float32 compute, and the convolutions and recurrent layers of ``modules``:
    ieee, tf32 or bf16; empty where torch's settings for them have no effect."""
    cuda = device.type == "cuda"
    if cuda and torch.cuda.get_device_capability(device) < AMPERE:
        return set()
    if not cuda and {"avx2", "amx_bf16"} & {*cpu_features()} == {"avx2"}:
        return set()  # an x86 CPU without AMX
    parts = [part for module in modules for part in module.modules()]
    layers = {"conv": CONVOLUTION, "rnn": nn.RNNBase}
    used = [name for name, kind in layers.items() if any(isinstance(p, kind) for p in parts)]
    if read := getattr(torch._C, "_get_fp32_precision_getter", None):
        return {read("cuda" if cuda else "mkldnn", name) for name in ("matmul", *used)}
    # Before torch 2.9, on CPUs only products had such a setting.
    short = torch.get_float32_matmul_precision() != "highest"
    short |= cuda and bool(used) and torch.backends.cudnn.allow_tf32
    return {("tf32" if cuda else "bf16") if short else "ieee"}


def _narrowest(loss: Tensor) -> int:
    """Bytes of the shortest format in the graph of ``loss``; 0 if functions may hide a shorter one than
    float32: those of compiled and scripted code, of extensions, or of the user."""
    seen, waiting, hidden, found = set(), [loss.grad_fn], False, loss.element_size()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = node.name()
        hidden |= isinstance(node, BackwardCFunction) and name not in TRANSPARENT
        hidden |= "::" in name and not name.endswith(VISIBLE)
        for each in (metadata.dtype for metadata in node._input_metadata):
            if each.is_floating_point or each.is_complex:
                found = min(found, each.to_real().itemsize)
        if found < 4:
            return found
        waiting += [before for before, _ in node.next_functions]
    return 0 if hidden else found


def _class_of(optimizer: Any) -> str:
    """The name of an optimizer's class, with its module if it is not torch's class of that name."""
    kind = type(optimizer)
    other = getattr(torch.optim, kind.__name__, kind)
    return kind.__name__ if other in kind.__mro__ else f"{kind.__module__}.{kind.__name__}"


def gpus_used() -> list[int]:
    """The GPUs on which this process has worked. A script need not make the one that it trains on torch's current
    device, which is the first."""
    if not torch.cuda.is_initialized():
        return []
    has_worked: Any = torch._C._cuda_hasPrimaryContext  # type: ignore[attr-defined]
    return [index for index in range(torch.cuda.device_count()) if has_worked(index)]


def bytes_of(tensors: Any) -> int:
    """Bytes of this rank's shards of tensors; shared memory counts once. Of a sparse tensor only its
    values and indices count."""
    found = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        parts = [local._values(), local._indices()] if local.is_sparse else [local]
        for part in parts:
            found[part.data_ptr(), part.numel()] = part.numel() * part.element_size()
    return sum(found.values())


class Memory:
    """Peak memory of the steps that are not recorded, and its parts."""

    def __init__(self, boundaries: Boundaries) -> None:
        self.boundaries = boundaries
        self.before = psutil.Process().memory_info().rss
        """Bytes in use before the script's first line: Python and its libraries."""

    def reset(self) -> None:
        """Forget the peak so far, if the system allows it."""
        for index in gpus_used():
            torch.cuda.reset_peak_memory_stats(index)
        with suppress(OSError):  # The peak is then that of the whole process.
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def parts(self) -> dict[str, int]:
        """Bytes at a boundary, while gradients exist: the peak, its known parts, and the memory of the
        device (``room``)."""
        modules, optimizers = self.boundaries.modules, self.boundaries.optimizers
        parameters = [parameter for _, parameter in self.boundaries.parameters()]
        buffers = [buffer for module in modules for buffer in module.buffers()]
        states = [
            value
            for optimizer in optimizers
            for state in optimizer.state.values()
            for value in (state.values() if isinstance(state, dict) else ())
            if isinstance(value, Tensor)
        ]
        peaks = {index: int(torch.cuda.max_memory_allocated(index)) for index in gpus_used()}
        # A training on the CPU may have asked the GPU for its memory.
        gpu = max(filter(peaks.get, peaks), key=peaks.__getitem__, default=None)
        return {
            "peak": peak_rss_bytes() if gpu is None else peaks[gpu],
            "libraries": self.before if gpu is None else 0,
            "weights": bytes_of([*parameters, *buffers]),
            "gradients": bytes_of(p.grad for p in parameters if p.grad is not None),
            "optimizer": bytes_of(states),
            "room": usable_memory_bytes() if gpu is None else torch.cuda.mem_get_info(gpu)[1],
        }


def device_of(module: nn.Module) -> torch.device:
    """The device of a module's first parameter that has values."""
    return next((p.device for p in parameters_now(module) if not p.is_meta), torch.device("cpu"))


def repeated_block(modules: list[nn.Module]) -> str | None:
    """The class of a Transformer's block: the largest module with submodules that occurs several
    times in a list of layers. None if there is none. A list inside another one is no block: it is not
    called."""
    found: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    parts = (part for module in modules for part in module.modules())
    lists = (part for part in parts if isinstance(part, nn.ModuleList | nn.Sequential))
    # A list may hold None where a layer is missing.
    listed = (layer for layers in lists for layer in layers if layer is not None)
    for layer in (layer for layer in listed if [*layer.children()]):
        if (kind := type(layer)).forward is not nn.Module.forward:
            found[kind.__name__] += 1
            sizes[kind.__name__] += sum(p.numel() for p in layer.parameters())
    several = [name for name, count in found.items() if count > 1 and sizes[name]]
    return max(several, key=sizes.__getitem__, default=None)


def blocks(module: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a module, without those inside another one."""
    name = repeated_block([module])
    found: list[nn.Module] = []
    for part in module.modules():
        inside = any(part is inner for outer in found for inner in outer.modules())
        if type(part).__name__ == name and not inside:
            found.append(part)
    return found
