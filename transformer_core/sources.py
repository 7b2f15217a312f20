"""The source files that a job runs: what Snakemake must watch to know that a result is stale."""

import ast
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "transformer_core"


def sources(module: str, without: tuple[str, ...] = ()) -> list[str]:
    """Files of this package that ``module`` imports, itself included, relative to the
    working directory.

    ``without`` names modules that change no result (progress bars, descriptions of the machine):
    neither they nor what only they import are listed. Schemas are left out too: what matters of
    them reaches a job through its run spec. Raises ModuleNotFoundError for an unknown module.
    """
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found or name in without:
            continue
        path = _file(name)
        if path is None:
            if name == module:
                raise ModuleNotFoundError(f"no module {module} below {ROOT}")
            continue
        found[name] = path
        waiting += _imports(path, name)
    return sorted(os.path.relpath(path) for path in found.values())


def _file(name: str) -> Path | None:
    base = ROOT.joinpath(*name.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _imports(path: Path, name: str) -> list[str]:
    """Modules of the package that a file imports, and the packages above them."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [n for n in names if n.split(".")[0] == PACKAGE and n != name]
