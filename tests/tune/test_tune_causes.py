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
    "batches": "called with different batches|gets different numbers|numbers instead of",
    "dropout": "dropout at",
    "size of updates": "updates are",
    "size of gradients": "gradients are .* a sum instead of a mean",
    "statistics": "normalization over the batch takes its statistics from 8 .* instead of 16",
    "padding": r"normalization over the batch takes its statistics from \d+ .* instead of 256",
    "no gradient": "0.weight get no gradient",
    "no optimizer": "no optimizer updates 0.weight",
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
STEP = "    optimizer.step()\n"
COPY = (
    ("data = ", "import copy\nfast = copy.deepcopy(model)\ndata = "),
    ("model(data[0][rows])", "fast(data[0][rows])"),
    ("optimizer.zero_grad()", "fast.zero_grad()"),
    (
        STEP,
        "    for master, part in zip(model.parameters(), fast.parameters()):\n"
        f"        master.grad = part.grad.float()\n{STEP}    REFRESH\n",
    ),
)
REFRESHED = ("REFRESH", "fast.load_state_dict(model.state_dict())")
REFRESHED_EARLY = (f"{STEP}    REFRESH\n", f"    {REFRESHED[1]}\n{STEP}")
NOT_REFRESHED = ("    REFRESH\n", "")
NARROW = (
    "fast = copy.deepcopy(model)\n",
    "fast = copy.deepcopy(model).bfloat16()\n"
    "fast.register_forward_pre_hook(lambda module, given: (given[0].bfloat16(),))\n",
)
REPLACED = "model[0].weight = nn.Parameter(model[0].weight.detach().clone())\n"
NO_FIRST_UPDATE = (STEP, f"    optimizer.param_groups[0]['lr'] = 1e-2 * (step > 0)\n{STEP}")

PARTS = (
    "    loss = nn.functional.cross_entropy(model(data[0][rows]).float(), data[1][rows])\n"
    "    optimizer.zero_grad()\n"
    "    loss.backward()\n",
    "    optimizer.zero_grad()\n"
    "    for part in rows.split(8):\n"
    "        loss = nn.functional.cross_entropy(model(data[0][part]), data[1][part])\n"
    "        (loss * len(part) / len(rows)).backward()\n",
)
NORMALIZED = edited(
    PLAIN,
    ("nn.Tanh(), nn.Dropout(0.1)", "nn.BatchNorm1d(64), nn.Tanh()"),
    PARTS,
    ("split(8)", "split(16)"),
)

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
LESS_PADDING = ("longest = 32", "longest = int(lengths.max())")
UNNORMALIZED = edited(
    PADDED, ("nn.BatchNorm1d(16)", "nn.GroupNorm(1, 16), nn.BatchNorm1d(16).train(False)")
)
BARE = edited(PADDED, ("nn.BatchNorm1d(16)", "nn.Identity()"))
ALIKE = edited(BARE, ("torch.randn(8, 4, 32)", "torch.ones(8, 4, 32)"), ("(8, 24, ", "(32, 33, "))
FEWER = "torch.randint(32, 33, (8,))", "torch.full((4,), 32)"
OTHER_ROWS = ("torch.randn(8, 4, 32)", "torch.randn(8, 4, 32).roll(1, 2)")

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

ORIGINALS = {
    "plain": PLAIN,
    "without dropout": PLAIN,
    "normalized": NORMALIZED,
    "padded": PADDED,
    "padded, not normalized over rows": UNNORMALIZED,
    "padded, not normalized": BARE,
    "rows that are alike": ALIKE,
    "autocast": AUTOCAST,
}
"""A session compares each of these with its changes."""

CHANGES: tuple[tuple[str, str, str, *tuple[tuple[str, str], ...]], ...] = (
    ("plain", "the same", "", ("data[0][rows]", "data[0].index_select(0, rows)")),
    ("plain", "other batches", "batches", ("(0, 64, (16,))", "(0, 32, (16,))")),
    ("plain", "a sum", "size of gradients", ("loss.backward()", "(loss * 16).backward()")),
    (
        "plain",
        "a later sum",
        "size of gradients",
        ("loss.backward()", "(loss * (1 + 15 * (step == 2))).backward()"),
    ),
    ("plain", "a rate", "size of updates", RATE),
    ("plain", "no first update", "", NO_FIRST_UPDATE),
    ("plain", "a step before the first gradient", "", (STEP, ""), ("    rows", f"{STEP}    rows")),
    ("plain", "refreshed", "", *COPY, REFRESHED),
    ("plain", "refreshed, narrow", "", *COPY, REFRESHED, NARROW),
    ("plain", "refreshed, with a rate", "size of updates", *COPY, REFRESHED, RATE),
    ("plain", "not refreshed", "not refreshed", *COPY, NOT_REFRESHED),
    ("plain", "not refreshed, narrow", "not refreshed", *COPY, NOT_REFRESHED, NARROW),
    ("plain", "refreshed too early", "older weights", *COPY, REFRESHED_EARLY),
    ("plain", "replaced", "no optimizer", ("data = ", f"{REPLACED}data = ")),
    ("plain", "replaced before", "", ("optimizer = ", f"{REPLACED}optimizer = ")),
    ("plain", "forgotten", "no optimizer", ("model.parameters()", "[*model.parameters()][1:]")),
    (
        "plain",
        "frozen",
        "no gradient",
        ("data = ", "model[0].weight.requires_grad_(False)\ndata = "),
    ),
    ("without dropout", "other dropout", "dropout", ("Dropout(0.1)", "Dropout(0.2)")),
    ("without dropout", "a rate", "size of updates", RATE),
    ("without dropout", "parts", "", PARTS),
    ("without dropout", "unequal parts", "", PARTS, ("split(8)", "split(6)")),
    ("without dropout", "parts, not divided", "size of gradients", PARTS, ("len(rows)", "8")),
    ("normalized", "halves", "statistics", ("split(16)", "split(8)")),
    ("normalized", "a rate", "size of updates", RATE),
    ("normalized", "fewer rows", "batches", ("(16,)", "(8,)")),
    ("padded", "less padding", "padding", LESS_PADDING),
    ("padded, not normalized over rows", "less padding", "batches", LESS_PADDING),
    ("padded, not normalized", "less padding", "", LESS_PADDING),
    ("padded, not normalized", "other rows", "batches", LESS_PADDING, OTHER_ROWS),
    (
        "rows that are alike",
        "fewer rows",
        "batches",
        FEWER,
        ("torch.ones(8, 4, 32)", "torch.ones(4, 4, 32)"),
    ),
    (
        "autocast",
        "around the loop",
        "not refreshed",
        ("for step", 'torch.autocast("cpu", torch.bfloat16).__enter__()\nfor step'),
    ),
    (
        "autocast",
        "twice around each step",
        "",
        ("    with ", '    with torch.autocast("cpu", torch.bfloat16), '),
    ),
)
"""Original, name, the cause that the certificate must name, if any, and edits."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The certificates of a group by name, from one session, and whether weights were held in
    another one."""

    @cache
    def of(group: str) -> tuple[dict[str, dict[str, Any]], bool]:
        folder = tmp_path_factory.mktemp("causes")
        home = folder / "home"
        home.mkdir()
        original = ORIGINALS[group]
        (home / "old.py").write_text(original)
        sides = [
            Side(name, files={Path("old.py"): edited(original, *edits)})
            for of, name, _, *edits in CHANGES
            if of == group
        ]
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


@pytest.mark.parametrize(("group", "name", "cause"), [change[:3] for change in CHANGES])
def test_the_cause_is_named_and_no_other(group, name, cause, outcomes):
    found = outcomes(group)[0][name]
    assert named(found) == [cause] * bool(cause), found
    # AdamW makes the same updates of such gradients if all of them are.
    alike = cause == "size of gradients" and name != "a later sum"
    word = "undecided" if alike else "different"
    assert found["word"] == word or not cause, found


def test_a_step_before_the_first_gradient_is_no_step_of_the_training(outcomes):
    assert outcomes("plain")[0]["a step before the first gradient"]["word"] == "same"


def test_a_batch_in_unequal_parts_is_the_batch(outcomes):
    assert outcomes("without dropout")[0]["unequal parts"]["word"] == "same"


def test_a_batch_with_other_padding_is_the_batch(outcomes):
    found = outcomes("padded, not normalized")[0]["less padding"]
    assert found["word"] == "same"
    assert re.search("numbers instead of .*, as with other padding", found["reason"])


def test_weights_are_held_still_only_where_later_gradients_are_farther_off(outcomes):
    assert not outcomes("padded")[1]
