"""Sums of losses that stay on the GPU until the script uses them.

``total += loss.item()`` makes the host wait until the GPU has computed the loss, and the GPU then
waits for the host to send the next step. ``total = total + loss.detach().double()`` avoids this:
``total = float(total)`` reads the sum right before the statement that uses it.

The technique edits the source of the script, and only where the source shows that nothing else
changes. It edits a line of a loop if

* the host was seen to wait there (without a GPU, any line, if the technique is named);
* the line adds values that it reads, times numbers, to a variable of its own function;
* all other assignments to that variable are literal numbers, which tell its type; no inner function
  sees it; and it is not used in every step of the same loop.

Such a sum has 64 bits and equals Python's; only a division on a GPU may differ in the last digit.
Lines that decide something or fill a list are not edited.
"""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformer_core.tune.source import Above, Source
from transformer_core.tune.techniques.technique import Technique

_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_LOOKS = {"locals", "globals", "vars", "dir", "eval", "exec"}
"""Functions that can read variables without naming them."""


class DeferredReads(Technique):
    name = "deferred_reads"
    words = "sums of losses read from the GPU only where they are used, not in every step"
    group = "reads"
    advice = "Add up loss.detach().double() instead of loss.item(), and read the sum to print it."
    rounding = "exact"
    in_source = True

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["factory"]:
            return "the loop is not the script's own"
        if facts["device"] != "cuda" and self.name not in facts["named"]:
            return (
                f"only values on a GPU make the host wait: to try it, name it (--only {self.name})"
            )
        if not self.edit(Source.of(facts), facts):
            return "no line makes the host wait only to add up values"
        return None

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        found = False
        where = [Path(call["file"]).resolve() for call in source.calls]
        for file in dict.fromkeys([source.script, *where]):
            tree = source.tree(file)
            if not tree.body:
                continue
            lines = source.text(file)
            seen: Collection[int] = range(len(lines) + 1)
            if facts["device"] == "cuda":
                seen = {n for n in seen if f"{file.name}:{n}" in facts["waits"]}
            # Other techniques change the call of the model.
            taken = {c["line"] for c, at in zip(source.calls, where, strict=True) if at == file}
            for first, last, line in edits(tree, lines, seen, taken):
                source.replace(file, first, last, [line])
                found = True
        return found


@dataclass
class _Sum:
    """A variable of one function, and its uses."""

    name: str
    added: list[ast.Assign | ast.AugAssign] = field(default_factory=list)
    """Statements that add values of tensors to it."""
    first: list[int | float] = field(default_factory=list)  # literals that are assigned to it
    used: list[ast.Name] = field(default_factory=list)


def edits(
    tree: ast.Module, lines: list[str], seen: Collection[int], taken: Collection[int]
) -> Iterator[tuple[int, int, str]]:
    """Each edit: a line that replaces the lines from one index to another. ``seen`` are the numbers
    of the lines at which the host waits; lines with numbers in ``taken`` are not edited."""
    above = Above(tree)
    for scope in (n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.FunctionDef)):
        losses = _differentiated(scope)
        for found in _sums(scope, above):
            numbers = {stmt.lineno for stmt in found.added}
            kind = _kind(found, losses)
            places = {_place(use, found, above, lines) for use in found.used}
            if kind is None or None in places or numbers.isdisjoint(seen) or numbers & {*taken}:
                continue
            if not all(_is_alone(stmt, lines) for stmt in found.added):
                continue
            for stmt in found.added:
                yield stmt.lineno - 1, stmt.lineno, _rewritten(stmt, lines[stmt.lineno - 1], kind)
            for place in sorted(p for p in places if p is not None):
                indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
                yield place, place, f"{indent}{found.name} = {kind}({found.name})"


def _sums(scope: ast.AST, above: Above) -> list[_Sum]:
    """The variables of a function, or of the module, that are only sums."""
    found: dict[str, _Sum] = {}
    others: set[str] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _LOOKS:
            return []
        if not isinstance(node, ast.Name):
            others.update(_bound_by(node))
            continue
        each, stmt = found.setdefault(node.id, _Sum(node.id)), above(node, ast.stmt)
        if above(node, *_SCOPES) is not scope:
            others.add(node.id)
        elif _adds(stmt, node.id) and isinstance(above(stmt, *_LOOPS, *_SCOPES), _LOOPS):
            each.added += [stmt] if stmt not in each.added else []
        elif isinstance(node.ctx, ast.Load):
            each.used.append(node)
        elif (number := _literal(node, stmt)) is not None:
            each.first.append(number)
        else:
            others.add(node.id)
    return [each for name, each in found.items() if each.added and name not in others]


def _bound_by(node: ast.AST) -> list[str]:
    """Names that a node binds or declares without a Name node inside it."""
    if isinstance(node, ast.Global | ast.Nonlocal):
        return node.names
    names = [getattr(node, each, None) for each in ("name", "asname", "rest")]
    names.append(node.arg if isinstance(node, ast.arg) else None)
    return [name for name in names if isinstance(name, str)]


def _adds(stmt: ast.stmt, name: str) -> bool:
    """Whether a statement adds values of tensors, times numbers, to ``name``."""
    match stmt:
        case ast.AugAssign(target=ast.Name(id=target), op=ast.Add() | ast.Sub(), value=value):
            terms = list(_terms(value))
        case ast.Assign(targets=[ast.Name(id=target)], value=value):
            terms = list(_terms(value))
            if name not in [getattr(term, "id", None) for term in terms]:
                return False
        case _:
            return False
    reads = [read for read, _ in _reads(value)]
    plain = all(term in reads or _is_number(term) for term in terms)
    return target == name and plain and bool(reads)


def _terms(value: ast.expr) -> Iterator[ast.expr]:
    """The operands of an arithmetic expression."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, _ARITHMETIC):
        yield from _terms(value.left)
        yield from _terms(value.right)
    else:
        yield value


def _reads(value: ast.expr) -> list[tuple[ast.Call, ast.expr]]:
    """Each call in ``value`` that reads a tensor, and the tensor, from left to right."""
    calls = [term for term in _terms(value) if isinstance(term, ast.Call)]
    return [(call, tensor) for call in calls if (tensor := _tensor(call)) is not None]


def _tensor(call: ast.Call) -> ast.expr | None:
    """The tensor that a call reads: ``loss.detach().cpu().item()``, ``float(loss)``."""
    match call:
        case ast.Call(func=ast.Name(id="float"), args=[found]):
            pass
        case ast.Call(func=ast.Attribute(attr="item", value=found), args=[]):
            pass
        case _:
            return None
    while True:
        match found:
            case ast.Attribute(attr="data", value=inner):
                found = inner
            case ast.Call(
                func=ast.Attribute(attr="detach" | "cpu", value=inner), args=[], keywords=[]
            ):
                found = inner
            case _:
                return found if _is_path(found) or _is_count(found) else None


def _is_path(value: ast.expr) -> bool:
    """Whether ``value`` is a variable, or a part of one: ``output.loss``, ``losses["total"]``."""
    match value:
        case ast.Attribute(value=inner) | ast.Subscript(value=inner, slice=ast.Constant()):
            return _is_path(inner)
    return isinstance(value, ast.Name)


def _is_count(value: ast.expr) -> bool:
    """Whether ``value`` counts how often something holds: ``(guess == truth).sum()``."""
    match value:
        case ast.Call(func=ast.Attribute(attr="sum", value=of), args=[], keywords=[]):
            equal = isinstance(of, ast.Call) and getattr(of.func, "attr", "") == "eq"
            return equal or isinstance(of, ast.Compare)
    return False


def _is_number(value: ast.expr) -> bool:
    """Whether ``value`` looks like a number: ``0.9``, ``args.n``, ``len(batch)``, ``batch.size(0)``."""
    match value:
        case ast.Call(func=ast.Attribute(attr="size" | "numel") | ast.Name(id="len")):
            return True
    return _is_path(value) or _number(value) is not None


def _number(value: ast.expr | None) -> int | float | None:
    """The value of a literal number; None for anything else."""
    found = value.value if isinstance(value, ast.Constant) else None
    return found if type(found) in (int, float) else None  # type: ignore[return-value]


def _literal(node: ast.Name, stmt: ast.stmt) -> int | float | None:
    """The literal number that ``stmt`` assigns to ``node``, alone or in a tuple."""
    if isinstance(stmt, ast.AnnAssign):
        return _number(stmt.value)
    for target in stmt.targets if isinstance(stmt, ast.Assign) else []:
        pairs = [(target, stmt.value)]  # type: ignore[attr-defined]
        if isinstance(target, ast.Tuple) and isinstance(pairs[0][1], ast.Tuple):
            pairs = list(zip(target.elts, pairs[0][1].elts, strict=False))
        for each, value in pairs:
            if each is node:
                return _number(value)
    return None


def _differentiated(scope: ast.AST) -> set[str]:
    """The variables in calls of ``backward``, as text: among them are the losses."""
    calls = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "backward"
    ]
    inside = (part for call in calls for part in ast.walk(call) if isinstance(part, ast.expr))
    return {ast.unparse(part) for part in inside if _is_path(part)}


def _kind(found: _Sum, losses: set[str]) -> str | None:
    """The type of a sum, ``float`` or ``int``; None if the source does not tell."""
    reads = [each for stmt in found.added for each in _reads(stmt.value)]
    types = {type(number) for number in found.first}
    floats = [ast.unparse(tensor) in losses for _, tensor in reads]
    # An argument of float() may be no tensor, unless backward() is called on it.
    if not all(
        known or isinstance(call.func, ast.Attribute)
        for (call, _), known in zip(reads, floats, strict=True)
    ):
        return None
    if types == {float} or (types == {int} and all(floats)):
        return "float"
    counts = all(_is_count(tensor) for _, tensor in reads)
    whole = all(
        isinstance(s, ast.AugAssign) and s.value is _reads(s.value)[0][0] for s in found.added
    )
    return "int" if types == {int} and counts and whole else None


def _place(use: ast.Name, found: _Sum, above: Above, lines: list[str]) -> int | None:
    """The index of the line before which the sum must be read for ``use``; None if there is no such
    line, or it would read the sum in every step of a loop that adds to it."""
    stmt = above(use, ast.stmt)
    line = lines[stmt.lineno - 1]
    if isinstance(stmt, ast.While) or not _begins_line(stmt, line) or line.lstrip()[:4] == "elif":
        return None
    for added in found.added:
        around = list(above.all(stmt))
        loop = above(added, *_LOOPS)
        if loop in around and not any(
            isinstance(node, ast.If) for node in around[: around.index(loop)]
        ):
            return None
    return int(stmt.lineno) - 1


def _rewritten(stmt: ast.Assign | ast.AugAssign, line: str, kind: str) -> str:
    """The line of a statement, with tensors in place of the calls that read them."""
    code, value = line.encode(), stmt.value

    def between(first: int, last: int | None) -> str:
        return code[first:last].decode()

    new, at = "", value.col_offset
    for call, tensor in _reads(value):
        new += between(at, call.col_offset) + between(tensor.col_offset, tensor.end_col_offset)
        new += ".detach().double()" if kind == "float" else ""
        at = call.end_col_offset or 0
    new += between(at, value.end_col_offset)
    if isinstance(stmt, ast.Assign):
        return between(0, value.col_offset) + new + between(value.end_col_offset or 0, None)
    sign = "+" if isinstance(stmt.op, ast.Add) else "-"
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
        new = f"({new})"
    name = ast.unparse(stmt.target)
    tail = between(stmt.end_col_offset or 0, None)
    return f"{between(0, stmt.col_offset)}{name} = {name} {sign} {new}{tail}"


def _is_alone(stmt: ast.stmt, lines: list[str]) -> bool:
    """Whether a statement has exactly one line, and nothing else is on that line."""
    line = lines[stmt.lineno - 1]
    rest = line.encode()[stmt.end_col_offset :].lstrip()
    return _begins_line(stmt, line) and stmt.end_lineno == stmt.lineno and rest[:1] in (b"", b"#")


def _begins_line(stmt: ast.stmt, line: str) -> bool:
    return not line.encode()[: stmt.col_offset].strip()
