"""Certificates from real processes: rounding is the same training, damage is not.

One session has the script, its floors, two healthy techniques and changed copies of it; more
changes are in test_tune_compare.py.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from transformer_core.tune.certificate import Certificate, certify
from transformer_core.tune.coordinator import Program, Side, session
from transformer_core.tune.records import Record
from transformer_core.tune.sessions import OWN, floor_name, floors

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parent / "scripts"
STEPS = 4
DAMAGE = {
    "cut": ("x = block(x)", "x = block(x.detach()) + x - x.detach()"),
    "dropout": ("1e-2, 0.1", "1e-2, 0.2"),
    "schedule": ("schedule.step()", "pass"),
}
"""Changes of plain.py after which it trains another model."""
HEALTHY = [Side(name, (name,)) for name in ("bf16", "fused_optimizer")]


def changed(name: str) -> Side:
    """The script with a damage."""
    old, new = DAMAGE[name]
    text = (SCRIPTS / "plain.py").read_text(encoding="utf-8")
    assert text.count(old) == 1, name
    return Side(name, files={Path("plain.py"): text.replace(old, new)})


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The records of all sides of one session; the side with another dropout trains without any."""
    sides = [*HEALTHY, changed("cut"), changed("schedule")]
    sides = [Side(OWN), *floors(sides), *sides, replace(changed("dropout"), dropout=False)]
    found = {}
    with session(Program(("plain.py",), SCRIPTS), sides, tmp_path_factory.mktemp("damage")) as run:
        for side in sides:
            run.facts(side.name, 200)
            run.steps(side.name, STEPS, record=True)
            found[side.name] = Record.read(run.records(side.name))
    return found


def certificate(records: dict[str, Record], side: Side) -> Certificate:
    rounding = side.rounding or "bfloat16"
    return certify(records[side.name], records[OWN], records[floor_name(rounding)], rounding)


@pytest.mark.parametrize("side", HEALTHY, ids=lambda side: side.name)
def test_rounding_is_the_same_training(records, side):
    found = certificate(records, side)
    assert found.word == "same", found
    assert not found.identical


@pytest.mark.parametrize("name", ["cut", "schedule"])
def test_damage_is_another_training(records, name):
    found = certificate(records, changed(name))
    assert found.word == "different", found


def test_another_rate_of_dropout_shows_where_dropout_is_off(records):
    mine = records["dropout"]
    (theirs,) = mine.ranks
    own = Record([dict(theirs) | {"rates": np.array([0.1])}])
    found = certify(mine, own, own, "bfloat16")
    assert (found.word, found.reason) == ("different", "dropout at 0.2 instead of 0.1")
