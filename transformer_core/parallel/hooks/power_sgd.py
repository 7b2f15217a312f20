"""PowerSGD (Vogels et al., NeurIPS 2019, arXiv 1905.13727): two thin factors for every matrix."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.futures import Future

from schemas.config.parallel import PowerSgdHook
from transformer_core.parallel.communication.traffic import Traffic
from transformer_core.parallel.hooks.base_hook import Hook

_ERROR, _FACTOR, _STEPS = "error/", "factor/", "steps"


class PowerSgd(Hook):
    """torch's PowerSGD: two thin factors of every gradient matrix in its place.

    What a step leaves out is added to the next one (error feedback), which begins with the second
    factors of the step before. torch keeps both by bucket. A run that goes on from a checkpoint has
    other buckets in its first step than in those after it, so they are kept here by parameter where
    buckets change. On a CPU, backward waits for every bucket.
    """

    def __init__(self, traffic: Traffic, spec: PowerSgdHook, reductions_per_step: int) -> None:
        super().__init__(traffic)
        self.state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=spec.rank,
            start_powerSGD_iter=spec.start_step * reductions_per_step,
            random_seed=0,  # of the first factors, which must be the same on all ranks
        )
        self.parameters: dict[int, list[Tensor]] = {}
        self.kept: dict[Tensor, tuple[Tensor | None, Tensor | None]] = {}
        """Error and second factor, flat, of parameters whose bucket has not come since."""

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:
        plain = self.state.iter < self.state.start_powerSGD_iter
        before = self.state.total_numel_after_compression
        buffer = bucket.buffer()
        self._take_up(bucket.index(), bucket.parameters(), compresses=not plain)
        with _own_random_numbers(buffer.device):
            future = powerSGD_hook.powerSGD_hook(self.state, bucket)
        if buffer.device.type != "cuda":
            # The second and third all-reduce are started by whatever thread of gloo ends the one
            # before. Ranks would not agree on their order with the first of the next bucket.
            future.wait()
        compressed = self.state.total_numel_after_compression - before
        payload = (buffer.numel() if plain else compressed) * buffer.element_size()
        # Compressed, a bucket takes three: what does not pay to compress, and the two factors.
        self.traffic.add_all_reduce(payload, dist.get_world_size(), calls=1 if plain else 3)
        return future

    @torch.no_grad()
    def held_back(self) -> dict[Tensor, Tensor]:
        found: dict[Tensor, Tensor] = {}
        for index, parameters in sorted(self.parameters.items()):
            errors = self.state.error_dict.get(index)
            if errors is not None:
                mean = errors.clone()
                dist.all_reduce(mean)
                mean.div_(dist.get_world_size())
                found |= {p: part.view_as(p) for p, part in _parts(mean, parameters)}
        return found

    def memory(self, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
        memory = {_STEPS: torch.tensor(self.state.iter)}
        for parameter, (error, factor) in (self.kept | self._apart()).items():
            for prefix, flat in ((_ERROR, error), (_FACTOR, factor)):
                if flat is not None:
                    memory[f"{prefix}{names[parameter]}"] = flat.clone()
        return memory

    def remember(self, memory: Mapping[str, Tensor], names: Mapping[Tensor, str]) -> None:
        if _STEPS not in memory:
            return
        self.state.iter = int(memory[_STEPS])
        self._forget()
        self.kept = {
            parameter: (
                _at(memory.get(f"{_ERROR}{name}"), parameter),
                _at(memory.get(f"{_FACTOR}{name}"), parameter),
            )
            for parameter, name in names.items()
        }

    def _take_up(self, index: int, parameters: list[Tensor], compresses: bool) -> None:
        """Let torch find under ``index`` what it kept of these parameters in any bucket."""
        if index in self.parameters and not _same(self.parameters[index], parameters):
            self.kept |= self._apart()
            self._forget()
        self.parameters[index] = parameters
        state = self.state
        if not compresses or index in state.q_memory_dict:
            return
        pieces = {p: self.kept.pop(p) for p in parameters if p in self.kept}
        errors = [pieces[p][0] for p in parameters if p in pieces]
        known = [error for error in errors if error is not None]
        if len(known) == len(parameters):
            state.error_dict[index] = torch.cat(known)
        compressed = self._compressed(parameters)
        factors = [pieces[p][1] for p, _, _ in compressed if p in pieces]
        found = [factor for factor in factors if factor is not None]
        if found and len(found) == len(compressed):
            state.q_memory_dict[index] = torch.cat(found)
            # Written before it is read: only its size counts.
            size = sum(rows for _, rows, _ in compressed)
            state.p_memory_dict[index] = found[0].new_empty(size)

    def _apart(self) -> dict[Tensor, tuple[Tensor | None, Tensor | None]]:
        """Error and second factor of every parameter, of the buckets that there are."""
        found: dict[Tensor, tuple[Tensor | None, Tensor | None]] = {}
        for index, parameters in self.parameters.items():
            errors, factors = (
                memory.get(index) for memory in (self.state.error_dict, self.state.q_memory_dict)
            )
            if factors is None:
                continue
            compressed = self._compressed(parameters)
            sizes = [columns for _, _, columns in compressed]
            own = dict(zip((p for p, _, _ in compressed), factors.split(sizes), strict=True))
            error = {} if errors is None else dict(_parts(errors, parameters))
            found |= {p: (error.get(p), own.get(p)) for p in parameters}
        return found

    def _forget(self) -> None:
        state = self.state
        for memory in (self.parameters, state.error_dict, state.p_memory_dict, state.q_memory_dict):
            memory.clear()

    def _compressed(self, parameters: Sequence[Tensor]) -> list[tuple[Tensor, int, int]]:
        """The matrices of a bucket that are compressed, with the elements of their first and second
        factors, in the order in which torch lays these out: by shape."""
        by_shape: dict[tuple[int, int], list[tuple[Tensor, int, int]]] = {}
        for parameter in parameters:
            n = parameter.shape[0]
            m = parameter.numel() // n
            rank = min(n, m, self.state.matrix_approximation_rank)
            if powerSGD_hook._should_compress(n, m, rank, self.state.min_compression_rate)[0]:
                by_shape.setdefault((n, m), []).append((parameter, n * rank, m * rank))
        return [one for group in by_shape.values() for one in group]


def _own_random_numbers(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Keep the random numbers of a GPU. torch draws the first factors on the CPU, from a seed that
    is the same on all ranks, and sets that of every GPU by the way: from then on all replicas would
    drop the same activations."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    return torch.random.fork_rng([device])


def _parts(flat: Tensor, parameters: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """What ``flat`` has of each parameter."""
    sizes = [parameter.numel() for parameter in parameters]
    return list(zip(parameters, flat.split(sizes), strict=True))


def _same(ours: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(ours) == len(others) and all(map(_is, ours, others))


def _is(one: Tensor, other: Tensor) -> bool:
    return one is other


def _at(flat: Tensor | None, parameter: Tensor) -> Tensor | None:
    return None if flat is None else flat.to(parameter.device)
