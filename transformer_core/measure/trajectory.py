"""One process of a short run that a certificate compares: losses, gradient norms and weights.

Started by :mod:`transformer_core.measure.short_run`, not by hand.
"""

import argparse
import hashlib
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from schemas.results import SeedTrajectory, ShardManifest, Trajectory
from schemas.study import RunSpec
from transformer_core.data.files import atomic_path, write_text
from transformer_core.data.local_copies import open_nearest
from transformer_core.data.store import PairStore
from transformer_core.measure.outcome import supervised
from transformer_core.measure.progress import Progress, log_to
from transformer_core.measure.provenance import collect
from transformer_core.model.build import build_model
from transformer_core.model.canonical import canonical_state_dict
from transformer_core.parallel.sharding import whole_weights
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.topology import Process, this_process
from transformer_core.train.assemble import Setup, assemble
from transformer_core.train.loop import Diverged, train


class Recorder:
    """The observer of a short run: keeps what every step computed, on the device."""

    def __init__(self, strategy: Strategy, progress: Progress) -> None:
        self.strategy = strategy
        self.progress = progress
        self.target_tokens: list[int] = []
        self.loss_sums: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.differences: list[float | None] = []

    def start(self, step: int) -> None:
        """See :class:`transformer_core.train.loop.Observer`; likewise below."""
        self.progress.start(step)

    def updated(self, step: int, target_tokens: int, loss_sum: Tensor, norm: Tensor) -> None:
        self.target_tokens.append(target_tokens)
        self.loss_sums.append(loss_sum.detach().double())
        self.norms.append(norm.detach().double())
        self.differences.append(self.strategy.replica_difference())

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        self.progress.step_done(tokens)

    def logged(self, step: int, loss: float) -> None:
        self.progress.logged(step, loss)

    def validated(self, step: int, loss: float) -> None:
        pass

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass

    def read(self, seed: int, initial_sha256: str) -> SeedTrajectory:
        """The record of all ranks, on every rank; Diverged if a loss is not finite."""
        sums = self.strategy.sum(torch.stack(self.loss_sums)).tolist()
        norms = torch.stack(self.norms).tolist()
        losses = [total / tokens for total, tokens in zip(sums, self.target_tokens, strict=True)]
        for step, loss in enumerate(losses, start=1):
            if not math.isfinite(loss):
                raise Diverged(f"training loss at step {step} is {loss}")
        differences = [difference for difference in self.differences if difference is not None]
        return SeedTrajectory(
            seed=seed,
            initial_sha256=initial_sha256,
            losses=losses,
            grad_norms=[n if math.isfinite(n) else None for n in norms],
            replica_differences=differences or None,
        )


def canonical_weights(setup: Setup, vocabulary: int) -> dict[str, Tensor]:
    """The whole weights on the CPU, named as with separate projections; empty but on the main
    rank. Every rank must call this."""
    weights = whole_weights(setup.model, keep=setup.process.is_main)
    if not weights:
        return {}
    with torch.random.fork_rng(devices=[]):
        model = build_model(setup.spec.model, vocabulary)
    # A tied tensor has one of its names in the weights, and gets the others from the model.
    unexpected = model.load_state_dict(weights, strict=False).unexpected_keys
    if unexpected:
        raise RuntimeError(f"the strategy renamed the weights: {unexpected[0]}")
    contiguous = torch.contiguous_format
    state = canonical_state_dict(model)
    return {name: tensor.clone(memory_format=contiguous) for name, tensor in state.items()}


def digest(weights: dict[str, Tensor]) -> str:
    """SHA-256 of names and values."""
    hashed = hashlib.sha256()
    for name in sorted(weights):
        hashed.update(name.encode())
        hashed.update(weights[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def make_deterministic(device: torch.device) -> None:
    """Take algorithms that add in a fixed order where torch has them; on a CPU they all do."""
    if device.type == "cuda":
        # cuBLAS reads this when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Only uninitialised memory would need it, and nothing here reads any.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def record(
    spec: RunSpec,
    process: Process,
    vocabulary: int,
    stores: tuple[PairStore, PairStore],
    output: Path,
    save_weights: bool,
) -> tuple[SeedTrajectory, Strategy]:
    """Train ``spec`` on the first of ``stores``, and validate on the second.

    The main rank writes the weights before and after into ``output``, if they are to be saved.
    """
    setup = assemble(spec, process, vocabulary, *stores)
    initial = canonical_weights(setup, vocabulary)
    name = f"{spec.variant}, short run, seed {spec.training.seed}"
    progress = Progress(name, spec.training.steps, show=process.is_main)
    recorder = Recorder(setup.strategy, progress)
    train(setup, recorder, output / "no-checkpoints")
    progress.close()
    trajectory = recorder.read(spec.training.seed, digest(initial))
    final = canonical_weights(setup, vocabulary) if save_weights else {}
    if process.is_main and save_weights:
        for file, weights in (("initial", initial), ("final", final)):
            with atomic_path(output / f"{file}.safetensors") as temporary:
                save_file(weights, temporary)
    return trajectory, setup.strategy


def run(arguments: argparse.Namespace) -> None:
    """Train with every seed in turn; the main rank writes weights and trajectory.json."""
    started = datetime.now(UTC)
    spec = RunSpec.model_validate_json(arguments.spec.read_text())
    process = this_process(spec.machine, spec.processes_per_node)
    make_deterministic(process.device)
    if process.is_main:
        log_to(arguments.log_file)
    if spec.machine.threads:
        torch.set_num_threads(spec.machine.threads)
    shards = arguments.data / "shards"
    manifest = ShardManifest.model_validate_json((shards / "train/manifest.json").read_text())
    train_store = open_nearest(shards / "train/manifest.json")
    stores = (train_store, open_nearest(shards / "validation/manifest.json"))
    seeds = []
    for number in range(arguments.seeds):
        training = spec.training.model_copy(update={"seed": spec.training.seed + number})
        seeded = spec.model_copy(update={"training": training})
        # One process for all seeds: to start anew costs more than a few steps of a small model.
        trajectory, strategy = record(
            seeded, process, manifest.vocabulary, stores, arguments.output, number == 0
        )
        seeds.append(trajectory)
    if process.is_main:
        result = Trajectory(
            name=spec.variant,
            status="ok",
            reason=None,
            traceback=None,
            topology=strategy.topology(),
            seeds=seeds,
            provenance=collect(spec, arguments.command, started),
        )
        write_text(arguments.output / "trajectory.json", result.model_dump_json(indent=1) + "\n")
    strategy.synchronise()
    strategy.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--seeds", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--log-file", type=Path)
    arguments = parser.parse_args()
    with supervised(arguments.output):
        run(arguments)


if __name__ == "__main__":
    main()
