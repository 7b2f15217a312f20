"""Seeds of a short run are spent until the final losses decide, or the budget ends."""

import time
from itertools import starmap

import pytest
from analysis_builders import seed_trajectory, trajectory

from schemas.results import SeedTrajectory
from tests.training.small_training import small_setup, small_spec
from transformer_core.certify import short_run_worker as worker
from transformer_core.certify.short_run import ShortRunOrder

REFERENCE = [[8.0, 6.0, 6.0 + 0.1 * number] for number in range(6)]


@pytest.fixture(scope="module")
def order(tmp_path_factory):
    folder, spec = tmp_path_factory.mktemp("reference"), small_spec()
    reference = trajectory("reference", [*starmap(seed_trajectory, enumerate(REFERENCE, start=1))])
    (folder / "trajectory.json").write_text(reference.model_dump_json())
    return ShortRunOrder(
        spec=spec,
        data=folder,
        output=folder,
        command="run",
        log_file=None,
        seeds=6,
        first_look=3,
        reference=folder / "trajectory.json",
        margin=0.005,
        budget=1000.0,
    )


@pytest.mark.parametrize(
    ("factors", "changes", "trained"),
    [
        ((1.0001, 0.9999, 1.0), {}, 3),
        ((1.02, 1.0201, 1.0199), {}, 3),
        ((1.004, 0.996, 1.001), {}, 6),
        ((1.004, 0.996, 1.001), {"budget": 0.0}, 3),
        ((1.0, 1.0, 1.0), {"reference": None, "first_look": 0}, 6),
    ],
    ids=["the same", "off", "noisy", "noisy and out of time", "nothing to compare"],
)
def test_seeds(order, factors, changes, trained):
    order = order.model_copy(update=changes)
    strategy = small_setup(small_spec()).strategy
    found: list[SeedTrajectory] = []
    began = time.monotonic() - 0.001
    while len(found) < order.seeds:
        number = len(found)
        off = factors[number % 3]
        found.append(seed_trajectory(number + 1, [8.0, 6.0, REFERENCE[number][2] * off]))
        if worker._enough(order, found, strategy, began):
            break
    assert len(found) == trained
