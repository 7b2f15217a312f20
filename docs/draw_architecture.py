"""Draws docs/architecture.svg from what the code imports: ``python docs/draw_architecture.py``.

Rooms in their order from left to right, with their sub-rooms, and an arrow for each import of one
room by another. Below them the way of one number from a study to the report. The picture changes
only when a room, a sub-room or a direction between rooms does.
"""

import ast
from html import escape
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/architecture.svg"
CONTRACT = "schemas"
ORDER = (
    *("common", "plan", "data", "model", "task", "parallel", "train"),
    *("measure", "profiling", "analysis", "refine", "search", "own_training", "report", "faults"),
)
WAY = (
    ("config", "a study"),
    ("plan", "run specs, targets"),
    ("data", "shards of tokens"),
    ("train", "steps of a run"),
    ("measure", "windows of steps"),
    ("analysis", "ratio and interval"),
    ("report", "a number and its run"),
)
"""The way of a ratio of throughputs: the room, and what it hands on."""

WIDTH, ROOM, GAP, LINE = 1286, 96, 10, 15
TOP, NAMES = 64, 30
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1b1f24; }
.title { font-weight: 600; font-size: 13px; } .small { font-size: 10.5px; fill: #57606a; }
.room { fill: #eef3fb; stroke: #6b8fc9; } .ground { fill: #f3f0e6; stroke: #a99a5f; }
.step { fill: #e9f5ec; stroke: #5c9c6c; }
.arc { fill: none; stroke: #6b8fc9; stroke-width: 1; opacity: .55; }
.way { fill: none; stroke: #5c9c6c; stroke-width: 1.6; }
.head { fill: #6b8fc9; } .tip { fill: #5c9c6c; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #9aa4af; }
  .room { fill: #1c2a41; stroke: #7ea2dc; } .ground { fill: #332e1c; stroke: #b9aa6c; }
  .step { fill: #1a3323; stroke: #74b985; } .arc { stroke: #7ea2dc; } .way { stroke: #74b985; }
  .head { fill: #7ea2dc; } .tip { fill: #74b985; }
}
"""


def rooms(package: Path) -> dict[str, list[str]]:
    """Sub-rooms by room, in the order of the house; rooms that it does not know come last."""
    found = [folder.name for folder in package.iterdir() if (folder / "__init__.py").exists()]
    known = [name for name in ORDER if name in found]
    return {
        room: sorted(each.name for each in (package / room).iterdir() if any(each.glob("*.py")))
        for room in known + sorted(set(found) - set(known))
    }


def imports(package: Path) -> set[tuple[str, str]]:
    """Pairs of rooms of which the first imports the second, also inside functions."""
    pairs, names = set(), list(rooms(package))
    for room in names:
        for file in (package / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and not node.level:
                    modules = [f"{node.module}.{alias.name}" for alias in node.names]
                elif isinstance(node, ast.Import):
                    modules = [alias.name for alias in node.names]
                else:
                    continue
                for module, other in product(modules, names):
                    if f"{module}.".startswith(f"{package.name}.{other}.") and other != room:
                        pairs.add((room, other))
    return pairs


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """Words at a place."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>'


def draw(inside: dict[str, list[str]], pairs: set[tuple[str, str]]) -> str:
    """The picture. Ground rooms, which all others may use, are told from the others by colour."""
    names = list(inside)
    deepest = max(map(len, inside.values()))
    height = NAMES + LINE * deepest + 12
    arcs = 34 + 11 * len(names)
    left = {name: 10 + (ROOM + GAP) * number for number, name in enumerate(names)}
    floor = TOP + arcs + height
    parts = [text(10, 20, "Rooms: each imports only from those to its left", "title", "start")]
    schemas = "schemas: what may stand in a file; every room reads it"
    parts.append(text(10, 38, schemas, "small", "start"))
    roof = TOP + arcs
    for user, used in sorted(pairs):
        start, end = left[user] + ROOM / 2 - 8, left[used] + ROOM / 2 + 8
        rise = 12 + 11 * (names.index(user) - names.index(used))
        top = roof - rise
        path = f"M{start:g},{roof} C{start:g},{top:g} {end:g},{top:g} {end:g},{roof - 4}"
        parts.append(f'<path class="arc" d="{path}" marker-end="url(#head)"/>')
    for name, below in inside.items():
        kind = "ground" if name in ("common", "plan") else "room"
        box = f'x="{left[name]}" y="{roof}" width="{ROOM}" height="{height}" rx="6"'
        parts.append(f'<rect class="{kind}" {box}/>')
        parts.append(text(left[name] + ROOM / 2, roof + 19, name, "title"))
        for number, each in enumerate(below):
            words = each.replace("_", " ")
            parts.append(text(left[name] + ROOM / 2, roof + 36 + LINE * number, words, "small"))
    parts.append(text(10, floor + 34, "The way of one number", "title", "start"))
    step = (WIDTH - 20) / len(WAY)
    for number, (place, gives) in enumerate(WAY):
        x, y = 10 + step * number, floor + 48
        box = f'x="{x:g}" y="{y}" width="{step - 34:g}" height="46" rx="6"'
        parts.append(f'<rect class="step" {box}/>')
        parts.append(text(x + (step - 34) / 2, y + 19, place, "title"))
        parts.append(text(x + (step - 34) / 2, y + 35, gives, "small"))
        if number:
            parts.append(f'<path class="way" d="M{x - 30:g},{y + 23} h24" marker-end="url(#tip)"/>')
    marks = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path class="{name}" d="M0,0 L8,4 L0,8 z"/></marker>'
        for name in ("head", "tip")
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {floor + 106}" '
        f'role="img" aria-label="The rooms of the project and the way of one number">\n'
        f"<style>{STYLE}</style>\n<defs>{marks}</defs>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def picture() -> str:
    """The picture of the code as it is."""
    package = ROOT / "transformer_core"
    return draw(rooms(package), imports(package))


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
