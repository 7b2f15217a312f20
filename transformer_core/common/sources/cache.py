"""What the sources define, and the fingerprints that were made of it, kept between calls: a file is
parsed again only when its bytes have changed, and read again only when its time stamps or its size
have. So what is kept also holds in a copy of the project, where all time stamps are others.

What is kept is missing or damaged, or of another version: it is made anew.
"""

import contextlib
import hashlib
import json
import sys
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel

from transformer_core.common.files import sha256, write_text
from transformer_core.common.sources.bare_trees import PACKAGES, digest
from transformer_core.common.sources.definitions import Definitions, read_definitions

CHANGES_NO_RESULT = True  # it saves time

FOLDER = Path(".snakemake/sources")
"""Below the working directory, where Snakemake keeps what it knows of results."""

Stamp = tuple[int, int, int]
"""When a file was written and when its entry was changed, in ns, and its size."""


class _Read(BaseModel):
    """A file as it was read."""

    stamp: Stamp
    digest: str
    """Of its bytes."""
    definitions: Definitions | None = None
    contents: str | None = None


class _Files(BaseModel):
    version: str
    files: dict[str, _Read]


class _Fingerprints(BaseModel):
    version: str
    stamps: str
    """Of all files, and the root."""
    bytes: str
    """Of all files."""
    fingerprints: dict[str, str]


Kept = TypeVar("Kept", _Files, _Fingerprints)


class Cache:
    """What is known of the files below ``root``, as they are now, kept in ``folder``."""

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        self._root, self._folder = root, folder or FOLDER
        self._changed = False
        self._written: dict[str, str] = {}

    @cached_property
    def definitions(self) -> dict[str, Definitions]:
        """What all modules of the project define, by name."""
        found = {}
        for name in sorted(self._stamps):
            if name.endswith(".py"):
                module = name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
                found[module] = self._definitions(name)
        return found

    @property
    def names(self) -> list[str]:
        """All files, relative to the root, sorted."""
        return sorted(self._stamps)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of these very files, by any key."""
        kept = self._load("fingerprints", _Fingerprints, self._version)
        if kept is None:
            return {}
        if kept.stamps == self._stamps_state:
            self._written = dict(kept.fingerprints)
            return kept.fingerprints
        return kept.fingerprints if kept.bytes == self._bytes_state else {}

    def contents(self, name: str) -> str:
        """A digest of a file that is no source, without comments where its format has them."""
        file = self._file(name)
        if file.contents is None:
            file.contents, self._changed = _contents(self._root / name), True
        return file.contents

    def write(self) -> None:
        """Keep what is known. Where that is impossible, it is found again next time."""
        if self.fingerprints != self._written:
            kept = _Fingerprints(
                version=self._version,
                stamps=self._stamps_state,
                bytes=self._bytes_state,
                fingerprints=self.fingerprints,
            )
            self._keep("fingerprints", kept)
            self._written = dict(self.fingerprints)
        if self._changed:
            self._keep("definitions", _Files(version=self._version, files=self._files))
        self._changed = False

    @cached_property
    def _version(self) -> str:
        sources = [*Path(__file__).parent.glob("*.py")]
        return f"{sys.version_info[:2]} " + " ".join(sorted(map(sha256, sources)))

    @cached_property
    def _stamps(self) -> dict[str, Stamp]:
        found = {}
        for package in PACKAGES:
            for file in self._root.joinpath(package).rglob("*"):
                if file.suffix != ".pyc" and file.is_file():
                    stat = file.stat()
                    stamp = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size)
                    found[file.relative_to(self._root).as_posix()] = stamp
        return found

    @cached_property
    def _stamps_state(self) -> str:
        return digest(f"{self._root} {sorted(self._stamps.items())}")

    @cached_property
    def _bytes_state(self) -> str:
        return digest(str([(name, self._file(name).digest) for name in self.names]))

    @cached_property
    def _files(self) -> dict[str, _Read]:
        kept = self._load("definitions", _Files, self._version)
        return kept.files if kept else {}

    def _definitions(self, name: str) -> Definitions:
        file = self._file(name)
        if file.definitions is None:
            file.definitions = read_definitions(self._root / name, self._root)
            self._changed = True
        return file.definitions

    def _file(self, name: str) -> _Read:
        """What is known of a file as it is now."""
        stamp = self._stamps[name]
        file = self._files.get(name)
        if file is None or file.stamp != stamp:
            now = sha256(self._root / name)
            if file is None or file.digest != now:
                file = _Read(stamp=stamp, digest=now)
            else:
                file = file.model_copy(update={"stamp": stamp})
            self._files[name], self._changed = file, True
        return file

    def _load(self, name: str, kind: type[Kept], version: str) -> Kept | None:
        with contextlib.suppress(OSError, ValueError):
            kept = kind.model_validate_json((self._folder / f"{name}.json").read_bytes())
            if kept.version == version:
                return kept
        return None

    def _keep(self, name: str, kept: BaseModel) -> None:
        with contextlib.suppress(OSError):
            write_text(self._folder / f"{name}.json", kept.model_dump_json(exclude_defaults=True))


def _contents(file: Path) -> str:
    text = file.read_bytes()
    if file.suffix == ".yaml":
        return digest(json.dumps(yaml.safe_load(text), default=str))
    if file.suffix == ".po":
        # "#," marks a translation that is not finished; all other comments are for translators.
        lines = text.splitlines()
        text = b"\n".join(line for line in lines if line[:1] != b"#" or line[:2] == b"#,")
    return hashlib.sha256(text).hexdigest()[:24]
