"""Pairs of scripts whose certificate names the cause of a difference, and similar pairs with another
cause or none."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from transformer_core.tune.coordinator import Program, Side
from transformer_core.tune.sessions import OWN, Plan, Sessions, floors

pytestmark = pytest.mark.slow

CAUSES = {
    "batches": "called with other batches|gets other numbers",
    "ranks": "ranks instead of",
    "dropout": "dropout at",
    "size of updates": "updates are",
    "size of gradients": "gradients are .* a sum instead of a mean",
    "statistics": "normalization over the batch takes its statistics from 8 .* instead of 16",
    "padding": r"normalization over the batch takes its statistics from \d+ .* instead of 256",
    "no gradient": "0.weight get no gradient",
    "no optimizer": "no optimizer updates 0.weight",
    "late updates": "updates come one step late",
    "not refreshed": "steps 2 to 4 are those of the first weights",
    "older weights": "step 2 are those of the weights before the update of step 1",
}
"""The words for each cause."""


def edited(text: str, *edits: tuple[str, str]) -> str:
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


PLAIN = """
import torch
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.randn(64, 32), torch.randint(0, 8, (64,))
for step in range(20_000):
    rows = torch.randint(0, 64, (16,))
    loss = nn.functional.cross_entropy(model(data[0][rows]).float(), data[1][rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
RATE = ("lr=1e-2", "lr=1.1e-2")
COPY = edited(
    PLAIN,
    ("data = ", "import copy\nfast = copy.deepcopy(model)\ndata = "),
    ("model(data[0][rows])", "fast(data[0][rows])"),
    ("optimizer.zero_grad()", "fast.zero_grad()"),
    (
        "    optimizer.step()",
        "    for master, part in zip(model.parameters(), fast.parameters()):\n"
        "        master.grad = part.grad.float()\n    optimizer.step()",
    ),
)
REFRESH = "    fast.load_state_dict(model.state_dict())\n"
NARROW = (
    "fast = copy.deepcopy(model)\n",
    "fast = copy.deepcopy(model).bfloat16()\n"
    "fast.register_forward_pre_hook(lambda module, given: (given[0].bfloat16(),))\n",
)
REPLACED = "model[0].weight = nn.Parameter(model[0].weight.detach().clone())\ndata = "

NORMALIZED = """
import torch
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.randn(64, 32), torch.randint(0, 8, (64,))
for step in range(20_000):
    optimizer.zero_grad()
    rows = torch.randint(0, 64, (16,))
    for part in rows.split(16):
        loss = nn.functional.cross_entropy(model(data[0][part]), data[1][part])
        (loss * len(part) / len(rows)).backward()
    optimizer.step()
"""
HALVES = ("split(16)", "split(8)")

PADDED = """
import torch
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(nn.Conv1d(4, 16, 1), nn.BatchNorm1d(16), nn.Tanh(), nn.Conv1d(16, 1, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(20_000):
    lengths = torch.randint(8, 24, (8,))
    longest = 32
    mask = torch.arange(longest) < lengths[:, None]
    rows = torch.randn(8, 4, 32)[:, :, :longest] * mask[:, None]
    loss = (model(rows)[:, 0] * mask).square().sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
DYNAMIC = ("longest = 32", "longest = int(lengths.max())")
UNNORMALIZED = edited(
    PADDED, ("nn.BatchNorm1d(16)", "nn.GroupNorm(1, 16), nn.BatchNorm1d(16).train(False)")
)

AUTOCAST = edited(
    PLAIN,
    (
        "    loss = nn.functional.cross_entropy(model(data[0][rows]).float(), data[1][rows])\n",
        '    with torch.autocast("cpu", torch.bfloat16):\n'
        "        logits = model(data[0][rows])\n"
        "    loss = nn.functional.cross_entropy(logits.float(), data[1][rows])\n",
    ),
)
"""Weights rounded for autocast are kept until the outermost autocast ends."""

PAIRS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "plain": (
        PLAIN,
        {
            "the same": (edited(PLAIN, ("data[0][rows]", "data[0].index_select(0, rows)")), ""),
            "other batches": (edited(PLAIN, ("(0, 64, (16,))", "(0, 32, (16,))")), "batches"),
            "a sum": (
                edited(PLAIN, ("loss.backward()", "(loss * 16).backward()")),
                "size of gradients",
            ),
            "a rate": (edited(PLAIN, RATE), "size of updates"),
            "no first update": (
                edited(
                    PLAIN,
                    (
                        "    optimizer.step",
                        "    optimizer.param_groups[0]['lr'] = 1e-2 * (step > 0)\n    optimizer.step",
                    ),
                ),
                "",
            ),
            "late updates": (
                edited(
                    PLAIN,
                    ("    optimizer.step()\n", ""),
                    ("    rows", "    optimizer.step()\n    rows"),
                ),
                "late updates",
            ),
        },
    ),
    "copies": (
        PLAIN,
        {
            "refreshed": (COPY + REFRESH, ""),
            "refreshed, narrow": (edited(COPY, NARROW) + REFRESH, ""),
            "refreshed, with a rate": (edited(COPY, RATE) + REFRESH, "size of updates"),
            "not refreshed": (COPY, "not refreshed"),
            "not refreshed, narrow": (edited(COPY, NARROW), "not refreshed"),
            "refreshed too early": (
                edited(COPY, ("    optimizer.step", f"{REFRESH}    optimizer.step")),
                "older weights",
            ),
            "replaced": (edited(PLAIN, ("data = ", REPLACED)), "no optimizer"),
            "replaced before": (
                edited(PLAIN, ("optimizer = ", REPLACED.replace("data = ", "optimizer = "))),
                "",
            ),
            "forgotten": (
                edited(PLAIN, ("model.parameters()", "[*model.parameters()][1:]")),
                "no optimizer",
            ),
            "frozen": (
                edited(PLAIN, ("data = ", "model[0].weight.requires_grad_(False)\ndata = ")),
                "no gradient",
            ),
        },
    ),
    "normalized": (
        NORMALIZED,
        {
            "halves": (edited(NORMALIZED, HALVES), "statistics"),
            "a rate": (edited(NORMALIZED, RATE), "size of updates"),
            "fewer rows": (edited(NORMALIZED, ("(16,)", "(8,)")), "batches"),
        },
    ),
    "padded": (PADDED, {"less padding": (edited(PADDED, DYNAMIC), "padding")}),
    "padded, not normalized over rows": (
        UNNORMALIZED,
        {"less padding": (edited(UNNORMALIZED, DYNAMIC), "batches")},
    ),
    "autocast": (
        AUTOCAST,
        {
            "around the loop": (
                edited(
                    AUTOCAST,
                    ("for step", 'torch.autocast("cpu", torch.bfloat16).__enter__()\nfor step'),
                ),
                "not refreshed",
            ),
            "twice around each step": (
                edited(AUTOCAST, ("    with ", '    with torch.autocast("cpu", torch.bfloat16), ')),
                "",
            ),
        },
    ),
    "without dropout": (
        PLAIN,
        {
            "other dropout": (edited(PLAIN, ("Dropout(0.1)", "Dropout(0.2)")), "dropout"),
            "a rate": (edited(PLAIN, RATE), "size of updates"),
        },
    ),
}
"""Each original, with its changed scripts and the cause that their certificates must name, if any."""


RANKS = {"one rank": 1, "two ranks": 2}
"""Sides of the session of "padded" that torchrun starts, as they are."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The certificates of a group by name, from one session, and whether weights were held in
    another one."""

    @cache
    def of(group: str) -> tuple[dict[str, dict[str, Any]], bool]:
        folder = tmp_path_factory.mktemp("causes")
        home = folder / "home"
        home.mkdir()
        original, changed = PAIRS[group]
        (home / "old.py").write_text(original)
        sides = [Side(name, files={Path("old.py"): text}) for name, (text, _) in changed.items()]
        for name, count in RANKS.items() if group == "padded" else ():
            program = Program(("old.py",), home, ("torchrun", f"--nproc-per-node={count}"))
            sides.append(Side(name, program=program))
        sessions = Sessions(Program(("old.py",), home), folder / "sessions", "key")
        everyone = [Side(OWN), *floors(sides), *sides]
        plan = Plan("all", everyone, 0, 0, record=4, dropout=group != "without dropout")
        found = sessions.run(plan, lambda text: None).sides
        held = (folder / "sessions" / "all-held").exists()
        return {name: each.certificate or {} for name, each in found.items()}, held

    return of


def named(certificate: dict[str, Any]) -> list[str]:
    """Causes that a certificate names first."""
    first = certificate["reason"].split("; ")[0]
    return [cause for cause, words in CAUSES.items() if re.search(words, first)]


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group, (_, names) in PAIRS.items() for name in names]
)
def test_the_cause_is_named_and_no_other(group, name, outcomes):
    found, expected = outcomes(group)[0][name], PAIRS[group][1][name][1]
    assert named(found) == [expected] * bool(expected), found
    assert found["word"] == "different" or not expected, found


def test_other_ranks_are_named(outcomes):
    found, held = outcomes("padded")
    assert {name: named(found[name]) for name in RANKS} == {"one rank": [], "two ranks": ["ranks"]}
    assert found["one rank"]["word"] == "same"
    # Weights are held still only where later gradients are farther off than those before.
    assert not held
