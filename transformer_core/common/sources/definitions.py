"""What a source file defines, as far as it can change a result: read, never run.

A file is a list of *items*: functions, classes, assignments, and statements that only have an
effect. Each has a digest of its syntax tree, without what changes no result: comments, formatting,
docstrings, log lines, what is written to standard error, help texts, messages of errors. And each
has the names that it uses, so that what it depends on can be found.

A module whose results are only shown, or only say where others come from, declares that in itself,
with the reason beside it:

    CHANGES_NO_RESULT = True
"""

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from transformer_core.common.sources.bare_trees import MODULE_NAME, Bare, Texts, digest, dump

CHANGES_NO_RESULT = True  # it says which results are made again, not what is in them

MARK = "CHANGES_NO_RESULT"
Imports = dict[str, tuple[str, str | None]]
"""Local names: the module they come from, and the name there (none for the module itself)."""


class Item(BaseModel):
    """A statement at the top of a module."""

    names: list[str]
    """What it defines."""
    digest: str
    """Of its syntax tree; of a class, without its ``fields``."""
    kind: Literal["function", "class", "record", "value", "other"]
    """A record is a class that has nothing but fields."""
    uses: list[str]
    """Dotted names that it mentions."""
    fields: str | None = None
    """Of a class: digest of its annotated names. Where they come complete from a file, their
    defaults change nothing."""
    annotations: list[str] = []
    """Of a class: dotted names that its fields mention."""
    imports: Imports = {}
    """Imports within it."""
    modules: list[str] = []
    """Modules that it names as strings."""
    places: list[str] = []
    """Files or folders beside the sources that it reads, relative to the root."""
    texts: dict[str, str] = {}
    """Texts that it gives to what it calls, digests by dotted name."""


class Definitions(BaseModel):
    """A source file."""

    package: bool
    changes_no_result: bool
    imports: Imports
    items: list[Item]
    program: list[int]
    """Items of ``if __name__ == "__main__"``."""
    effects: list[int]
    """Items that have an effect when the module is imported."""


def read_definitions(file: Path, root: Path) -> Definitions:
    """What a source file below ``root`` defines; SyntaxError if it is not Python."""
    name = file.relative_to(root).with_suffix("").parts
    package = name[-1] == "__init__"
    above = list(name[:-1])
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    found = Definitions(
        package=package, changes_no_result=False, imports={}, items=[], program=[], effects=[]
    )
    for statement in tree.body:
        _add(statement, found, above, file, root)
    if any("__getattr__" in item.names for item in found.items):
        found.imports |= _imported_later(tree, above)
    return found


def _imported_later(tree: ast.Module, above: Sequence[str]) -> Imports:
    """What a module says to type checkers that it imports: if it has a ``__getattr__``, that hands
    on these names once they are asked for."""
    later: Imports = {}
    for statement in tree.body:
        if _for_type_checkers(statement):
            for node in ast.walk(statement):
                if isinstance(node, ast.ImportFrom):
                    later |= imported(node, above)
    return later


def imported(node: ast.stmt, above: Sequence[str]) -> Imports:
    """What an import statement in a module of the package ``above`` binds."""
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.split(".")[0]: (
                alias.name if alias.asname else alias.name.split(".")[0],
                None,
            )
            for alias in node.names
        }
    if isinstance(node, ast.ImportFrom):
        stem = above[: len(above) - node.level + 1] if node.level else []
        module = ".".join([*stem, *([node.module] if node.module else [])])
        return {alias.asname or alias.name: (module, alias.name) for alias in node.names}
    return {}


def _add(
    statement: ast.stmt, found: Definitions, above: Sequence[str], file: Path, root: Path
) -> None:
    """Add a statement at the top of a module to what is ``found``."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        found.imports |= imported(statement, above)
        if isinstance(statement, ast.Import):  # import a.b binds a, and loads a.b
            found.imports |= {a.name: (a.name, None) for a in statement.names if not a.asname}
        return
    if _for_type_checkers(statement):
        return
    names = _bound(statement)
    if names == [MARK]:
        found.changes_no_result = True
        return
    item = _item(statement, names, above, file, root)
    if item is None:
        return
    number = len(found.items)
    found.items.append(item)
    if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
        found.program.append(number)
    elif not isinstance(
        statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ) and not _only_binds(statement):
        found.effects.append(number)
        found.imports |= item.imports


def _for_type_checkers(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test)


def _only_binds(statement: ast.stmt) -> bool:
    """Whether it does no more than to give a value a name."""
    if isinstance(statement, ast.AnnAssign):
        return isinstance(statement.target, ast.Name)
    return isinstance(statement, ast.Assign) and all(
        isinstance(target, ast.Name | ast.Tuple) for target in statement.targets
    )


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a statement defines in its module."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    found = []
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.append(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
    return found


def _item(
    statement: ast.stmt, names: list[str], above: Sequence[str], file: Path, root: Path
) -> Item | None:
    bare = Bare().visit(statement)
    if bare is None:
        return None
    fields: list[ast.stmt] = []
    if isinstance(bare, ast.ClassDef):
        fields = [node for node in bare.body if isinstance(node, ast.AnnAssign)]
        bare.body = [node for node in bare.body if not isinstance(node, ast.AnnAssign)]
    uses, annotations = _Uses(above, file, root), _Uses(above, file, root)
    uses.visit(bare)
    for field in fields:
        annotations.visit(field)
    said = Texts()
    bare = said.visit(bare)
    return Item(
        names=names,
        kind=_kind(bare),
        digest=digest(dump(bare)),
        uses=sorted(uses.names),
        fields=digest(dump(fields)) if fields else None,
        annotations=sorted(annotations.names),
        imports=uses.imports,
        modules=sorted(uses.modules | annotations.modules),
        places=sorted(uses.places),
        texts={name: digest(repr(texts)) for name, texts in sorted(said.texts.items())},
    )


def _kind(bare: ast.stmt) -> Literal["function", "class", "record", "value", "other"]:
    match bare:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return "function"
        case ast.ClassDef(body=body):
            return "class" if any(not isinstance(node, ast.Pass) for node in body) else "record"
        case ast.Assign() | ast.AnnAssign():
            return "value"
    return "other"


class _Uses(ast.NodeVisitor):
    """Collects the names that a statement uses."""

    def __init__(self, above: Sequence[str], file: Path, root: Path) -> None:
        self.above, self.file, self.root = above, file, root
        self.names: set[str] = set()
        self.modules: set[str] = set()
        self.places: set[str] = set()
        self.imports: Imports = {}

    def visit(self, node: ast.AST) -> None:
        place = _place(node, self.file)
        if place is not None and place.is_relative_to(self.root):
            self.places.add(place.relative_to(self.root).as_posix())
            return
        super().visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.names.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts = [node.attr]
        value = node.value
        while isinstance(value, ast.Attribute):
            parts.append(value.attr)
            value = value.value
        if isinstance(value, ast.Name):
            self.names.add(".".join([value.id, *reversed(parts)]))
        else:
            self.visit(value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and MODULE_NAME.fullmatch(node.value):
            self.modules.add(node.value)

    def visit_Import(self, node: ast.Import) -> None:
        self.imports |= imported(node, self.above)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.imports |= imported(node, self.above)


def _place(node: ast.AST, file: Path) -> Path | None:
    """The path that an expression makes of ``__file__``; None for any other. ``**`` in it stands
    for a folder and all below, where files of a name are looked for."""
    match node:
        case ast.Call(func=ast.Name(id="Path"), args=[ast.Name(id="__file__")]):
            return file
        case ast.Call(func=ast.Attribute(value=value, attr="resolve" | "absolute"), args=[]):
            return _place(value, file)
        case ast.Attribute(value=value, attr="parent"):
            path = _place(value, file)
            return path and path.parent
        case ast.Subscript(
            value=ast.Attribute(value=value, attr="parents"), slice=ast.Constant(value=int(up))
        ):
            path = _place(value, file)
            return path and path.parents[up]
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=str(name))):
            path = _place(left, file)
            return path and path / name
        case ast.Call(
            func=ast.Attribute(value=value, attr="rglob"), args=[ast.Constant(value=str(name))]
        ):
            path = _place(value, file)
            return path and path / "**" / name
    return None
