"""Reads weights and gradients of a training as whole tensors under their canonical names, and
measures how far a tensor is from its expected value."""

import copy
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from schemas.results.certificates import TensorDistance
from transformer_core.certify.floors import FEWEST
from transformer_core.models.qkv_projection import canonical_state_dict
from transformer_core.models.registry import build_model
from transformer_core.parallel.sharded_weights import (
    divided_like,
    named_tensors,
    whole_tensors,
)
from transformer_core.training.assemble import Setup
from transformer_core.training.optimizer import masters_of


def trained_names(model: nn.Module, frozen: bool = False) -> set[str]:
    """The canonical names of the tensors that ``model`` trains, and of its ``frozen`` parameters if asked
    for. Overwrites its parameters."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
        for parameter in model.parameters():
            parameter.fill_(float(frozen or parameter.requires_grad))
    # Names alone do not tell: a canonical tensor may be a part of a parameter that has another name.
    return {name for name, tensor in canonical_state_dict(model).items() if bool(tensor.all())}


COPIES = 32
"""Number of copies of all weights, in 32 bits, that a certificate keeps at a time."""


def checking_device(setup: Setup) -> torch.device:
    """Where a certificate is computed: on the training's GPU if half of the free memory is enough."""
    if setup.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(setup.device)
        needed = COPIES * 4 * sum(p.numel() for p in setup.model.parameters())
        if needed < free / 2:
            return setup.device
    return torch.device("cpu")


class CanonicalTensors:
    """Reads whole tensors of a training. Every rank must call its methods; they return tensors on
    :attr:`device`, on the main rank only, and an empty dictionary on the others."""

    def __init__(self, setup: Setup, vocabulary: int, dropout: float = 0.0) -> None:
        """``pattern``, a model that gives names and shapes, gets this ``dropout``."""
        self.setup, self.vocabulary = setup, vocabulary
        self.device = checking_device(setup)
        self.keep = setup.process.is_main
        model = setup.spec.model.model_copy(update={"dropout": dropout})
        with torch.random.fork_rng(devices=[]):
            self.pattern = build_model(model, vocabulary).to(self.device)
        for name, parameter in self.pattern.named_parameters():
            narrow = parameter.is_floating_point() and parameter.element_size() < 4
            if narrow or parameter.is_complex():
                raise ValueError(
                    f"{name} of the model has {parameter.dtype}: certificates need real weights of 32 or 64 bits; "
                    "remedy: leave fewer bits to training.precision, such as bf16_weights"
                )
        self.parameters = trained_names(self.pattern, frozen=True)
        self.trained = trained_names(self.pattern)
        # Both share memory with the pattern: values written to one can be read from the other.
        self._written = dict(self.pattern.state_dict())
        self.canonical = canonical_state_dict(self.pattern)
        """Tensors with the names and shapes of the weights, but any values, on every rank."""

    def of(self, setup: Setup) -> "CanonicalTensors":
        """A reader for another training of the same model by the same processes."""
        other = copy.copy(self)
        other.setup = setup
        return other

    def weights(self) -> dict[str, Tensor]:
        """Parameters and buffers; the optimizer's wider copies, if it keeps any."""
        masters = masters_of(self.setup.optimizer)
        named = named_tensors(self.setup.model)
        return self._read({name: masters.get(tensor, tensor) for name, tensor in named.items()})

    def rounded_weights(self) -> dict[str, Tensor] | None:
        """The weights that steps compute with, if the optimizer keeps wider ones; otherwise None."""
        if not masters_of(self.setup.optimizer):
            return None
        return self._read(named_tensors(self.setup.model))

    @torch.no_grad()
    def write(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrites the training's weights; every rank must pass the same ``weights``."""
        for name, tensor in self.canonical.items():
            tensor.copy_(weights[name])
        masters = masters_of(self.setup.optimizer)
        for name, tensor in named_tensors(self.setup.model).items():
            tensor.copy_(divided_like(self._written[name], tensor))
            if (master := masters.get(tensor)) is not None:
                master.copy_(self._written[name])

    def gradients(self, used: Mapping[Tensor, Tensor] | None = None) -> dict[str, Tensor]:
        """The gradient that the optimizer used for each trained tensor; zeros for one without. ``used`` has
        those of this rank by parameter, if the step has overwritten them."""
        return self.of_trained((lambda p: p.grad) if used is None else used.get)

    def unused(self, used: Mapping[Tensor, Tensor] | None = None) -> set[str]:
        """The names of the trained parameters without a gradient on this rank; ``used`` as above."""
        return {
            name
            for name, p in named_tensors(self.setup.model).items()
            if p.requires_grad and (p.grad if used is None else used.get(p)) is None
        }

    def held_back(self) -> dict[str, Tensor] | None:
        """The parts of gradients that messages have left out so far and will send later; None if
        messages never leave anything out."""
        kept = self.setup.strategy.held_back()
        return None if kept is None else self.of_trained(kept.get)

    def of_trained(self, value: Callable[[Tensor], Tensor | None]) -> dict[str, Tensor]:
        """A ``value`` of every trained parameter, as whole tensors; zeros where it is None."""
        found = {}
        for name, parameter in named_tensors(self.setup.model).items():
            if parameter.requires_grad:
                own = value(parameter)
                found[name] = torch.zeros_like(parameter) if own is None else own
        return self._read(found, zero=True)

    @torch.no_grad()
    def _read(self, tensors: Mapping[str, Tensor], zero: bool = False) -> dict[str, Tensor]:
        if zero:
            for tensor in self._written.values():
                tensor.zero_()
        # A tied tensor appears under one of its names, and shares memory with the others.
        for name, one in whole_tensors(tensors):
            if not self.keep:
                continue
            if name not in self._written:
                raise RuntimeError(f"the strategy renamed the weights: {name}")
            self._written[name].copy_(one)
        if not self.keep:
            return {}
        return {
            name: tensor.clone(memory_format=torch.contiguous_format)
            for name, tensor in self.canonical.items()
            if name in self.trained or not zero
        }


SMALL = 1e-15
"""Norm below which squares may underflow in 32 bits."""


def norm(x: Tensor) -> float:
    """The 2-norm of ``x``. torch's sum adds pairwise, which is as good as adding in 64 bits; its norms
    in 32 bits are less exact."""
    return math.sqrt(float((x * x).sum()))


def distance(
    name: str, step: int, found: Tensor, expected: Tensor, rounding: float, along: float = 0.0
) -> TensorDistance:
    """Compares ``found`` with ``expected``; :class:`TensorDistance` explains ``rounding`` and
    ``along``.

    A tensor that has another shape or is not finite counts as a tensor of zeros, but never as equal.
    """
    if found.shape != expected.shape:
        found = torch.full_like(expected, math.nan)
    right = norm(expected)
    if right < SMALL and expected.dtype != torch.float64:
        # Squares may underflow in 32 bits.
        return distance(name, step, found.double(), expected.double(), rounding, along)
    size = norm(found)
    unknown = not math.isfinite(size)
    if unknown:
        found, size = torch.zeros_like(expected), 0.0
    apart = norm(found - expected)
    if right == 0:
        differs = float(unknown or apart > 0)
        error, ratio, cosine = differs, 1.0 + differs, 1.0 - differs
    else:
        error, ratio = apart / right, size / right
        cosine = (size**2 + right**2 - apart**2) / (2 * size * right) if size else 0.0
    return TensorDistance(
        tensor=name,
        step=step,
        error=error,
        ratio=ratio,
        cosine=max(-1.0, min(1.0, cosine)),
        size=right,
        elements=expected.numel(),
        rounding=rounding if math.isfinite(rounding) else 1e300,
        along=along,
    )


class MeanErrors:
    """Adds up the errors of each tensor over steps: rounding errors cancel, those of a fault do not.

    Leaves out the step with the largest error: in a small tensor, a single ReLU on the other side
    of 0 outweighs the rounding errors of all steps.
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}
        self._worst: dict[str, tuple[float, Tensor]] = {}
        self._seen: dict[str, list[TensorDistance]] = {}

    def add(self, seen: TensorDistance, found: Tensor, rounded: Tensor, expected: Tensor) -> None:
        """Adds a step: the gradient ``found`` by the run, the one that the plain model computes
        ``rounded`` to the run's format, and the ``expected`` one; ``seen`` compares the first with the
        last."""
        error = torch.nan_to_num(found - expected).float()
        floor = torch.nan_to_num(rounded - expected).float()
        size = seen.error * seen.size
        if seen.tensor in self._sums:
            for total, more in zip(self._sums[seen.tensor], (error, floor), strict=True):
                total.add_(more)
        else:
            self._sums[seen.tensor] = error.clone(), floor
        if size >= self._worst.get(seen.tensor, (0.0,))[0]:
            self._worst[seen.tensor] = size, error
        self._seen.setdefault(seen.tensor, []).append(seen)

    def read(self) -> list[TensorDistance]:
        """The mean error of each tensor, relative to the mean norm of its gradient. Leaves out tensors
        with too few steps."""
        means = []
        for name, (errors, floors) in self._sums.items():
            seen = self._seen[name]
            size = sum(each.size for each in seen)
            if not size or len(seen) < FEWEST:
                continue
            error = float(torch.linalg.vector_norm(errors - self._worst[name][1]))
            floor = float(torch.linalg.vector_norm(floors))
            count = len(seen)
            along = sorted((s.ratio * s.cosine - 1 for s in seen), key=abs)[:-1]
            means.append(
                TensorDistance(
                    tensor=name,
                    step=seen[-1].step,
                    error=error / size,
                    ratio=max(0.0, 1 + sum(along) / len(along)),
                    cosine=1.0,
                    size=size / count,
                    rounding=floor / size,
                    along=math.sqrt(sum(s.along**2 for s in seen)) / count,
                )
            )
        return means
