"""A step by every strategy as one of four ranks whose messages go nowhere.

Ranks do not need a host each, and DDP's reducer is imitated, as in predictions.
"""

from typing import Any

import pytest
import torch

from tests.training.small_training import VOCABULARY, small_spec
from transformer_core.measure.memory_prediction import predict_ranks
from transformer_core.models.device_kind import laid_out_for
from transformer_core.parallel.topology import fsdp_fault

RANKS = 4
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "ddp_no_overlap": {"kind": "ddp", "overlap": False},
    "fsdp": {"kind": "fsdp"},
    "fsdp_kept": {"kind": "fsdp", "reshard_after_forward": False},
    "central": {"kind": "central"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_rows_and_weights_by_the_number_of_ranks(name):
    if name.startswith("fsdp") and (fault := fsdp_fault("cpu")):
        pytest.skip(fault)
    machine = {"device": "cpu", "devices_per_node": RANKS}
    spec = small_spec(parallel=STRATEGIES[name], machine=machine)
    with laid_out_for("cuda"):
        ranks, parameters = predict_ranks(spec, VOCABULARY, torch.device("cpu"))
    central = name.startswith("central")
    assert len(ranks) == (2 if central else 1)  # the first rank, and one with other work
    assert ranks[0].batch.rows == (8 if central else 8 // RANKS)
    share = ranks[0].anatomy.weights_bytes / (4 * parameters)
    if name.startswith("fsdp"):
        assert 1 / RANKS <= share < 1.6 / RANKS
    else:
        assert share == 1
