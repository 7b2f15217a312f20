"""The source files that a program depends on, and one digest of their code.

Starting from a program's modules, this follows their imports, also those within functions. A module
named in a string counts as imported. A module that uses ``__file__``, or a package named in a
string, adds the other files in its folder and below. Nothing is run. Only files that the caller's
``find`` returns are followed.

The digest of a Python file is that of its syntax tree without docstrings, so that comments and
formatting do not count. A module that only displays results, or only records their origin, declares
this with the reason in a comment, and neither it nor its imports count:

    CHANGES_NO_RESULT = True

Limit: module names that a program composes at run time are not seen.
"""

import ast
import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from transformer_core.common.files import write_text

CHANGES_NO_RESULT = True  # it decides which results are made again, not their contents

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("transformer_core", "schemas")
CACHE = Path(".snakemake/sources.json")
"""The cache of parsed sources, below the working directory: a file is parsed once per content."""
MARK = "CHANGES_NO_RESULT"
_MODULE_NAME = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+")
_FOR_TYPES = re.compile(r"(\w+\.)?TYPE_CHECKING")


class Source(NamedTuple):
    digest: str  # of its code without docstrings
    imports: list[str]  # dotted names that it imports: modules, or names in modules
    strings: list[str]  # modules and packages of the project that it names as strings
    binds: list[str]  # names that its top level defines
    uses_file: bool  # whether it mentions ``__file__``


Files = dict[Path, Source]


def read_source(content: bytes, module: str, package: bool) -> Source:
    """Parses a file as ``module``, which is a ``package`` or not. A file that is not Python, or
    nested too deeply to be parsed, has the digest of its bytes and no imports."""
    try:
        tree = ast.parse(content)
        imports = sorted(set(_imported(tree, module.split(".")[: None if package else -1])))
        nodes = [*ast.walk(tree)]
        strings = {
            n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)
        }
        names = {n.id for n in nodes if isinstance(n, ast.Name)}
        binds = sorted({name for statement in tree.body for name in _bound(statement)})
        for node in nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                node.body = [s for s in node.body if not _is_docstring(s)] or [ast.Pass()]
        return Source(
            _digest(ast.unparse(tree).encode()),
            imports,
            sorted(filter(_MODULE_NAME.fullmatch, strings)),
            binds,
            "__file__" in names,
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Source(_digest(content), [], [], [], False)


Find = Callable[[str], Path | None]
"""The file of a dotted name, if it is to be followed."""
Read = Callable[[str, Path], Source]


def follow(
    modules: Iterable[str], find: Find, read: Read, known: dict[Path, Files] | None = None
) -> Files:
    """The files of ``modules`` and of all that they import, directly or not. Modules that change no
    result are left out. ``known`` keeps what each file imports, for further calls."""
    known = {} if known is None else known
    found: Files = {}
    waiting = [*_files(modules, find, read).items()]
    while waiting:
        path, source = waiting.pop()
        if path in found:
            continue
        found[path] = source
        if path not in known:
            known[path] = _files([*source.imports, *source.strings], find, read)
        waiting += known[path].items()
    return found


def _files(names: Iterable[str], find: Find, read: Read) -> Files:
    """The files of these names and of the packages above them."""
    # To import a.b loads a as well; of "from a import b", b may be a module or not.
    every = {prefix for name in names for prefix in accumulate(name.split("."), "{}.{}".format)}
    paths = {path: name for name in every if (path := find(name))}
    sources = {path: read(name, path) for path, name in paths.items()}
    return {path: source for path, source in sources.items() if MARK not in source.binds}


class Sources:
    """The sources of the project below ``root``, as they are now; each file is read once."""

    def __init__(self, root: Path = ROOT, cache: Path | None = None) -> None:
        self.root, self._cache = root, cache or CACHE
        self._read: Files = {}
        self._imports: dict[Path, Files] = {}
        self._changed = False

    def fingerprint(self, programs: Sequence[str]) -> str:
        """One digest of everything that these modules depend on when started as programs.

        Raises ModuleNotFoundError for an unknown module.
        """
        sources, data = self._reached(programs)
        lines = [f"{self._names[path]} {source.digest}" for path, source in sources.items()]
        lines += [f"{self._names[path]} {_digest(path.read_bytes())}" for path in data]
        return _digest("\n".join(sorted(lines)).encode())

    def files(self, programs: Sequence[str]) -> list[str]:
        """The files that these programs depend on, relative to the root, sorted."""
        sources, data = self._reached(programs)
        return sorted(self._names[path] for path in {*sources, *data})

    @cached_property
    def all_files(self) -> list[str]:
        """All files of the project's packages, relative to the root, sorted."""
        files = (file for package in PACKAGES for file in self.root.joinpath(package).rglob("*"))
        found = (f for f in files if f.suffix != ".pyc" and f.is_file())
        return sorted(f.relative_to(self.root).as_posix() for f in found)

    def keep(self) -> None:
        """Saves what was read for the next call, which reads it again if saving fails."""
        if self._changed:
            text = json.dumps(self._known)
            with contextlib.suppress(OSError):
                write_text(self._cache, f"{_VERSION} {_digest(text.encode())}\n{text}")

    def _reached(self, programs: Sequence[str]) -> tuple[Files, set[Path]]:
        for program in programs:
            if program not in self._modules:
                raise ModuleNotFoundError(f"no module {program} below {self.root}")
        started = [f"{name}.__main__" if self._is_package(name) else name for name in programs]
        sources = follow(started, self._find, self._source, self._imports)
        folders = {path.parent for path, source in sources.items() if source.uses_file}
        named = {name for source in sources.values() for name in source.strings}
        folders |= {
            self._modules[n].parent for n in named & {*self._modules} if self._is_package(n)
        }
        return sources, {file for file, above in self._data.items() if folders & above}

    @cached_property
    def _modules(self) -> dict[str, Path]:
        return {_dotted(name): file for file, name in self._names.items() if file.suffix == ".py"}

    @cached_property
    def _data(self) -> dict[Path, set[Path]]:
        """The files that are not Python, with the folders above them."""
        return {file: {*file.parents} for file in self._names if file.suffix != ".py"}

    @cached_property
    def _lazy(self) -> dict[str, Path]:
        """Names that packages with a ``__getattr__`` re-export from their modules."""
        found: dict[str, Path] = {}
        for package, path in self._modules.items():
            if self._is_package(package) and "__getattr__" in self._source(package, path).binds:
                for name, file in self._modules.items():
                    if name.rpartition(".")[0] == package:
                        binds = self._source(name, file).binds
                        found |= {f"{package}.{bound}": file for bound in binds}
        return found

    def _find(self, name: str) -> Path | None:
        return self._modules.get(name) or self._lazy.get(name)

    def _is_package(self, name: str) -> bool:
        return self._modules[name].name == "__init__.py"

    def _source(self, _: str, path: Path) -> Source:
        if path not in self._read:
            content, name = path.read_bytes(), self._names[path]
            state = _digest(content)
            if self._known.get(name, [""])[0] != state:
                found = read_source(content, _dotted(name), path.name == "__init__.py")
                self._known[name] = [state, *found]
                self._changed = True
            self._read[path] = Source(*self._known[name][1:])
        return self._read[path]

    @cached_property
    def _known(self) -> dict[str, Any]:
        """By file name: the digest of its bytes, and the fields of its :class:`Source`."""
        with contextlib.suppress(OSError):
            made, _, text = self._cache.read_bytes().partition(b"\n")
            # A damaged cache would make everything stale, or hide what a module imports.
            if made.decode(errors="replace") == f"{_VERSION} {_digest(text)}":
                return dict(json.loads(text))
        return {}

    @cached_property
    def _names(self) -> dict[Path, str]:
        """The names of all files, relative to the root."""
        return {self.root / name: name for name in self.all_files}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


_VERSION = f"{sys.version_info[:2]} {_digest(Path(__file__).read_bytes())}"


def _dotted(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement at the top of a module defines."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign() | ast.AnnAssign():
            nodes = ast.walk(statement)
            yield from (
                n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            )


def _imported(node: ast.AST, above: Sequence[str]) -> Iterator[str]:
    """Dotted names that a module in the package ``above`` imports, except for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            stem = above[: len(above) - child.level + 1] if child.level else []
            origin = ".".join([*stem, *([child.module] if child.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.If) and _FOR_TYPES.fullmatch(ast.unparse(child.test)):
            yield from _imported(ast.Module(child.orelse, []), above)
        else:
            yield from _imported(child, above)
