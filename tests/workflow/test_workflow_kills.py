"""Ten kills of a small study at moments from a seed: the same command ends in the same results.

The target ``results/faults/kills_100.json`` has a hundred of them.
"""

from pathlib import Path

from transformer_core.faults.kills.job import run
from transformer_core.faults.kills.kept import Kept

TARGETS = ["results/runs/single/metrics.json"]
SEED = 7


def test_ten_kills_change_nothing(tmp_path: Path) -> None:
    kept = Kept(tmp_path, TARGETS, SEED)
    record = run(10, SEED, kept, TARGETS, longest=9.0)
    assert len(kept.kills()) == 10
    assert sum(count.same for count in record.counts) == 10, record.failures
    assert not record.failures
    assert any(kill.during != "starting" for kill in kept.kills())
