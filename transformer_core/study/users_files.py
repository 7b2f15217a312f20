"""Files of the user that results depend on: corpora, and a model of their own with what it imports
from files beside it. They are read, never run."""

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from schemas.config.corpus import (
    AnyCorpus,
    DatasetsCorpus,
    OneFileCorpus,
    Split,
    TextCorpus,
    TextsCorpus,
    UrlCorpus,
)
from schemas.config.run_spec import RunSpec
from schemas.config.script import ScriptTask
from schemas.config.task import AnyTask
from transformer_core.common.sources.bare_trees import bare_digest
from transformer_core.common.sources.definitions import imported

_INSTALLED = tuple({Path(sysconfig.get_path(n)) for n in ("stdlib", "platstdlib", "purelib")})


def corpus_files(corpus: AnyCorpus, split: Split) -> list[str]:
    """The user's files that a split is read from: those that are there. That one is missing, the
    job says, with what to do."""
    match corpus:
        case TextCorpus():
            pair = getattr(corpus, split)
            found = [Path(pair.source), Path(pair.target)]
        case OneFileCorpus() | TextsCorpus():
            found = [Path(getattr(corpus, split))]
        case DatasetsCorpus(folder=folder):
            found = sorted(Path(folder).rglob("*"))
        case UrlCorpus(folder=str(folder)):
            pair = getattr(corpus, split)
            found = [
                Path(folder, Path(unquote(urlsplit(f.url).path)).name)
                for f in (pair.source, pair.target)
            ]
        case _:
            found = []
    return [str(path) for path in found if path.is_file()]


def script_files(task: AnyTask) -> list[str]:
    """Name and digest of each Python file in the folder of a user's script."""
    if not isinstance(task, ScriptTask):
        return []
    folder = Path(task.directory or ".")
    found = sorted(folder.glob("*.py"))[:500]
    return [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in found]


def own_models(specs: Iterable[RunSpec]) -> list[str]:
    """What Snakemake keeps of the users' own models and trainings in run specs: files, and digests
    of what they say. Empty where there are none."""
    sections = [section for spec in specs for section in (spec.model, spec.task)]
    found = {
        line
        for section in sections
        if section.kind == "import"
        for line in _digests(section.factory)
    }
    return sorted(found)


@cache
def _digests(factory: str) -> tuple[str, ...]:
    files = own_sources(factory.partition(":")[0], [str(Path.cwd()), *sys.path])
    return tuple(f"{os.path.relpath(file)} {bare_digest(file)}" for file in files)


def own_sources(module: str, folders: Sequence[str]) -> list[Path]:
    """The files of a module in ``folders`` and of all that it imports, directly or not, and that is
    not installed; none for a module that is not there."""
    found: dict[str, Path | None] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        path = found[name] = _find(name, folders)
        if path is not None and (name == module or not _installed(path)):
            waiting += _named(name, path)
            waiting += [name.rpartition(".")[0]] * ("." in name)
    kept = (
        path for name, path in found.items() if path and (name == module or not _installed(path))
    )
    return sorted(set(kept))


def _find(module: str, folders: Sequence[str]) -> Path | None:
    """The file of a module, found as Python does, but without running packages that it is in."""
    *packages, last = module.split(".")
    below = [Path(folder) for folder in folders]
    for name in packages:
        inner = [folder / name for folder in below if (folder / name).is_dir()]
        # Without an __init__.py, a package may have parts in several folders.
        whole = [folder for folder in inner if (folder / "__init__.py").is_file()]
        below = whole[:1] or inner
    for folder in below:
        candidates = [folder / last / "__init__.py", folder / f"{last}.py"]
        for path in (*candidates, *folder.glob(f"{last}.*.so")):
            if path.is_file():
                return path
    return None


def _installed(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _INSTALLED)


def _named(module: str, path: Path) -> Iterator[str]:
    """Modules that a source file may import: of ``from a import b``, both a and a.b."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # compiled, or a mistake of which the job will tell
    above = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for origin, name in imported(node, above).values():
                yield from filter(None, (origin, f"{origin}.{name}".strip(".")))
