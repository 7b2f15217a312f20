"""Files of the user that results depend on: corpora, and the user's own models and scripts with the
files that they import. They are read, never run."""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from schemas.config.data import (
    AnyCorpus,
    DatasetsCorpus,
    OneFileCorpus,
    Split,
    TextCorpus,
    TextsCorpus,
    UrlCorpus,
)
from schemas.config.run_spec import AnyTask, RunSpec, ScriptTask
from transformer_core.common.sources import Source, follow, read_source

_INSTALLED = {"site-packages", "dist-packages", Path(sysconfig.get_path("stdlib")).name}
"""Names of folders with installed files."""
MOST_BYTES = 1 << 20  # of a file of settings: larger ones are data, which take long to read


def corpus_files(corpus: AnyCorpus, split: Split) -> list[str]:
    """The user's files that a split is read from, if they exist."""
    match corpus:
        case DatasetsCorpus(folder=folder):
            found = sorted(Path(folder).rglob("*"))
        case UrlCorpus(folder=str(folder)):
            pair = getattr(corpus, split)
            found = [
                Path(folder, start + Path(unquote(urlsplit(f.url).path)).name)
                for f in (pair.source, pair.target)
                for start in ("", f"{f.sha256[:12]}-")
            ]
        case _:
            found = [Path(path) for path in named_files(corpus, split).values()]
    return [str(path) for path in found if _readable(path)]


def named_files(corpus: AnyCorpus, split: Split) -> dict[str, str]:
    """The files that the study itself names for a split, by field."""
    match corpus:
        case TextCorpus():
            sides = dict(getattr(corpus, split))
            return {f"corpus.{split}.{side}": path for side, path in sides.items()}
        case OneFileCorpus() | TextsCorpus():
            return {f"corpus.{split}": getattr(corpus, split)}
    return {}


def _readable(path: Path) -> bool:
    """Whether ``path`` is a file that this user may read; where that cannot be told, it is not."""
    try:
        return path.is_file() and os.access(path, os.R_OK)
    except OSError:  # a folder that is closed to this user, or a name that is too long
        return False


def script_files(task: AnyTask) -> list[str]:
    """Path and digest of each Python file that the user's script may depend on."""
    if not isinstance(task, ScriptTask):
        return []
    folder, words = Path(task.directory or "."), task.command
    # Whichever comes first: any later word is an argument of the script.
    place = next((n for n, word in enumerate(words) if word == "-m" or word.endswith(".py")), 0)
    script = folder / words[place]
    if words[place] == "-m" and words[place + 1 :]:
        script = file_of_module(words[place + 1], folder) or script
    return files_of_script(script, folder, words)


def file_of_module(module: str, folder: Path) -> Path | None:
    """The file that ``python -m module`` runs in ``folder``, found without running packages; None if there
    is none."""
    places = _module_folders(folder)
    with suppress(ValueError):  # of modules without a specification, such as __main__
        # A package that pip has installed for editing may be found only by a hook.
        hooked = find_spec(module.partition(".")[0])
        places += [
            Path(each).parent for each in (hooked and hooked.submodule_search_locations) or ()
        ]
    with suppress(OSError):  # a name that is too long for a file
        for place in places if all(module.split(".")) else ():
            found = _find(module, place)
            if found is None or found.name == "__init__.py":
                found = _find(f"{module}.__main__", place)
            if found is not None:
                return found
    return None


def _module_folders(folder: Path) -> list[Path]:
    """The folders in which modules of a script in ``folder`` are looked up, before those of Python."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [folder, *(folder / each for each in given if each), *map(Path, sys.path)]


def files_of_script(script: Path, folder: Path, words: Sequence[str]) -> list[str]:
    """Path and digest of each Python file next to a script and in ``folder``, of all that it imports from
    below these and from where modules are looked up, and of small files that the ``words`` of its command
    name, such as --config=a.yaml. Other files that it reads are not covered."""
    found = {*folder.glob("*.py"), *script.parent.glob("*.py")}
    given = (folder / word.rpartition("=")[2] for word in words)
    found |= {each for each in given if _readable(each) and each.stat().st_size <= MOST_BYTES}
    for start in {folder, script.parent, *_module_folders(folder)}:
        if _readable(script) and script.is_relative_to(start):
            module = script.relative_to(start).with_suffix("").as_posix().replace("/", ".")
            found |= {*own_sources(module, [str(start)])}
    named = {os.path.relpath(path, folder): path for path in found if _readable(path)}
    return [
        f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for name, path in sorted(named.items())
    ]


def own_models(specs: Iterable[RunSpec]) -> list[str]:
    """The user's own models and trainings in run specs, for Snakemake: files, and digests of their
    contents."""
    sections = [section for spec in specs for section in (spec.model, spec.task)]
    factories = {section.factory for section in sections if section.kind == "import"}
    return sorted({line for factory in factories for line in _digests(factory)})


@cache
def _digests(factory: str) -> tuple[str, ...]:
    sources = own_sources(factory.partition(":")[0], [str(Path.cwd()), *sys.path])
    return tuple(f"{os.path.relpath(file)} {source.digest}" for file, source in sources.items())


def own_sources(module: str, folders: Sequence[str]) -> dict[Path, Source]:
    """The files of a module in ``folders`` and of all that it imports, directly or not, from the
    folder that contains it; for an installed module, only its own file. Empty for a missing one."""
    folder = next((Path(folder) for folder in folders if _find(module, Path(folder))), None)
    if folder is None:
        return {}
    # Names of the modules that pip has installed there.
    records = [record.read_text("utf-8", "replace") for record in folder.glob("*.dist-info/RECORD")]
    lines = "".join(records).splitlines()
    installed = {line.split(",")[0].split("/")[0].removesuffix(".py") for line in lines}
    own = _find(module, folder)

    @cache
    def find(name: str) -> Path | None:
        path = _find(name, folder)
        if path is None or path == own:
            return path
        return None if _INSTALLED & {*path.parts} or name.split(".")[0] in installed else path

    def read(name: str, path: Path) -> Source:
        return read_source(path.read_bytes(), name, path.name == "__init__.py")

    return dict(sorted(follow([module], find, read).items()))


def _find(module: str, folder: Path) -> Path | None:
    """The file of a module below a folder, found without running packages."""
    base = folder.joinpath(*module.split("."))
    compiled = base.parent.glob(f"{base.name}.*.so")
    candidates = [base / "__init__.py", base.with_name(f"{base.name}.py"), *compiled]
    candidates.append(folder / f"{module}.py")  # a script: its name may have dots
    return next(filter(_readable, candidates), None)
