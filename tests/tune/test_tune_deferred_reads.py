"""Sums of losses that are read only where they are used: the lines that move, the lines that stay, and
that nothing else changes."""

from pathlib import Path
from typing import Any

import pytest

from transformer_core.tune.coordinator import Program, Side, session
from transformer_core.tune.records import Record
from transformer_core.tune.sessions import OWN
from transformer_core.tune.source import Source
from transformer_core.tune.techniques import TECHNIQUES

SCRIPTS = Path(__file__).parent / "scripts"
TECHNIQUE = TECHNIQUES["deferred_reads"]
HEAD = """import torch
w = torch.ones(3, requires_grad=True)
said = []
def step(i):
    loss = (w * 0.1 * (i + 1)).sum()
    loss.backward()
    return loss
"""
MOVED = {
    "weighted": """
def train(n):
    total, steps = 0.0, 0
    for i in range(n):
        loss = step(i)
        total += loss.item() * n / 7  # of a batch
        steps += 1
    return total / steps
said.append(train(5))
""",
    "average": """
running: float = 0.0
for i in range(9):
    loss = step(i)
    running = 0.9 * running + 0.1 * float(loss.detach().cpu())
    if i % 4 == 3:
        said.append(f"{i}: {running:.3f} {running}")
    if i == 20:
        loss.backward()
said.append(running)
""",
    "reset": """
total = 0
for epoch in range(2):
    for i in range(7):
        parts = {"a": step(i)}
        total -= (parts["a"].item() + 2)
        if i % 3 == 2:
            said.append(round(total / 3, 4))
            total = 0
    said.append(total)
    parts["a"].detach().requires_grad_().backward()
""",
    "count": """
def train():
    right = total = 0
    for i in range(6):
        guess = torch.arange(i + 1)
        right += (guess == i).sum().item()
        total += len(guess)
    if right > 3:
        said.append(f"{right:d} of {total}")
    return right
said.append(train())
""",
}
STAYS = {
    "every step": "total = 0.0\nfor i in range(3):\n    total += x.item()\n    print(total)\n",
    "decides": "for i in range(3):\n    if x.item() > 1:\n        break\n",
    "a list": "found = []\nfor i in range(3):\n    found.append(x.item())\n",
    "no number first": "total = None\nfor i in range(3):\n    total = total + x.item()\n",
    "an inner function": "total = 0.0\nfor i in r:\n    total += x.item()\ndef f(): print(total)\n",
    "a condition": "total = 0.0\nwhile total < 9:\n    total += x.item()\n",
    "elif": "t = 0.0\nfor i in r:\n    t += x.item()\nif i:\n    pass\nelif t:\n    pass\n",
    "unknown type": "total = 0\nfor i in range(3):\n    total += x.item()\nprint(total)\n",
    "a product": "total = 1.0\nfor i in range(3):\n    total *= x.item()\n",
    "no loop": "total = 0.0\ntotal += x.item()\n",
    "no tensor": "total = 0.0\nfor i in range(3):\n    total += float(i)\n",
    "a global": "def f():\n    global t\n    t = 0.0\n    for i in r:\n        t += x.item()\n",
    "looked at": "t = 0.0\nfor i in r:\n    t += x.item()\nprint(locals())\n",
    "two on a line": "t = 0.0\nfor i in r:\n    t += x.item(); y = 1\n",
    "a use behind another": "t = 0.0\nfor i in r:\n    t += x.item()\ni = 1; print(t)\n",
    "a function of it": "t = 0.0\nfor i in r:\n    t += abs(x.item())\n",
    "a parameter": "def f(t):\n    for i in r:\n        t += x.item()\n",
    "also an element": "t = 0.0\nfor t in r:\n    t += x.item()\n",
}


def changed(text: str, folder: Path, **facts: Any) -> str | None:
    """``text`` with the change; None if there is none."""
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    source = Source(folder, script, {}, facts.pop("calls", []))
    done = TECHNIQUE.edit(source, {"device": "cpu"} | facts)
    return source.files()[Path("train.py")] if done else None


@pytest.mark.parametrize("name", MOVED)
def test_sums_are_moved_and_everything_said_is_the_same(name, tmp_path):
    own = HEAD + MOVED[name]
    other = changed(own, tmp_path)
    assert not any(word in other for word in ("item()", "float(loss"))
    said = []
    for text in (own, other):
        found: dict[str, Any] = {}
        exec(compile(text, "train.py", "exec"), found)
        said.append([(type(each), each) for each in found["said"]])
    assert said[0] == said[1] != []


@pytest.mark.parametrize("name", STAYS)
def test_lines_that_do_more_than_sum_stay(name, tmp_path):
    assert changed(STAYS[name], tmp_path) is None


def test_the_sum_is_read_before_it_is_used(tmp_path):
    found = changed(HEAD + MOVED["reset"].replace("total = 0\n", "total = 0.0\n"), tmp_path)
    assert '        total = total - (parts["a"].detach().double() + 2)\n' in found
    use = "            said.append(round(total / 3, 4))\n"
    assert f"        if i % 3 == 2:\n            total = float(total)\n{use}" in found
    assert "    total = float(total)\n    said.append(total)\n" in found


def test_on_a_gpu_only_lines_where_the_host_waits_are_moved(tmp_path):
    text = "a = b = 0.0\nfor i in r:\n    a += x.item()\n    b += y.item()\n"
    found = changed(text, tmp_path, device="cuda", waits={"train.py:4": 6, "other.py:3": 6})
    assert found.splitlines()[2:] == ["    a += x.item()", "    b = b + y.detach().double()"]
    assert changed(text, tmp_path, device="cuda", waits={"train.py:9": 1}) is None
    # The line that calls the model is left to techniques that change the call.
    calls = [{"file": str(tmp_path / "train.py"), "line": 4}]
    assert changed(text, tmp_path, device="cuda", waits={"train.py:4": 6}, calls=calls) is None


def test_it_says_why_it_is_left_out(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(STAYS["every step"], encoding="utf-8")
    facts = {"factory": False, "device": "cpu", "named": [], "places": {}}
    facts |= {"folder": str(tmp_path), "script": str(script)}
    assert "only values on a GPU" in str(TECHNIQUE.obstacle(facts))
    facts["named"] = ["deferred_reads"]
    assert "no line" in str(TECHNIQUE.obstacle(facts))
    script.write_text(HEAD + MOVED["count"], encoding="utf-8")
    assert TECHNIQUE.obstacle(facts) is None


@pytest.mark.slow
def test_a_side_runs_the_changed_script_and_trains_the_same(tmp_path):
    program = Program(("logs.py",), SCRIPTS)
    facts = {"factory": False, "device": "cpu", "places": {}}
    facts |= {"folder": str(SCRIPTS), "script": str(program.script)}
    sides = [Side(OWN), Side("deferred", ("deferred_reads",))]
    records = {}
    with session(program, sides, tmp_path, facts=facts) as run:
        for side in sides:
            run.facts(side.name)
            run.steps(side.name, 5, record=True)
            records[side.name] = Record.read(run.records(side.name))
    assert records["deferred"].equals(records[OWN])
    first, *own = (tmp_path / OWN / "output.txt").read_text().splitlines()
    other, *deferred = (tmp_path / "deferred/output.txt").read_text().splitlines()
    assert (first, other) == ("reads: 2", "reads: 0")
    assert len(own) == 2
    assert own == deferred


@pytest.mark.gpu
def test_on_a_gpu_the_host_waits_only_where_sums_are_used(tmp_path):
    program = Program(("logs.py", "cuda"), SCRIPTS)
    facts: dict[str, Any] = {}
    waits = []
    for techniques in ((), ("deferred_reads",)):
        side = Side(OWN, techniques, profiled=True)
        with session(program, [side], tmp_path, facts=facts) as run:
            run.facts(OWN)
            run.steps(OWN, 7)
            found = run.facts(OWN)
        facts = found | {"factory": False, "folder": str(SCRIPTS), "script": str(program.script)}
        waits.append(sum(found["waits"].values()))
    # Both sums, in each of six steps before; after every second step now.
    assert waits[0] > 0
    assert 2 * waits[1] <= waits[0]
