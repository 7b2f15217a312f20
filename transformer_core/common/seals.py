"""Seals: the digest of every result and of its inputs, in a small file beside it.

A seal holds the digest of its file, the file's place below ``results/``, and the digests of what it
was made from. Who reads the file checks them: a bit that has flipped, a file that was cut off, and
one that was copied from elsewhere are refused by name, whatever their time stamps say. A file
without a seal, from elsewhere or from earlier times, is taken as it is.

The digest is XXH3 (128 bit, https://xxhash.com), which is as fast as memory. It finds accidents;
it is no protection from somebody who makes up a seal, too.
"""

import hashlib
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xxhash
from pydantic import Field, ValidationError

from schemas.base import Schema
from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem
from transformer_core.common.endings import remake
from transformer_core.common.files import write_text

CHANGES_NO_RESULT = True  # it checks whether a file is unchanged


class Seal(Schema):
    """The identity of a file's contents."""

    of: str
    """Its place below results/, or its name where it lies elsewhere."""
    xxh3: str
    """Its digest."""
    made_from: dict[str, str] = Field(default_factory=dict)
    """Digests of its inputs, by place."""


def digest(path: Path) -> str:
    """XXH3 of the contents of a file, 128 bit in hexadecimal digits."""
    with path.open("rb") as stream:
        # The library's type lacks attributes that are not used here.
        kind: Any = xxhash.xxh3_128
        return hashlib.file_digest(stream, kind).hexdigest()


def place(path: Path) -> str:
    """Where a file lies below the last folder ``results`` of its path; its whole path elsewhere."""
    parts = path.absolute().parts
    folders = [number for number, part in enumerate(parts[:-1]) if part == "results"]
    return "/".join(parts[folders[-1] + 1 :]) if folders else path.absolute().as_posix()


def seal_file(path: Path) -> Path:
    """The file that holds the seal of ``path``."""
    return path.with_name(f".{path.name}.seal")


def seal(path: Path, made_from: Iterable[Path] = (), of: Path | None = None) -> None:
    """Seal a file that is complete. ``of`` is where it is going to lie, if not where it is. What it
    should have been ``made_from``, and is not there, was of no use: a status needs no shards."""
    there = [file for file in made_from if file.exists()]
    inputs = {place(file): digest(file) for file in there}
    write_text(seal_file(path), _text(of or path, digest(path), inputs))


def write_sealed(
    path: Path, text: str, made_from: Iterable[Path] = (), of: Path | None = None
) -> None:
    """Write ``text`` as UTF-8, whole or not at all, and seal it."""
    # If interrupted between the two, a file has no seal rather than another file's.
    seal_file(path).unlink(missing_ok=True)
    write_text(path, text)
    seal(path, made_from, of)


def check(path: Path, content: bytes | None = None, of: Path | None = None) -> Seal | None:
    """The seal of a file, if it has one; ``content`` is that of the file where it is known, ``of``
    where it was going to lie, if not where it is.

    Raises ConfigError if the file is not what its seal says.
    """
    found = _read(path)
    if found is None:
        return None
    if not f"/{(of or path).absolute().as_posix()}".endswith(f"/{found.of}"):
        message = f"is of {found.of}: it was copied to {path}"
        raise _error(path, "seal.of", found.of, message, _MOVED)
    try:
        value = xxhash.xxh3_128(content).hexdigest() if content is not None else digest(path)
    except OSError as error:
        raise _error(path, WHOLE_FILE, None, f"cannot be read ({error})") from None
    if value != found.xxh3:
        message = f"has changed since it was made: its digest is {value}, not {found.xxh3}"
        raise _error(path, WHOLE_FILE, None, message, _LEFT_OVER)
    return found


class Together:
    """Files that are read together and must come from the same inputs."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, Path]] = {}

    def check(self, path: Path) -> None:
        """Check a file, and that nothing checked before says otherwise of what both know.

        Raises ConfigError.
        """
        if not path.exists():
            return  # its reader reports that
        found = check(path)
        known = {place(path): found.xxh3 if found else digest(path)}
        known |= found.made_from if found else {}
        for name, value in known.items():
            before, witness = self._seen.setdefault(name, (value, path))
            if before != value:
                raise self._differs(name, path, witness)

    def _differs(self, name: str, path: Path, witness: Path) -> ConfigError:
        if name == place(witness):
            message = f"was made from another {name} than there is"
            return _error(path, "seal.made_from", name, message)
        if name == place(path):
            message = f"was made from another {name} than there is"
            return _error(witness, "seal.made_from", name, message)
        message = f"was made from another {name} than {witness}"
        return _error(path, "seal.made_from", name, message)


def _read(path: Path) -> Seal | None:
    file = seal_file(path)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _error(path, "seal", str(file), f"cannot be read ({error})") from None
    try:
        found = Seal.model_validate_json(content)
    except ValidationError:
        raise _error(path, "seal", str(file), "has a seal that is damaged") from None
    # Every byte counts, those around the values too.
    if content != (found.model_dump_json() + "\n").encode():
        raise _error(path, "seal", str(file), "has a seal that is damaged")
    return found


_LEFT_OVER = (
    "; where you have copied it here without its hidden files, copy them too, or remove the seal "
    "of the file that was here before: rm {}"
)

_MOVED = "; where it lies there on purpose, remove its seal: rm {}"


def _error(path: Path, field: str, value: Any, message: str, else_: str = "") -> ConfigError:
    remedy = remake(path) + else_.format(shlex.quote(str(seal_file(path))))
    return ConfigError([ConfigProblem(str(path), field, value, message, remedy)])


def seal_of(path: Path, text: str) -> str:
    """The text of the seal of a file at ``path`` that is going to hold ``text``."""
    return _text(path, xxhash.xxh3_128(text.encode()).hexdigest(), {})


def _text(path: Path, value: str, made_from: dict[str, str]) -> str:
    of = place(path)
    # Elsewhere a folder may be moved.
    of = path.name if of.startswith("/") else of
    return Seal(of=of, xxh3=value, made_from=made_from).model_dump_json() + "\n"
