"""Digests of results: one small file in each folder of results, ``.digests.json``.

It holds the digest of every file in the folder, and the digests of the results that each was made
from. Every reader of a result checks it: a flipped bit, a truncated file, and an older or different
file in its place are refused by name, whatever their time stamps say. A file without an entry, from
elsewhere or left by a killed job, is accepted unchecked.

A process remembers what it has read, and records it as the input of whatever it writes. Files made
from different versions of a third one are refused together.

The digest is XXH3 (128 bit, https://xxhash.com), which is as fast as memory. It finds accidents; it
does not protect against somebody who forges digests, too.

    python -m transformer_core.common.digests FILE

writes standard input as a result. Few imports here: rules call this for jobs that take no time.
"""

import hashlib
import json
import os
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from transformer_core.common.files import locked, write_text

if TYPE_CHECKING:
    from schemas.errors import ConfigError

CHANGES_NO_RESULT = True  # it checks whether a file is unchanged

NAME = ".digests.json"


class Entry(NamedTuple):
    xxh3: str  # its digest
    made_from: dict[str, str]
    """Digests of the results that it was made from, by place below results/."""


class _Known(NamedTuple):
    """A digest that this process has come across."""

    xxh3: str
    witness: Path  # the file itself, or one that was made from it
    at: str  # absolute path of the witness


_KNOWN: dict[str, _Known] = {}  # by absolute path


def digest(path: Path) -> str:
    """XXH3 of the contents of a file, 128 bit in hexadecimal digits; OSError if it is no file."""
    with regular(path).open("rb") as stream:
        # The library's type lacks attributes that are not used here.
        kind: Any = xxhash.xxh3_128
        return hashlib.file_digest(stream, kind).hexdigest()


def regular(path: Path) -> Path:
    """The path of a regular file; OSError otherwise: readers of a pipe, for example, would wait."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path} is not a regular file")
    return path


def place(path: Path) -> str:
    """The path of a file below the last folder ``results`` of its path, or its absolute path."""
    root = _root(path)
    return path.absolute().as_posix().removeprefix(f"{root}/" if root else "")


def _root(path: Path) -> str:
    """The last folder ``results`` of a path; empty if it has none."""
    parts = path.absolute().parts
    folders = [number for number, part in enumerate(parts[:-1]) if part == "results"]
    return Path(*parts[: folders[-1] + 1]).as_posix() if folders else ""


def write_result(
    path: Path, text: str, made_from: Iterable[Path] | None = (), of: Path | None = None
) -> None:
    """Writes ``text`` as UTF-8, whole or not at all, and records its digest."""
    # If interrupted between the two, a file has no digest rather than another file's.
    forget(path)
    write_text(path, text)
    record(path, made_from, of)


def record(path: Path, made_from: Iterable[Path] | None = (), of: Path | None = None) -> None:
    """Records the digest of a complete file. ``of`` is its future path, if it will be moved.

    It was made from the results that this process has read, and from ``made_from``. Missing files
    are skipped: a status, for example, needs no shards. None for a file that no job reads, whose
    inputs do not matter."""
    inputs = {place(file): digest(file) for file in made_from or () if file.exists()}
    root = _root(path)
    for name, known in _KNOWN.items() if root and made_from is not None else ():
        if name.startswith(f"{root}/") and known.at == name:
            inputs.setdefault(name.removeprefix(f"{root}/"), known.xxh3)
    inputs.pop(place(path), None)
    entry = Entry(digest(path), inputs)
    with _manifest(path.parent, of) as files:
        files[path.name] = entry
    _forget_known(path)


def forget(path: Path) -> None:
    """Removes the digest of a file that is about to be made again."""
    _forget_known(path)
    if path.name in _read(path.parent)[1]:
        with _manifest(path.parent) as files:
            files.pop(path.name, None)


def forget_all() -> None:
    _KNOWN.clear()


def _forget_known(path: Path) -> None:
    absolute = path.absolute().as_posix()
    for name in [name for name, known in _KNOWN.items() if known.at == absolute]:
        del _KNOWN[name]


def check(path: Path, content: bytes | None = None) -> Entry | None:
    """Checks a file, whose ``content`` may be known already; returns its entry, if it has one.

    Raises ConfigError if the file has changed, or does not fit what this process has read.
    """
    folder, files = _read(path.parent)
    entry = files.get(path.name)
    try:
        if entry is not None:
            value = digest(path) if content is None else xxhash.xxh3_128(content).hexdigest()
        elif path.exists():
            regular(path)
        else:
            return None
    except OSError as error:
        raise _error(path, f"cannot be read ({error})") from None
    if entry is not None and value != entry.xxh3:
        message = f"has changed since it was made: its digest is {value}, not {entry.xxh3}"
        raise _error(path, message, _OF_OTHERS)
    if folder and not f"{path.parent.absolute().as_posix()}/".endswith(f"/{folder}/"):
        raise _error(path, f"belongs to {folder}, but was copied to {path.parent}", _OF_OTHERS)
    if entry is None:
        return None
    root, absolute = _root(path), path.absolute().as_posix()
    _forget_known(path)
    for name, other in ({place(path): value} | entry.made_from).items():
        named = f"{root}/{name}" if root else name
        known = _KNOWN.setdefault(named, _Known(other, path, absolute))
        if known.xxh3 != other:
            raise _differs(name, path, known.witness)
    _KNOWN[absolute] = _Known(value, path, absolute)
    return entry


def check_all(paths: Iterable[Path]) -> None:
    for path in paths:
        check(path)


def _differs(name: str, path: Path, witness: Path) -> "ConfigError":
    if name == place(witness):
        return _error(path, f"was made from a different {name} than the current one")
    if name == place(path):
        return _error(witness, f"was made from a different {name} than the current one")
    return _error(path, f"was made from a different {name} than {witness}")


_OF_OTHERS = (
    "; if you copied it here without its folder's hidden file, copy that too, or remove the old one: "
    "rm {}"
)


def _error(path: Path, message: str, else_: str = "") -> "ConfigError":
    from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem
    from transformer_core.common.endings import remake

    remedy = remake(path) + else_.format(shlex.quote(str(path.parent / NAME)))
    return ConfigError([ConfigProblem(str(path), WHOLE_FILE, None, message, remedy)])


def _read(folder: Path) -> tuple[str, dict[str, Entry]]:
    """The place of a folder and the entries of its files, by name. Nothing if the file of digests
    is empty or damaged, as a killed host may leave it."""
    try:
        found = json.loads(regular(folder / NAME).read_bytes())
        entries = found["files"].items()
        return str(found["of"]), {name: Entry(str(one), dict(of)) for name, (one, of) in entries}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", {}


@contextmanager
def _manifest(folder: Path, of: Path | None = None) -> Iterator[dict[str, Entry]]:
    """The entries of a folder, which one process at a time may change."""
    path = folder / NAME
    while True:
        with locked(path) as lock, suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                _, files = _read(folder)
                yield files
                where = place((of or path).parent / NAME)
                # Elsewhere than below results/ a folder may be moved.
                where = "" if where.startswith("/") else where.removesuffix(NAME).rstrip("/")
                write_text(path, json.dumps({"of": where, "files": files}) + "\n")
                return


if __name__ == "__main__":
    write_result(Path(sys.argv[1]), sys.stdin.read())
