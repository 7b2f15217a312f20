"""Three kills of a small study at moments from a seed: the same command ends in the same results.

`python -m tests.attacks kills --cases 100` has a hundred of them.
"""

from pathlib import Path

from tests.attacks.kills import run


def test_three_kills_change_nothing(tmp_path: Path) -> None:
    tally = run(3, 7, tmp_path, ["results/runs/single/metrics.json"], longest=9.0)
    assert tally.total == {"same": 3}, tally.failures
    assert set(tally.counts) != {"during starting"}
