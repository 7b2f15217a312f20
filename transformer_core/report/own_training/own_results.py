"""The results that the page of your own training shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.config.own_training import ImportedTask, Technique
from schemas.config.study import Study
from schemas.results.own_training import OwnProfile, OwnProfiles, OwnTrainingResult, TriedTogether
from transformer_core.common.records import read_record


@dataclass(frozen=True)
class OwnResults:
    """The results of a study that imports, from its folder."""

    study: Study
    folder: Path
    """results/own_training."""
    found: OwnTrainingResult
    profiles: list[OwnProfile]
    diff: str
    """The diff for the script; may be empty."""

    @property
    def task(self) -> ImportedTask:
        """The imported task."""
        assert isinstance(self.study.task, ImportedTask)
        return self.study.task

    @property
    def best(self) -> TriedTogether | None:
        """The recommended combination; None for the step as it is."""
        named = [one for one in self.found.tried if one.techniques == self.found.recommended]
        return named[0] if named and self.found.recommended else None

    @property
    def stages(self) -> list[TriedTogether]:
        """The combinations tried on the way to the recommendation, each with one technique more."""
        chosen = self.found.recommended
        ways = [one for one in self.found.tried if one.techniques == chosen[: len(one.techniques)]]
        return sorted((way for way in ways if way.speed), key=lambda way: len(way.techniques))

    @property
    def timed(self) -> list[TriedTogether]:
        """The combinations with a speed, the fastest first."""
        timed = [one for one in self.found.tried if one.speed]
        return sorted(timed, key=lambda one: -one.speed.median if one.speed else 0.0)

    @property
    def others(self) -> list[TriedTogether]:
        """The combinations without a speed."""
        return [one for one in self.found.tried if not one.speed]

    @property
    def remembered(self) -> list[TriedTogether]:
        """The combinations with a peak of memory, the smallest first."""
        known = [one for one in self.found.tried if one.peak_memory_bytes]
        return sorted(known, key=lambda one: one.peak_memory_bytes or 0)


def read_own_results(results: Path) -> OwnResults:
    """Reads the results below ``results``; ConfigError if they are missing or of another kind."""
    folder = results / "own_training"
    diff = folder / "changes.diff"
    return OwnResults(
        study=read_record(results / "study.json", Study),
        folder=folder,
        found=read_record(folder / "results.json", OwnTrainingResult),
        profiles=read_record(folder / "profiles.json", OwnProfiles).profiles,
        diff=diff.read_text(encoding="utf-8") if diff.exists() else "",
    )


def together(techniques: Sequence[Technique]) -> str:
    """Techniques as one name."""
    return " + ".join(techniques) or "as it is"
