"""Takes steps on an imitated GPU: ``python -m tests.imitated_gpu.outcomes VARIANT ...``.

Prints a line of JSON: by the name of what was tried, "ok" or what was wrong.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from schemas.config.run_spec import RunSpec
from schemas.results import BatchShape
from tests.measure.short_runs import this_rank
from tests.training import test_training_cuda_layout as layout
from tests.training.small_training import VOCABULARY, small_spec, small_store
from transformer_core.certify import checker, short_run_worker, tensors
from transformer_core.measure import memory_prediction
from transformer_core.measure.heaviest_batch import blank_batch
from transformer_core.models import sublayers
from transformer_core.models.registry import build_model
from transformer_core.parallel.topology import Process
from transformer_core.training.loop import optimizer_step

GPU = torch.device("cuda", 0)


def step(spec: RunSpec) -> str:
    process = Process(0, 1, 0, 1, GPU)
    with memory_prediction._silent_group(spec, process):
        model = build_model(spec.model, VOCABULARY).to(GPU)
        strategy = memory_prediction.expected_strategy(spec, process)
        trainer = memory_prediction._trainer(spec, process, strategy, model)
        trainer.module.train()
        shape = BatchShape(rows=4, source_tokens=7, target_tokens=6)
        batch = blank_batch([shape] * spec.training.accumulation.micro_batches, GPU)
        loss, norm = optimizer_step(trainer, batch, 1e-3)
        places = {x.device for x in (loss, norm, *model.parameters())}
    return "ok" if places == {GPU} and bool(loss.isfinite()) else f"on {places}: {loss}"


def short_run() -> str:
    """Whether a short run that is checked on the GPU gives the same certificate as on the CPU."""
    stores, found = (small_store(), small_store(9, seed=1)), []
    model = {"encoder_layers": 1, "decoder_layers": 1}
    spec = small_spec(model=model, training={"precision": {"kind": "bf16"}, "steps": 2})
    for where in (torch.device("cpu"), GPU):
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
        if self.exact.device == GPU:
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


def mixed() -> str:
    return str(torch.ones(3, device=GPU) + torch.ones(3))


def main(names: list[str]) -> None:
    # The compiler would make kernels for a real GPU.
    torch._dynamo.config.disable = True
    sublayers.flash_over_sentences = layout.sentences
    work = {
        name: lambda name=name: step(layout.with_one_layer(layout.SPECS[name])) for name in names
    }
    work |= {"mixed": mixed, "short run": short_run}
    found = {}
    for name, attempt in work.items():
        try:
            found[name] = attempt()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
