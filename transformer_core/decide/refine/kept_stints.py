"""Added sessions on disk: a job that was killed goes on, and so does one that has more time."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import ValidationError

from schemas.results import Session
from transformer_core.common.seals import check, write_sealed
from transformer_core.decide.refine.evidence import Pair

Key = tuple[str, str]
"""A comparison: its variant and its reference."""


class KeptStints:
    """Sessions of several comparisons in ``folder``, a file each, numbered in order.

    ``keys`` says by comparison what its sessions must be sessions of: those with another key are of
    another run spec, other settings or other code, and count no more.
    """

    def __init__(self, folder: Path, keys: Mapping[Key, str]) -> None:
        self._folder = folder
        self._keys = keys
        files = self._files()
        self.last = max(files, default=0)
        """Number of the last session; 0 for none."""
        self.last_stint = 0
        """Number of the last stint; 0 for none."""

    def read_into(self, pairs: Iterable[Pair]) -> None:
        """Give every comparison the sessions that were added to it."""
        by_name = {(pair.variant, pair.reference): pair for pair in pairs}
        for _, path in sorted(self._files().items()):
            try:
                check(path)
                kept = json.loads(path.read_text())
                session = Session.model_validate(kept["session"])
                stint, keys = int(kept["stint"]), dict(kept["keys"])
            except (OSError, ValueError, KeyError, TypeError, ValidationError):
                continue
            self.last_stint = max(self.last_stint, stint)
            for variant, key in keys.items():
                name = variant, session.sides[0].name
                if name in by_name and self._keys.get(name) == key:
                    by_name[name].add(session, stint)

    def add(self, session: Session, stint: int) -> None:
        """Keep a session of a stint."""
        reference, *variants = (side.name for side in session.sides)
        self.last += 1
        self.last_stint = stint
        kept = {
            "stint": stint,
            "keys": {variant: self._keys[variant, reference] for variant in variants},
            "session": session.model_dump(mode="json"),
        }
        write_sealed(self._folder / f"session-{self.last}.json", json.dumps(kept))

    def _files(self) -> dict[int, Path]:
        found = self._folder.glob("session-*.json")
        numbered = ((path.stem.removeprefix("session-"), path) for path in found)
        return {int(number): path for number, path in numbered if number.isdigit()}
