"""Memory of a small training, measured with every tensor followed and predicted without a run."""

from functools import cache
from typing import Any

import torch

from schemas.config.run_spec import RunSpec
from schemas.results import Parts, PredictedRank
from tests.measure.short_runs import this_rank
from tests.training.small_training import VOCABULARY, small_spec, small_store
from transformer_core.measure.memory_anatomy import steps_of
from transformer_core.measure.memory_anatomy_worker import Followed, Training, followed
from transformer_core.measure.memory_prediction import predict_ranks

STORES = small_store(200), small_store(60, seed=1)


def memory_spec(**sections: Any) -> RunSpec:
    """A model of some 50,000 parameters on batches of 32 pairs."""
    sections.setdefault("model", {})
    sections["model"] = {"d_model": 32, "d_ff": 64} | sections["model"]
    return small_spec(batching={"pairs": 32}, **sections)


def measure(spec: RunSpec) -> Followed:
    """What this rank, of the process group if there is one, finds."""
    return followed(
        Training(spec, this_rank(), VOCABULARY, STORES, steps_of(spec)), translate=False
    )


def measure_all(specs: dict[str, RunSpec]) -> dict[str, tuple[int, Parts, Parts, int]]:
    """Of each spec: the allocator's peak, the parts at the peak and at their largest, and what
    autograd saved."""
    found = {name: measure(spec) for name, spec in specs.items()}
    return {
        name: (one.peak_bytes, one.step.at_peak, one.step.largest, one.step.saved_bytes)
        for name, one in found.items()
    }


def predict(spec: RunSpec) -> list[PredictedRank]:
    """The prediction for the same batches."""
    return _predicted(spec.canonical_json())[0]


@cache
def _predicted(text: str) -> tuple[list[PredictedRank], int]:
    spec = RunSpec.model_validate_json(text)
    return predict_ranks(spec, VOCABULARY, torch.device("cpu"), STORES)


def parameters() -> int:
    """Those of the model of all cases."""
    return _predicted(memory_spec().canonical_json())[1]
