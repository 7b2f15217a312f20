"""What a harness of kills has found so far, kept file by file: killed itself, it goes on."""

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from annotated_types import Unit
from pydantic import Field

from schemas.base import Schema
from schemas.results.faults import Verdict
from transformer_core.common.files import write_text
from transformer_core.common.records import read_record
from transformer_core.faults.kills.command import ROOT, Way

_SOURCES = ("Snakefile", "workflow", "config", "schemas", "transformer_core", "profiles")
_KINDS = {".py", ".smk", ".yaml", ".json", ""}

Number = Annotated[int, Field(ge=0, le=1_000_000)]


class Kill(Schema):
    """One kill."""

    number: Number
    """Its number, from 0."""
    way: Way
    """What was killed."""
    seconds: Annotated[float, Field(ge=0, le=604_800), Unit("seconds")]
    """After how long."""
    during: str
    """The jobs at work."""


class Ended(Schema):
    """How a study ended that had been killed."""

    kills: list[Number]
    """Numbers of its kills."""
    verdict: Verdict
    """How it ended."""
    said: str
    """What was said, where it did not end well."""


class Kept:
    """The folder of a harness. What other sources or other targets were found with is removed."""

    def __init__(self, folder: Path, targets: Iterable[str], seed: int) -> None:
        key = _key([*targets, str(seed)])
        for other in folder.glob("*"):
            if other.name != key:
                shutil.rmtree(other)
        self.folder = folder / key
        self.folder.mkdir(parents=True, exist_ok=True)
        self.study = self.folder / "killed"
        """The folder of the study that is being killed."""

    def right(self) -> dict[str, str] | None:
        """What a study ends in that nobody disturbs, as far as that is known."""
        path = self.folder / "right.json"
        return json.loads(path.read_text()) if path.exists() else None

    def keep_right(self, right: dict[str, str]) -> None:
        write_text(self.folder / "right.json", json.dumps(right, indent=1))

    def kills(self) -> list[Kill]:
        """All kills, in order."""
        return [read_record(path, Kill) for path in sorted(self.folder.glob("kill-*.json"))]

    def keep_kill(self, kill: Kill) -> None:
        write_text(self.folder / f"kill-{kill.number:05d}.json", kill.model_dump_json())

    def ended(self) -> list[Ended]:
        """All studies that have ended."""
        return [read_record(path, Ended) for path in sorted(self.folder.glob("study-*.json"))]

    def open(self) -> list[Kill]:
        """Kills of the study that has not ended."""
        known = {number for study in self.ended() for number in study.kills}
        return [kill for kill in self.kills() if kill.number not in known]

    def keep_ended(self, study: Ended) -> None:
        name = f"study-{study.kills[0]:05d}.json"
        write_text(self.folder / name, study.model_dump_json())
        shutil.rmtree(self.study)


def _key(options: list[str]) -> str:
    """A digest of all sources of the project, and of ``options``."""
    found = hashlib.sha256(json.dumps(options).encode())
    for name in _SOURCES:
        path = ROOT / name
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in files:
            if file.is_file() and file.suffix in _KINDS and not file.name.startswith("."):
                found.update(file.read_bytes())
    return found.hexdigest()[:16]
