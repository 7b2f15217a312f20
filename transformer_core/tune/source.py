"""Edits of a user's script, as a diff. The files themselves are never written."""

import ast
import difflib
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

Place = tuple[str, int]

MODULES = ("gc", "functools", "torch")
"""Modules that inserted lines use."""


class Source:
    """The user's files below ``top``, with the edits so far.

    Args:
        root: the folder of the training.
        script: the script itself.
        places: file and line of the user's code that first ``call`` the model, or make an ``optimizer``, a
            ``loader`` or ``ddp``, as seen while the script ran. More words tell several of a kind apart.
        calls: each expression that calls the model in training: its ``file``, its ``line``, its ``end``
            (a line and a column), and whether its function is the model (``direct``).
        top: the folder of all files that may be edited, such as that of the repository; ``root`` by default.
        models: number of modules that these expressions call.
    """

    def __init__(
        self,
        root: Path,
        script: Path,
        places: dict[str, Place],
        calls: Sequence[dict[str, Any]] = (),
        top: Path | None = None,
        models: int = 1,
    ) -> None:
        self.top = (top or root).resolve()
        self.root, self.script, self.calls = root.resolve(), script.resolve(), calls
        self.models = models
        self.places = {k: (str(Path(f).resolve()), line) for k, (f, line) in places.items()}
        self._edits: dict[Path, list[tuple[int, int, list[str]]]] = {}
        self._insertions: dict[Path, list[tuple[int, int, bool, str]]] = {}
        """Row, column in bytes, whether it comes after others there, and text."""
        self._lines: dict[Path, list[str]] = {}

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "Source":
        script, places = facts["script"], facts["places"]
        if facts["factory"] and "call" in places:
            # The user's script is the file that calls the model; the factory only returns its parts.
            script = places["call"][0]
        folder, top = Path(facts["folder"]), Path(facts.get("top", facts["folder"]))
        calls, models = facts.get("calls", ()), len(facts.get("modules", ()))
        return cls(folder, Path(script), places, calls, top, models)

    def after_imports(self, lines: Sequence[str]) -> bool:
        """Insert ``lines`` after the last import of the script before its functions and classes, or after its
        last one before the training. False if there is none."""
        tree = self.tree(self.script)
        begun = [line for file, line in self.places.values() if file == str(self.script)]
        imports = [n for n in _imports(tree) if n.lineno < min(begun, default=math.inf)]
        if not imports:
            return False
        defined = (n.lineno for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef))
        first = next(defined, math.inf)
        last = [n for n in imports if n.lineno < first][-1:] or imports[-1:]
        end = _end(tree, last[0])
        text = [self._quoted(self.script, line) for line in lines]
        self.replace(self.script, end, end, ["", *text])
        self.importing(self.script, end, lines)
        return True

    def importing(self, file: Path, line: int, lines: Sequence[str]) -> None:
        """Import the modules that ``lines``, inserted at an index, use, unless ``file`` imports them by their
        names already and gives these to nothing else. torch is imported last: a script may first set variables
        that torch reads."""
        tree = self.tree(file)
        imports = [n for n in _imports(tree) if n.lineno <= line]
        names = [a for each in imports if isinstance(each, ast.Import) for a in each.names]
        has = {name.name.partition(".")[0] for name in names if not name.asname}
        head = [n for n in tree.body if _is_head(n)]
        start = head[-1].end_lineno or 0 if head else 0
        later = [each for each in imports if each not in head]
        first, last = (later[0].lineno - 1, _end(tree, later[-1])) if later else (start, start)
        for module in MODULES:
            name, at = self._name_of(module, file), last if module == "torch" else first
            if name in has or not any(f"{module}." in each for each in lines):
                continue
            edits = self._edits.setdefault(file, [])
            new = [f"import {module}" + f" as {name}" * (name != module)]
            # Of edits at one index, the last one comes first.
            at = min([at, *(first for first, _, text in edits if text == new)])
            edits[:] = [each for each in edits if each[2] != new]
            self.replace(file, at, at, new)

    def keyword(
        self,
        place: str,
        names: Sequence[str],
        given: Mapping[str, str],
        whole: bool = False,
        positional: float = math.inf,
        instead: Collection[str] = (),
    ) -> bool:
        """Add keywords to the calls of ``names`` at ``place``, and to all others of the same functions in the same
        files; if the place is not known, to all in the script. False if there is no such call, or all have one of
        the keywords already, one ``instead`` of them, or so many ``positional`` arguments that they have it among
        these; with ``whole``, if one of them has."""
        made = [at for name, at in self.places.items() if name.split()[0] == place]
        calls: list[tuple[Path, ast.Call]] = []
        for file in dict.fromkeys(Path(file) for file, _ in made or [(str(self.script), 0)]):
            named = [(c, ast.unparse(c.func)) for c in _calls(self.tree(file))]
            named = [(c, function) for c, function in named if function.split(".")[-1] in names]
            lines = {line for at, line in made if at == str(file)}
            seen = {f for c, f in named if lines & {*range(c.lineno, (c.end_lineno or 0) + 1)}}
            calls += [(file, call) for call, function in named if not made or function in seen]
        keys = {*given, *instead}
        taken = [
            c for _, c in calls if keys & {k.arg for k in c.keywords} or len(c.args) >= positional
        ]
        if whole and taken:
            return False
        free = [(file, call) for file, call in calls if call not in taken]
        return True in [self._add_keywords(file, call, given) for file, call in free]

    def before_loop(self, lines: Sequence[str]) -> bool:
        """Insert ``lines``, in which MODEL stands for the model, before the outermost loop around
        the call of the model, or the outermost in which the model stays the same. False if there is
        no such loop, or it is only a part of a step, or the model has no name there or is not the only
        one."""
        found = self._call(self.calls[0]) if self.calls else None
        if found is None:
            return False
        file, tree, call = found
        model = ""
        if any("MODEL" in line for line in lines):
            model = ast.unparse(call.func)
            plain = model.replace(".", "").replace("_", "").isalnum()
            if not self.calls[0]["direct"] or not plain or self.models > 1:
                return False
        loop = _outermost_loop(tree, call, model)
        if loop is None or _is_within_a_step(tree, loop):
            return False
        indent, level = self.text(file)[loop.lineno - 1][: loop.col_offset], self._level(file)
        text = [
            indent + self._quoted(file, line).replace("MODEL", model).replace("    ", level)
            for line in _with_free_names(lines, tree, loop)
        ]
        self.replace(file, loop.lineno - 1, loop.lineno - 1, text)
        self.importing(file, loop.lineno - 1, lines)
        return True

    def around_call(self, head: str, cast: str, result: bool | Sequence[bool] | None) -> bool:
        """Put each statement that calls the model under ``head``, a with statement, and call the method
        ``cast`` of what it assigns or returns, behind it. That is done if ``result`` is true; for a tuple,
        for each name whose member of ``result`` is true. False, and no edit, if that is impossible for one
        of them."""
        edits: dict[tuple[Path, int], tuple[int, list[str]]] = {}
        for each in self.calls:
            found = self._call(each)
            around = found and self._around(*found, head, cast, result)
            if not found or not around:
                return False
            first, last, lines = around
            edits.setdefault((found[0], first), (last, lines))
        for (file, first), (last, lines) in edits.items():
            self.replace(file, first, last, lines)
            self.importing(file, first, [head])
        return bool(edits)

    def _around(
        self,
        file: Path,
        tree: ast.Module,
        call: ast.Call,
        head: str,
        cast: str,
        result: bool | Sequence[bool] | None,
    ) -> tuple[int, int, list[str]] | None:
        """The lines that take the place of those from one index to another; None if that is impossible."""
        statement = Above(tree)(call, ast.stmt)
        kinds = ast.Assign | ast.AugAssign | ast.Expr | ast.AnnAssign | ast.Return
        if not isinstance(statement, kinds):
            return None
        returned = isinstance(statement, ast.Return) and statement.value is call and result
        if returned and returned is not True:
            return None  # Members of a tuple without names cannot be cast back.
        if any(getattr(each.func, "attr", "") == "backward" for each in _calls(statement)):
            return None  # PyTorch advises against a backward pass under autocast.
        texts = (n for n in ast.walk(statement) if isinstance(n, ast.Constant | ast.JoinedStr))
        if any(each.lineno != each.end_lineno for each in texts):
            return None  # Its later lines would be indented, too.
        first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
        before = self.text(file)[first].encode()[: statement.col_offset]
        after_it = self.text(file)[last - 1].encode()[statement.end_col_offset :]
        if before.strip() or after_it.lstrip().startswith(b";"):
            return None  # Other statements are on its lines.
        indent = before.decode()
        level = self._level(file)
        under = indent + self._quoted(file, head)
        body = [level + line for line in self.text(file)[first:last]]
        if returned:
            name = _free("result", map(_name, ast.walk(tree)))
            body[0] = body[0].replace("return", f"{name} =", 1)
            return first, last, [under, *body, f"{indent}return {name}{cast}"]
        names: list[ast.expr] = []
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is call:
            target, *more = getattr(statement, "targets", [getattr(statement, "target", call)])
            if more:
                return None  # All of them would have to be cast back.
            if isinstance(target, ast.Tuple) and isinstance(result, list):
                names = [n for n, wide in zip(target.elts, result, strict=False) if wide]
            elif result is True:
                names = [target]
        tail = [
            f"{indent}{name} = {name}{cast}"
            for name in (ast.unparse(n) for n in names if isinstance(n, ast.Name | ast.Attribute))
            if name != "_"
        ]
        return first, last, [under, *body, *tail]

    @property
    def base(self) -> Path:
        """The folder that the diff is relative to: ``root`` unless an edited file lies outside it."""
        inside = all(file.is_relative_to(self.root) for file in self._edits)
        return self.root if inside else self.top

    def diff(self) -> str:
        """All edits as a unified diff that ``git apply`` takes, with paths below ``base``."""
        found: list[str] = []
        for file in sorted(self._edits):
            name = file.relative_to(self.base).as_posix()
            end = "\r\n" if b"\r\n" in file.read_bytes() else "\n"
            old, new = (
                [*(f"{line}{end}" for line in lines), *([last] if last else [])]
                for *lines, last in (self.text(file), self._edited(file))
            )
            for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
                whole = line.endswith("\n")
                found.append(line if whole else f"{line}\n\\ No newline at end of file\n")
        return "".join(found)

    def files(self) -> dict[Path, str]:
        """The edited files with their new text: relative to ``root``, or absolute outside it."""
        found = {}
        for file in self._edits:
            inside = file.is_relative_to(self.root)
            found[file.relative_to(self.root) if inside else file] = "\n".join(self._edited(file))
        return found

    def _call(self, call: dict[str, Any]) -> tuple[Path, ast.Module, ast.Call] | None:
        """The file, the tree and the expression of one of the ``calls``."""
        file, ends = Path(call["file"]).resolve(), tuple(call["end"])
        tree = self.tree(file)
        # Each call has a last parenthesis of its own.
        found = (c for c in _calls(tree) if (c.end_lineno, c.end_col_offset) == ends)
        return next(((file, tree, each) for each in found), None)

    def tree(self, file: Path) -> ast.Module:
        """The syntax tree of a file on disk. It is empty outside ``top``, and for a file in another encoding
        than UTF-8, with a byte order mark, or with several kinds of line ends."""
        with suppress(SyntaxError, UnicodeDecodeError):
            if file.is_file() and file.is_relative_to(self.top):
                ends = {*re.findall(rb"\r\n?|\n", file.read_bytes())}
                if ends in ({b"\n"}, {b"\r\n"}, set()):
                    return ast.parse("\n".join(self.text(file)))
        return ast.Module([], [])

    def text(self, file: Path) -> list[str]:
        """The lines of a file; the last one is empty if the file ends with a newline."""
        if file not in self._lines:
            self._lines[file] = file.read_text(encoding="utf-8").split("\n")
        return self._lines[file]

    def _name_of(self, module: str, file: Path) -> str:
        """The name of a module in lines that are inserted into ``file``, where something else may have its own."""
        nodes = [*ast.walk(self.tree(file))]
        imported = {a for n in nodes if isinstance(n, ast.Import) for a in n.names if not a.asname}
        others = (n for n in nodes if n not in imported and not isinstance(n, ast.keyword))
        bound = (n for n in others if not isinstance(getattr(n, "ctx", None), ast.Load))
        return _free(module, map(_name, bound))

    def _quoted(self, file: Path, line: str) -> str:
        """``line`` with the quotes that most strings of ``file`` have, and with its names of modules."""
        for module in MODULES:
            line = re.sub(rf"\b{module}\.", f"{self._name_of(module, file)}.", line)
        tree, text = self.tree(file), [each.encode() for each in self.text(file)]
        strings = [node for node in ast.walk(tree) if _is_text(node)]
        quotes = [text[each.lineno - 1][each.col_offset :][:1] for each in strings]
        single = quotes.count(b"'") > quotes.count(b'"')
        return line.replace('"', "'") if single else line

    def _level(self, file: Path) -> str:
        """The space by which the first block of a file is indented: four blanks, two, or a tab."""
        blocks = (each.body[0] for each in self.tree(file).body if hasattr(each, "body"))
        heads = (self.text(file)[first.lineno - 1][: first.col_offset] for first in blocks)
        return next(filter(str.isspace, heads), "    ")

    def _add_keywords(self, file: Path, call: ast.Call, given: Mapping[str, str]) -> bool:
        parts: list[ast.expr] = [*call.args, *(keyword.value for keyword in call.keywords)]
        # Beside other arguments, a generator needs parentheses of its own; *arguments may hold these.
        bare = (
            isinstance(p, ast.GeneratorExp) and p.end_col_offset == call.end_col_offset
            for p in parts
        )
        if any(bare) or any(isinstance(argument, ast.Starred) for argument in call.args):
            return False
        mappings = [each.value for each in call.keywords if each.arg is None]
        if mappings:
            # It may hold the keywords already, and Python allows each only once.
            mapping, *more = mappings
            primary = ast.Name | ast.Attribute | ast.Call | ast.Subscript
            if more or not isinstance(mapping, primary):
                return False
            inner = "".join(f', "{key}": {value}' for key, value in given.items())
            end = mapping.end_lineno or 0, mapping.end_col_offset or 0
            self._insert(file, mapping.lineno, mapping.col_offset, "{**")
            self._insert(file, *end, self._quoted(file, inner))
            self._insert(file, *end, "}", last=True)
            return True
        equals = " = " if any(self._is_spaced(file, each) for each in call.keywords) else "="
        added = [self._quoted(file, f"{key}{equals}{value}") for key, value in given.items()]
        new = "".join(f", {each}" for each in added)
        # Without arguments, they go before the closing parenthesis.
        ends = [(p.end_lineno or 0, p.end_col_offset or 0) for p in parts]
        row, column = max(ends, default=(call.end_lineno or 0, (call.end_col_offset or 0) - 1))
        if parts:
            row, column = self._outside_parentheses(file, call, row, column)
        elif not any(each[:2] == (row, column) for each in self._insertions.get(file, ())):
            new = new.removeprefix(", ")
        line = self.text(file)[row - 1].encode()
        if row > (call.func.end_lineno or 0) and line[column:].strip() == b",":
            # Each argument has a line of its own.
            indent = line[: len(line) - len(line.lstrip())].decode()
            self.replace(file, row, row, [f"{indent}{each}," for each in added])
            return True
        self._insert(file, row, column, new)
        return True

    def _outside_parentheses(
        self, file: Path, call: ast.Call, row: int, column: int
    ) -> tuple[int, int]:
        """The place behind the parentheses around the last argument of a call, which ends at a place: they are no
        part of it."""
        end = call.end_lineno or row, (call.end_col_offset or 0) - 1
        found = row, column
        for number in range(row, end[0] + 1):
            begin = column if number == row else 0
            # Only a comma and comments may follow there.
            code = self.text(file)[number - 1].encode()[begin:].partition(b"#")[0]
            places = ((number, begin + at) for at, each in enumerate(code) if each == ord(")"))
            found = max([found, *((n, at + 1) for n, at in places if (n, at) < end)])
        return found

    def _is_spaced(self, file: Path, keyword: ast.keyword) -> bool:
        """Whether there is space between the name of a keyword and its value."""
        line = self.text(file)[keyword.lineno - 1].encode()
        return line[keyword.col_offset :].startswith(f"{keyword.arg} ".encode())

    def replace(self, file: Path, first: int, last: int, lines: list[str]) -> None:
        """Replace the lines from one index to another by ``lines``."""
        self._edits.setdefault(file, []).append((first, last, lines))

    def _insert(self, file: Path, row: int, column: int, text: str, last: bool = False) -> None:
        """Insert ``text`` at a place, behind what is inserted there already; the same text only once."""
        self._edits.setdefault(file, [])
        inserted = self._insertions.setdefault(file, [])
        if (row, column, last, text) not in inserted:
            inserted.append((row, column, last, text))

    def _edited(self, file: Path) -> list[str]:
        text = list(self.text(file))
        # Sorting keeps the order of insertions into one place.
        inserted = sorted(self._insertions.get(file, ()), key=lambda each: each[:3])
        for row, column, _, added in reversed(inserted):
            line = text[row - 1].encode()
            text[row - 1] = (line[:column] + added.encode() + line[column:]).decode()
        for first, last, lines in sorted(
            self._edits[file], key=lambda e: (e[0], e[1]), reverse=True
        ):
            text[first:last] = lines
        return text


def repository_of(folder: Path) -> Path:
    """The folder of the git repository that holds ``folder``; ``folder`` itself if none does."""
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _imports(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a module that are not inside another statement."""
    return [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]


def _end(tree: ast.Module, node: ast.stmt) -> int:
    """The number of the line behind which a statement, and others on its line, have ended."""
    until = node.end_lineno or node.lineno
    return max(each.end_lineno or 0 for each in tree.body if each.lineno <= until)


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_head(node: ast.stmt) -> bool:
    """Whether a statement must precede imports: a text that describes the module, or ``__future__``."""
    is_text = isinstance(node, ast.Expr) and _is_text(node.value)
    return is_text or getattr(node, "module", "") == "__future__"


class Above:
    """The nodes around each node of a tree."""

    def __init__(self, tree: ast.AST) -> None:
        self.parents = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }

    def all(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around ``node``, the innermost first."""
        found = self.parents.get(node)
        while found is not None:
            yield found
            found = self.parents.get(found)

    def __call__(self, node: ast.AST, *kinds: type[ast.AST]) -> Any:
        """The innermost node of one of ``kinds`` around ``node``; None if there is none."""
        return next((found for found in self.all(node) if isinstance(found, kinds)), None)


def _name(node: ast.AST) -> str:
    """The name of a variable, an argument, a definition or an import; empty for any other node."""
    named = (getattr(node, key, None) for key in ("id", "arg", "asname", "name"))
    return next((name for name in named if isinstance(name, str)), "")


def _free(name: str, used: Iterable[str]) -> str:
    """``name``, with a number if it is one of those that are ``used``."""
    taken = {*used}
    numbered = (f"{name}{number or ''}" for number in itertools.count())
    return next(each for each in numbered if each not in taken)


def _with_free_names(lines: Sequence[str], tree: ast.Module, loop: ast.stmt) -> list[str]:
    """``lines`` to insert before a loop, whose own variables have names that the function around it does not
    use."""
    scope = Above(tree)(loop, ast.FunctionDef, ast.AsyncFunctionDef) or tree
    used, waiting = set[str](), [*ast.iter_child_nodes(scope)]
    for node in waiting:
        used.add(_name(node))
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    text = "\n".join(lines)
    own = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)]
    for name in {n.id for n in own if isinstance(n.ctx, ast.Store)} & used:
        # Not in quotes: a class may have the same name.
        text = re.sub(rf"(?<!\")\b{name}\b", _free(name, used), text)
    return text.split("\n")


def _is_within_a_step(tree: ast.Module, loop: ast.stmt) -> bool:
    """Whether the function around a loop, such as that over the positions of an RNN, takes the step of the
    training only after it, or is the forward pass of a model, so that it is called in each step."""
    function = Above(tree)(loop, ast.FunctionDef, ast.AsyncFunctionDef) or loop
    if getattr(function, "name", "") == "forward":
        return True
    whole, inside = (
        {getattr(each.func, "attr", "") for each in _calls(part)} for part in (function, loop)
    )
    return not {"backward", "step"}.isdisjoint(whole - inside)


def _outermost_loop(tree: ast.Module, call: ast.Call, model: str) -> ast.stmt | None:
    """The outermost loop around ``call`` within its function that assigns nothing to ``model``."""
    found: ast.stmt | None = None
    parts = model.split(".")
    names = {".".join(parts[: n + 1]) for n in range(len(parts))}
    for each in Above(tree).all(call):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            break
        if isinstance(each, ast.For | ast.While):
            inside = (n for n in ast.walk(each) if isinstance(getattr(n, "ctx", 0), ast.Store))
            if not names.isdisjoint(map(ast.unparse, inside)):
                break
            found = each
    return found
