"""Sessions on disk, so that a job that was killed goes on with the next one, and one that is asked
for more goes on from what it has."""

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from schemas.config.measurement import Comparing
from schemas.results import Session
from transformer_core.common.files import write_text
from transformer_core.common.seals import check, write_sealed
from transformer_core.measure.turns.sides import Side

_SESSIONS = "session-*.json"
_RECORDED = ".recorded.json"
_HOW_MANY = {
    "pairs",
    "sessions_least",
    "sessions_most",
    "precision",
    "budget",
    "margin",
    "together",
}
"""Settings that say how many sessions and rounds there are, or what is made of them."""


class Kept:
    """The sessions of a comparison, a file each in ``folder``.

    ``key`` says what they are sessions of: files with another key are of another comparison.
    ``code`` stands for the programs that make them.
    """

    def __init__(
        self, folder: Path, sides: Sequence[Side], comparing: Comparing, code: str = ""
    ) -> None:
        self.folder = folder
        named = [[side.name, side.spec.digest(), side.planted] for side in sides]
        text = json.dumps([named, comparing.model_dump(mode="json", exclude=_HOW_MANY), code])
        self.key = hashlib.sha256(text.encode()).hexdigest()

    def read(self) -> Iterator[Session]:
        """The sessions from the first on, as far as there is one after the other."""
        for number in range(1, sys.maxsize):
            try:
                check(self._path(number))
                kept = json.loads(self._path(number).read_text())
                if kept["key"] != self.key:
                    return
                yield Session.model_validate(kept["session"])
            except (OSError, ValueError, KeyError, TypeError, ValidationError):
                return

    def add(self, session: Session) -> None:
        """Keep a session."""
        kept = {"key": self.key, "session": session.model_dump(mode="json")}
        write_sealed(self._path(session.number), json.dumps(kept))

    def recorded(self, comparing: Comparing) -> bool:
        """Whether the last comparison here came to its end, with these very settings."""
        file = self.folder / _RECORDED
        return file.exists() and file.read_text() == comparing.canonical_json()

    def forget(self) -> None:
        """Keep none of them."""
        for path in self.folder.glob(_SESSIONS):
            path.unlink()

    def _path(self, number: int) -> Path:
        return self.folder / f"session-{number}.json"


def leave_sessions(folder: Path, comparing: Comparing) -> None:
    """Empty the folder of a comparison that has been recorded, but for what another one, with other
    settings of how many sessions there are, goes on from."""
    write_text(folder / _RECORDED, comparing.canonical_json())
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif not path.match(_SESSIONS) and not path.name.startswith("."):
            path.unlink(missing_ok=True)
