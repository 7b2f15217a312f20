"""The import direction: a package imports only from packages before it, itself and ``schemas``."""

import ast
import gc
from pathlib import Path

import pytest

from tests.records import write_tree

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    *("techniques", "common", "trace", "study", "data", "models", "parallel", "training"),
    *("machine", "run", "observe", "measure", "certify", "decide", "tune", "audit", "report"),
)
# Modules outside the packages: every package may import them, so they may import none.
OUTSIDE = -1


def python_files(root: Path) -> list[Path]:
    return sorted([*(root / "schemas").rglob("*.py"), *(root / "transformer_core").rglob("*.py")])


def position(module: list[str]) -> int:
    """The place of a module of transformer_core in :data:`ROOMS`."""
    if len(module) > 1 and module[1] in ROOMS:
        return ROOMS.index(module[1])
    return OUTSIDE


def imported(tree: ast.Module, package: list[str]) -> list[tuple[int, list[str]]]:
    """The line and dotted parts of every imported module, also inside functions."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            stem = package[: len(package) - node.level + 1] if node.level else []
            stem = stem + (node.module.split(".") if node.module else [])
            # In "from transformer_core import data", only the imported name is a package.
            found += [(node.lineno, [*stem, alias.name]) for alias in node.names]
    return found


def offenders(root: Path) -> list[str]:
    """Every import against the direction, and every module without a docstring."""
    found = []
    for path in python_files(root):
        name = path.relative_to(root)
        parts = list(name.with_suffix("").parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if not (ast.get_docstring(tree) or "").strip():
            found.append(f"{name}: has no docstring")
        for line, module in imported(tree, parts[:-1]):
            target = ".".join(module[:-1]) if len(module) > 2 else ".".join(module)
            if parts[0] == "schemas":
                technique = module[:2] == ["transformer_core", "techniques"]
                if module[0] in ("torch", "transformer_core") and not technique:
                    found.append(f"{name}:{line}: schemas may not import {target}")
            elif module[0] == "transformer_core" and position(module) > position(parts):
                room = parts[1] if position(parts) != OUTSIDE else "a module outside the packages"
                found.append(f"{name}:{line}: {room} may not import {target}")
    return found


@pytest.fixture(autouse=True, scope="module")
def no_collection():
    """Python 3.11 cannot make a syntax tree (SystemError: recursion depth mismatch) while a
    collection runs the finalizers that earlier tests left behind."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_imports_go_one_way():
    found = offenders(ROOT)
    direction = " -> ".join(ROOMS)
    assert not found, "\n".join([f"rooms import from their left only: {direction}", *found])


def test_every_folder_is_a_room():
    package = ROOT / "transformer_core"
    folders = {path.parent.name for path in package.glob("*/*.py")}
    assert folders <= set(ROOMS), f"not in the direction: {', '.join(folders - set(ROOMS))}"


PLANTED = {
    "schemas/planted.py": '''"""Planted."""
import torch
import torch.nn
import transformer_core.data.sharding.job
''',
    "transformer_core/models/bare.py": "x = 1\n",
    "transformer_core/models/planted.py": '''"""Planted."""
from transformer_core.training.loop import train
import transformer_core.report.page
from transformer_core import measure
from ..parallel import ddp
from .. import decide
def late():
    import transformer_core.run
from transformer_core.data import batching
from transformer_core.models.loss import loss
from . import layers
import schemas.config.model
from transformer_core import sources
import torch, trainer
''',
    "transformer_core/shared.py": '''"""Planted."""
import transformer_core.data
''',
}
COMPLAINTS = """\
schemas/planted.py:2: schemas may not import torch
schemas/planted.py:3: schemas may not import torch.nn
schemas/planted.py:4: schemas may not import transformer_core.data.sharding
transformer_core/models/bare.py: has no docstring
transformer_core/models/planted.py:2: models may not import transformer_core.training.loop
transformer_core/models/planted.py:3: models may not import transformer_core.report
transformer_core/models/planted.py:4: models may not import transformer_core.measure
transformer_core/models/planted.py:5: models may not import transformer_core.parallel
transformer_core/models/planted.py:6: models may not import transformer_core.decide
transformer_core/models/planted.py:8: models may not import transformer_core.run
transformer_core/shared.py:2: a module outside the packages may not import transformer_core.data
"""


def test_planted_faults_are_reported_and_nothing_else(tmp_path):
    write_tree(tmp_path, PLANTED)
    assert "\n".join([*offenders(tmp_path), ""]) == COMPLAINTS
