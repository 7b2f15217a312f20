"""The import direction: a package imports only from packages before it, itself and ``schemas``."""

import ast
import gc
from pathlib import Path

import pytest

from tests.records import write_tree

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    "techniques",
    "common",
    "trace",
    "study",
    "data",
    "models",
    "parallel",
    "training",
    "machine",
    "run",
    "observe",
    "measure",
    "certify",
    "decide",
    "tune",
    "audit",
    "report",
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


MODEL = "transformer_core/models/planted.py"
PLANTED = [
    (
        MODEL,
        "from transformer_core.training.loop import train",
        "2: models, transformer_core.training.loop",
    ),
    (MODEL, "import transformer_core.report.page", "2: models, transformer_core.report"),
    (MODEL, "from transformer_core import measure", "2: models, transformer_core.measure"),
    (MODEL, "from ..parallel import ddp", "2: models, transformer_core.parallel"),
    (MODEL, "from .. import decide", "2: models, transformer_core.decide"),
    (MODEL, "def late():\n    import transformer_core.run", "3: models, transformer_core.run"),
    (MODEL, "from transformer_core.data import batching", None),
    (MODEL, "from transformer_core.models.loss import loss", None),
    (MODEL, "from . import layers\nimport schemas.config.model", None),
    (MODEL, "from transformer_core import sources\nimport torch, trainer", None),
    ("schemas/planted.py", "import torch", "2: schemas, torch"),
    ("schemas/planted.py", "import torch.nn", "2: schemas, torch.nn"),
    (
        "schemas/planted.py",
        "import transformer_core.data.sharding.job",
        "2: schemas, transformer_core.data.sharding",
    ),
    (
        "transformer_core/shared.py",
        "import transformer_core.data",
        "2: a module outside the packages, transformer_core.data",
    ),
]
"""A module, an import in it, and line, package and import of the complaint, if any."""


@pytest.mark.parametrize(("module", "code", "complaint"), PLANTED)
def test_a_planted_import_is_reported_if_it_is_wrong(tmp_path, module, code, complaint):
    write_tree(tmp_path, {module: f'"""Planted."""\n{code}\n'})
    expected = [f"{module}:{complaint.replace(',', ' may not import')}"] if complaint else []
    assert offenders(tmp_path) == expected


def test_a_missing_docstring_is_reported(tmp_path):
    write_tree(tmp_path, {MODEL: "x = 1\n"})
    assert offenders(tmp_path) == [f"{MODEL}: has no docstring"]
