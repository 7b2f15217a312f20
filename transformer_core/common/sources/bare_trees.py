"""Syntax trees without what changes no result, and a digest of them.

Left out are comments, formatting, docstrings, log lines, what is written to standard error, help
texts and the messages of errors, but for those that become the reason of a status.
"""

import ast
import hashlib
import re
from pathlib import Path

CHANGES_NO_RESULT = True  # it says which results are made again, not what is in them

PACKAGES = ("transformer_core", "schemas")
MODULE_NAME = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+")
"""A string like this is the name of a module that is started or read."""

REASONS = frozenset({"Unsupported", "Diverged", "PeerLost"})
"""Exceptions whose message is a result: the reason of a status."""

_LOG_METHODS = frozenset(["debug", "info", "warning", "error", "exception", "critical"])
_PARSERS = frozenset(["ArgumentParser", "add_argument", "add_argument_group", "add_parser"])
_HELP = frozenset(["help", "description", "epilog", "prog", "usage", "metavar", "title"])
_FIELD_TEXTS = frozenset(["description", "title", "examples"])


def digest(text: str) -> str:
    """A short name for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def bare_digest(file: Path) -> str:
    """Of a whole source file; of its bytes if it is not Python."""
    source = file.read_bytes()
    try:
        tree = Bare().visit(ast.parse(source))
    except (SyntaxError, ValueError):
        return hashlib.sha256(source).hexdigest()[:24]
    return digest(dump(tree))


class Bare(ast.NodeTransformer):
    """Takes out what changes no result."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) or _only_says(node.value):
            return None
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call) and _last(node.exc.func) not in REASONS:
            node.exc = _Mute().visit(node.exc)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = _last(node.func)
        dropped = _HELP if name in _PARSERS else _FIELD_TEXTS if name == "Field" else frozenset()
        node.keywords = [keyword for keyword in node.keywords if keyword.arg not in dropped]
        return node


class _Mute(ast.NodeTransformer):
    """Empties all texts."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant("")


class Texts(ast.NodeTransformer):
    """Takes the texts out of calls of plain names: what is called decides whether they matter."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name):
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
                for part in parts:
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        text = "" if MODULE_NAME.fullmatch(part.value) else part.value
                        self.texts.setdefault(node.func.id, []).append(text)
                        part.value = ""
        return node


def _only_says(node: ast.expr) -> bool:
    """Whether a call only writes to a log or to standard error."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        owner = function.value.id.lower()
        return function.attr in _LOG_METHODS and (owner.endswith(("log", "logger")))
    return (
        isinstance(function, ast.Name)
        and function.id == "print"
        and any(k.arg == "file" and ast.unparse(k.value) == "sys.stderr" for k in node.keywords)
    )


def _last(function: ast.expr) -> str | None:
    """The last part of the name of what is called."""
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def dump(node: object) -> str:
    """A syntax tree as text, the same in all versions of Python."""
    written: list[str] = []
    _write(node, written)
    return "".join(written)


def _write(node: object, out: list[str]) -> None:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Pass | ast.expr_context):
        return  # what is imported is looked up where it is used
    if isinstance(node, ast.AST):
        out.append(f"{type(node).__name__}(")
        for name, value in ast.iter_fields(node):
            if value not in (None, [], "") and name not in ("kind", "type_comment"):
                out.append(f"{name}=")
                _write(value, out)
        out.append(")")
    elif isinstance(node, list):
        for part in node:
            _write(part, out)
            out.append(",")
    else:
        module = isinstance(node, str) and MODULE_NAME.fullmatch(node)
        out.append("module" if module else repr(node))
