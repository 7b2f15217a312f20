"""The size of rooms, files and functions, and names that mean one thing.

What is not so yet stands on the lists below. An entry that is no longer needed fails too, so that
the lists can only become shorter.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, SCHEMAS = "transformer_core", "schemas"

FILES_OF_A_ROOM, LINES_OF_A_FILE, LINES_OF_A_FUNCTION = 12, 300, 50
REASON = "# long:"

STRUCTURAL = frozenset(
    ("__init__", "__main__", "job", "order", "worker", "read", "section", "figures", "tables")
)
"""Names that say what a module is in its folder."""

DESCRIBED = {
    "against": "results/against.json, and the analysis that writes it",
    "variants": "config/variants.yaml, and its reading",
}
"""Schemas with the name of the module whose file they describe."""

LARGE_ROOMS = {
    "transformer_core/data/grammar": "a module for each part of the grammar",
    "schemas/config": "a module for each section of a study",
    "schemas/results": "a module for each kind of result",
}
"""Folders of many small modules of one kind, with the reason."""

DATA_TABLES: dict[str, str] = {}
"""Files that are long because they list data, with the reason."""


def modules(root: Path) -> list[Path]:
    """All modules, relative to ``root``."""
    found = [*(root / SCHEMAS).rglob("*.py"), *(root / PACKAGE).rglob("*.py")]
    return sorted(path.relative_to(root) for path in found)


def large_rooms(root: Path) -> set[str]:
    """Folders with more modules than a room has."""
    count: dict[str, int] = defaultdict(int)
    for path in modules(root):
        count[str(path.parent)] += path.stem != "__init__"
    return {folder for folder, number in count.items() if number > FILES_OF_A_ROOM}


def long_files(root: Path) -> set[str]:
    """Modules of more lines than a file has."""
    return {
        str(path)
        for path in modules(root)
        if len((root / path).read_text(encoding="utf-8").splitlines()) > LINES_OF_A_FILE
    }


def long_functions(root: Path) -> set[str]:
    """Functions of more lines than a function has, without a reason in its first lines."""
    return {
        f"{path}:{name}"
        for path in modules(root)
        for name in _long_functions((root / path).read_text(encoding="utf-8"))
    }


def _long_functions(text: str) -> Iterator[str]:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # The reason stands beside the name, or above the first statement.
            head = lines[max(0, node.lineno - 2) : node.body[0].end_lineno]
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LINES_OF_A_FUNCTION and not any(REASON in line for line in head):
                yield node.name


def shared_names(root: Path) -> set[str]:
    """Names that two modules of the package have, or a module and a schema beside it.

    Two schemas may have the name of the room that they describe, in ``config`` and ``results``.
    """
    places: dict[str, set[str]] = defaultdict(set)
    for path in modules(root):
        if path.stem not in STRUCTURAL:
            # Of the schemas, those of one folder count as one: they cannot have a name twice.
            schema = path.parts[0] == SCHEMAS
            places[path.stem].add(SCHEMAS if schema else str(path))
    return {name for name, where in places.items() if len(where) > 1}


def compare(found: set[str], allowed: set[str] | frozenset[str], what: str) -> None:
    new, gone = sorted(found - allowed), sorted(allowed - found)
    assert not new, f"{what}: {', '.join(new)}"
    assert not gone, f"no longer needed on the list in {Path(__file__).name}: {', '.join(gone)}"


def test_rooms_are_small() -> None:
    what = f"more than {FILES_OF_A_ROOM} modules in a folder, make sub-folders"
    compare(large_rooms(ROOT), LARGE_ROOMS.keys(), what)


def test_files_are_short() -> None:
    what = f"more than {LINES_OF_A_FILE} lines, split it"
    compare(long_files(ROOT), DATA_TABLES.keys(), what)


def test_functions_are_short() -> None:
    what = f"more than {LINES_OF_A_FUNCTION} lines, split it or say why not behind {REASON}"
    compare(long_functions(ROOT), frozenset(), what)


def test_a_name_means_one_thing() -> None:
    what = "the name of two modules, rename one"
    compare(shared_names(ROOT), DESCRIBED.keys(), what)


def planted(root: Path, name: str, text: str = '"""Planted."""\n') -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_large_room_is_seen(tmp_path: Path) -> None:
    for number in range(FILES_OF_A_ROOM):
        planted(tmp_path, f"transformer_core/data/m{number}.py")
    planted(tmp_path, "transformer_core/data/__init__.py")
    assert large_rooms(tmp_path) == set()
    planted(tmp_path, "transformer_core/data/one_more.py")
    assert large_rooms(tmp_path) == {"transformer_core/data"}


def test_a_long_file_is_seen(tmp_path: Path) -> None:
    planted(tmp_path, "schemas/short.py", "x = 1\n" * LINES_OF_A_FILE)
    planted(tmp_path, "schemas/long.py", "x = 1\n" * (LINES_OF_A_FILE + 1))
    assert long_files(tmp_path) == {"schemas/long.py"}


@pytest.mark.parametrize(
    ("head", "lines", "seen"),
    [
        ("def f():", LINES_OF_A_FUNCTION - 1, False),
        ("def f():", LINES_OF_A_FUNCTION, True),
        ("async def f():", LINES_OF_A_FUNCTION, True),
        ("def f():  # long: one formula", LINES_OF_A_FUNCTION, False),
        ("# long: one formula\ndef f():", LINES_OF_A_FUNCTION, False),
        ("def f(\n    x,\n):  # long: one formula", LINES_OF_A_FUNCTION, False),
        ("# A long one.\ndef f():", LINES_OF_A_FUNCTION, True),
    ],
)
def test_a_long_function_is_seen(tmp_path: Path, head: str, lines: int, seen: bool) -> None:
    planted(tmp_path, "transformer_core/train/f.py", head + "\n" + "    x = 1\n" * lines)
    assert long_functions(tmp_path) == ({"transformer_core/train/f.py:f"} if seen else set())


def test_a_name_with_two_meanings_is_seen(tmp_path: Path) -> None:
    for name in (
        "transformer_core/data/job.py",
        "transformer_core/train/job.py",
        "schemas/config/memory.py",
        "transformer_core/data/pairs.py",
    ):
        planted(tmp_path, name)
    assert shared_names(tmp_path) == set()
    planted(tmp_path, "transformer_core/measure/pairs.py")
    planted(tmp_path, "transformer_core/measure/memory.py")
    assert shared_names(tmp_path) == {"pairs", "memory"}
