"""Variables of the environment that a script sets before it imports torch.

torch and the libraries below it read them when they are imported, and what observes a script imports torch
first. So constants are read from the script's text, and its process starts with them.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

from transformer_core.study.users_environment import variables_of_speed

WITH_TORCH = (
    *("accelerate", "composer", "deepspeed", "diffusers", "fastai", "ignite", "keras", "lightning"),
    *("lightning_fabric", "monai", "open_clip", "peft", "pytorch_lightning", "skorch", "timm"),
    *("sentence_transformers", "transformers", "trl"),
)
"""Packages that import torch, besides those whose names begin with its own."""
AT_START = ("LD_", "MALLOC_", "GLIBC_")
"""Variables that only a new process reads: where a script sets them, they change nothing in its own."""


def early_variables(script: Path, folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Those on which speed depends, with the constants that they get at the top level of ``script``, or of
    modules next to it or in ``folder``, in the ``given`` environment; also if they are set in a loop over
    constants, or only if one is not set yet."""
    reader = _Reader((script.parent, folder), given)
    reader.read(script, main=True)
    found = variables_of_speed(reader.found)
    return {name: each for name, each in found.items() if not name.startswith(AT_START)}


class _Reader:
    def __init__(self, folders: tuple[Path, ...], given: Mapping[str, str]) -> None:
        self.found: dict[str, str] = {}
        self._folders, self._given, self._seen = folders, given, set[Path]()

    def read(self, file: Path, main: bool = False) -> bool:
        """Reads the statements of a file until torch is imported; returns whether it is."""
        if file in self._seen:
            return False
        self._seen.add(file)
        with suppress(OSError, SyntaxError, ValueError):
            return self._block(ast.parse(file.read_bytes()).body, file, main)
        return False

    def _block(self, body: list[ast.stmt], file: Path, main: bool) -> bool:
        for each in body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if isinstance(each, ast.If) and "__name__" in ast.unparse(each.test):
                imported = main and self._block(each.body, file, main)
            elif isinstance(each, ast.If) and (unset := _UNSET.fullmatch(ast.unparse(each.test))):
                known = not {*unset.groups()}.isdisjoint({*self._given, *self.found})
                imported = self._block(each.orelse if known else each.body, file, main)
            elif (
                isinstance(each, ast.For)
                and isinstance(each.iter, ast.Tuple | ast.List)
                and not any(isinstance(n, ast.Break | ast.Continue) for n in ast.walk(each))
            ):
                rounds = (_Put(ast.unparse(each.target), value) for value in each.iter.elts)
                bodies = ([*map(put.visit, deepcopy(each.body))] for put in rounds)
                imported = any(self._block(body, file, main) for body in bodies)
            elif isinstance(each, ast.Try | ast.With):
                imported = self._block(each.body, file, main)
            else:
                # Whether a condition holds is unknown, but not what may be imported under it.
                nodes = ast.walk(each)
                imported = any(self._imports(name, file) for n in nodes for name in _named(n))
                for name, value, default in _assigned(each):
                    if not default or name not in {*self._given, *self.found}:
                        self.found[name] = value
            if imported:
                return True
        return False

    def _imports(self, name: str, file: Path) -> bool:
        """Whether the import of a module, whose name begins with a dot for each folder upwards, imports
        torch."""
        first = name.partition(".")[0]
        if first.startswith("torch") or first in WITH_TORCH:
            return True
        inner = name.lstrip(".")
        up = len(name) - len(inner)
        folders = (file.parents[up - 1],) if 0 < up <= len(file.parents) else self._folders
        parts = inner.split(".") if inner else []
        torch = False
        for folder in folders:
            for count in range(1, len(parts) + 1):
                module = folder.joinpath(*parts[:count])
                files = (module / "__init__.py", module.with_name(f"{module.name}.py"))
                torch |= any(self.read(each) for each in files if each.is_file())
        return torch


_READ = r"(?:(?:os\.)?environ\.get|(?:os\.)?getenv)\('(\w+)'\)"
_UNSET = re.compile(rf"'(\w+)' not in (?:os\.)?environ|not {_READ}|{_READ} is None")
"""Conditions that a variable is not set."""


class _Put(ast.NodeTransformer):
    """Puts a value in place of a variable."""

    def __init__(self, name: str, value: ast.expr) -> None:
        self._name, self._value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._value if node.id == self._name else node


def _named(node: ast.AST) -> list[str]:
    """The modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        dot = "." if node.module else ""
        return [f"{module}{dot}{each.name}" for each in node.names if each.name != "*"] or [module]
    return []


def _assigned(node: ast.stmt) -> Iterator[tuple[str, str, bool]]:
    """Name and value of each variable that a statement sets, and whether only if it is not set yet."""
    pairs: list[tuple[ast.expr | None, ast.expr]] = []
    default = False
    match node:
        case ast.Assign(targets=targets, value=value):
            subscripts = [each for each in targets if isinstance(each, ast.Subscript)]
            pairs = [(each.slice, value) for each in subscripts if _is_environment(each.value)]
        case ast.AugAssign(target=target, op=ast.BitOr(), value=ast.Dict(keys, values)):
            pairs = [*zip(keys, values, strict=True)] if _is_environment(target) else []
        case ast.Expr(ast.Call(ast.Attribute(owner, "setdefault"), [key, value])):
            pairs, default = [(key, value)] if _is_environment(owner) else [], True
        case ast.Expr(ast.Call(ast.Attribute(owner, "update"), given, keywords)):
            for each in given:
                if isinstance(each, ast.Dict):
                    pairs += zip(each.keys, each.values, strict=True)
            pairs += [(ast.Constant(each.arg), each.value) for each in keywords if each.arg]
            pairs = pairs if _is_environment(owner) else []
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("os"), "putenv"), [key, value])):
            pairs = [(key, value)]
    for variable, given_value in pairs:
        name, text = _text(variable), _text(given_value)
        if name is not None and text is not None:
            yield name, text, default


def _is_environment(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")


def _text(node: ast.expr | None) -> str | None:
    """The text that an expression is, also ``str`` of a number; None for any other."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.Call(ast.Name("str"), [ast.Constant(value)], []):
            return str(value)
    return None
