"""Certificates from real processes: rounding is the same training, damage is not.

One session has the script, its floors, two healthy techniques and changed copies of it; more
changes are in test_tune_compare.py.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from transformer_core.tune.certificate import Certificate, Record, certify
from transformer_core.tune.coordinator import Program, Side, session
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


def compared(sides: list[Side], folder: Path, dropout: bool = True) -> dict[str, Certificate]:
    """Certificates of ``sides`` from one session."""
    everyone = [replace(s, dropout=dropout) for s in [Side(OWN), *floors(sides), *sides]]
    records = {}
    with session(Program(("plain.py",), SCRIPTS), everyone, folder) as run:
        for side in everyone:
            run.facts(side.name, 200)
            run.steps(side.name, STEPS, record=True)
            records[side.name] = Record.read(run.records(side.name))
    found = {}
    for side in sides:
        rounding = side.rounding or "bfloat16"
        floor = records[floor_name(rounding)]
        found[side.name] = certify(records[side.name], records[OWN], floor, rounding)
    return found


def changed(name: str) -> Side:
    """The script with a damage."""
    old, new = DAMAGE[name]
    text = (SCRIPTS / "plain.py").read_text(encoding="utf-8")
    assert text.count(old) == 1, name
    return Side(name, files={Path("plain.py"): text.replace(old, new)})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    healthy = [Side(name, (name,)) for name in ("bf16", "fused_optimizer")]
    sides = [*healthy, changed("cut"), changed("schedule")]
    return compared(sides, tmp_path_factory.mktemp("damage"))


@pytest.mark.parametrize("name", ["bf16", "fused_optimizer"])
def test_rounding_is_the_same_training(certificates: dict[str, Certificate], name: str) -> None:
    assert certificates[name].word == "same", certificates[name]
    assert not certificates[name].identical


@pytest.mark.parametrize("name", ["cut", "schedule"])
def test_damage_is_another_training(certificates: dict[str, Certificate], name: str) -> None:
    assert certificates[name].word == "different", certificates[name]


def test_another_rate_of_dropout_shows_where_dropout_is_off(tmp_path: Path) -> None:
    found = compared([changed("dropout")], tmp_path, dropout=False)["dropout"]
    assert (found.word, found.reason) == ("different", "dropout at 0.2 instead of 0.1")
