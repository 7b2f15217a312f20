"""Two versions of a script: the same training, or not, and by what it is seen."""

from dataclasses import replace
from pathlib import Path

import pytest

from transformer_core.tune.compare import main
from transformer_core.tune.coordinator import Program, Side
from transformer_core.tune.flow import Tuning
from transformer_core.tune.sessions import OWN, Plan, Sessions, floors

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randn(64, 32), torch.randint(0, 8, (64,))
for step in range(20_000):
    rows = torch.randint(0, 64, (16,))
    loss = nn.functional.cross_entropy(model(data[0][rows]), data[1][rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CHANGES = {
    "other batches": ("(0, 64, (16,))", "(0, 32, (16,))", "other numbers"),
    "a frozen layer": (
        "data = ",
        "model[0].weight.requires_grad_(False)\ndata = ",
        "get no gradient",
    ),
    "half of the loss": (
        "loss.backward()",
        "(loss / 2).backward()",
        "gradients are 0.5 times as large in step 1: a sum instead of a mean",
    ),
    "another rate": ("lr=1e-3", "lr=1.1e-3", "1.1 times as large"),
}
"""Each change: the text replaced, its replacement, and the words that name the difference, if any."""
SEEDED = "another rate, with other seeds than the script's own"
CHANGES[SEEDED] = ("lr=1e-3", "lr=1e-3 * (1 + (torch.initial_seed() != 3))", "")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """One session with all changed scripts, and one with other seeds for the last of them."""
    folder = tmp_path_factory.mktemp("compare")
    home = folder / "home"
    home.mkdir()
    (home / "old.py").write_text(SCRIPT)
    sides = [
        Side(name, files={Path("old.py"): SCRIPT.replace(old, new)})
        for name, (old, new, _) in CHANGES.items()
    ]
    sessions = Sessions(Program(("old.py",), home), folder / "sessions", "key")
    plan = Plan("all", [Side(OWN), *floors(sides), *sides], 0, 2, record=3, late=2)
    found = sessions.run(plan, lambda text: None)
    assert (home / "old.py").read_text() == SCRIPT
    # What was measured once is read.
    assert sessions.run(plan, lambda text: pytest.fail("measured again")) == found
    again = replace(plan, name="seeds", sides=[Side(OWN), *floors(sides), sides[-1]], seed=1000)
    return [found, sessions.run(again, lambda text: None)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_script_is_judged(name, outcomes):
    old, _, seen = CHANGES[name]
    assert old in SCRIPT
    measured = outcomes[0].sides[name]
    assert measured.status == "ok", measured.reason
    assert len(measured.seconds) == 2
    assert measured.certificate["word"] == ("different" if seen else "same"), measured.certificate
    assert seen in measured.certificate["reason"]


@pytest.mark.slow
def test_the_worst_certificate_of_all_seeds_counts(outcomes):
    seeded = outcomes[1].sides[SEEDED].certificate
    assert seeded["word"] == "different"
    side = Side(SEEDED, ("changed",))
    tuning = Tuning(Program(("old.py",), Path()), Path(), print)
    assert (tuning.together(side, outcomes).certificate or {})["word"] == "different"
    assert (tuning.together(side, outcomes[:1]).certificate or {})["word"] == "same"


def test_a_script_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.py").write_text(SCRIPT)
    assert main(["old.py", "new.py"]) == 2
    assert "names no script" in capsys.readouterr().err
