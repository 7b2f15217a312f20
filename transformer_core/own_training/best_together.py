"""The fastest techniques that leave the training the same: each by itself, then the best together.

Of techniques that exclude each other the fastest counts. The others are laid on top of each other,
the one that gains most first, and each of these combinations is certified and timed by itself:
what two techniques gain need not add up.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from schemas.config.measurement import Comparing
from schemas.config.own_training import Technique
from schemas.config.run_spec import RunSpec
from schemas.results import Interval, PairedRun
from schemas.results.own_training import TriedTogether
from transformer_core.decide.compare import about_sessions
from transformer_core.decide.intervals import simultaneous_ratios
from transformer_core.decide.verdicts import judge
from transformer_core.measure.comparison import compare
from transformer_core.measure.sessions import Side
from transformer_core.own_training.order import OwnTurnsOrder
from transformer_core.own_training.techniques import TECHNIQUES, with_techniques

OWN = "own"

Certify = Callable[[Sequence[Technique]], TriedTogether]
Time = Callable[[Sequence[TriedTogether]], list[TriedTogether]]


def best_together(
    techniques: Sequence[Technique], certify: Certify, time: Time
) -> tuple[list[TriedTogether], list[Technique]]:
    """Returns everything tried, and the techniques to recommend: none if nothing is FASTER."""
    singles = time([certify([name]) for name in techniques])
    ladder = [certify(names) for names in combinations([one for one in singles if useful(one)])]
    # Timed with the singles' evidence: intervals hold for all of them at once.
    tried = time([*singles, *ladder]) if ladder else singles
    best = max(filter(useful, tried), key=lambda one: one.speed.median, default=None)  # type: ignore[union-attr]
    return tried, [] if best is None else list(best.techniques)


def useful(tried: TriedTogether) -> bool:
    """Whether it is FASTER, and the same training."""
    return tried.verdict == "FASTER" and tried.certificate.word == "same"


def combinations(found: Sequence[TriedTogether]) -> list[list[Technique]]:
    """The best two, the best three, and so on, of techniques that go together."""
    chosen: list[Technique] = []
    groups: set[str] = set()
    ladder = []
    for one in sorted(found, key=lambda one: one.speed.median, reverse=True):  # type: ignore[union-attr]
        (name,) = one.techniques
        if TECHNIQUES[name].group in groups:
            continue
        groups.add(TECHNIQUES[name].group)
        chosen = [*chosen, name]
        if len(chosen) > 1:
            ladder.append(chosen)
    return ladder


class Timing:
    """Times what is certified against the user's own step, in turns, two sides at a time."""

    def __init__(
        self,
        own: RunSpec,
        devices: int,
        comparing: Comparing,
        folder: Path,
        command: str,
        code: str,
    ) -> None:
        self.own, self.devices, self.comparing = own, devices, comparing
        self.folder, self.command, self.code = folder, command, code
        self.runs: dict[str, PairedRun] = {}

    def __call__(self, tried: Sequence[TriedTogether]) -> list[TriedTogether]:
        """Adds speeds and verdicts, whose intervals hold for all of them at once."""
        for one in tried:
            name = side_name(one)
            if name not in self.runs and one.certificate.word in ("same", "undecided"):
                self.runs[name] = self._timed(name, one)
        done = {name: run for name, run in self.runs.items() if run.status == "ok"}
        ratios = [run.ratios for run in done.values()]
        intervals = dict(zip(done, simultaneous_ratios(ratios), strict=True))
        return [self._with_speed(one, intervals) for one in tried]

    def _timed(self, name: str, one: TriedTogether) -> PairedRun:
        spec = with_techniques(self.own, self.devices, one.techniques)
        sides = [Side(OWN, self.own, order=OwnTurnsOrder), Side(name, spec, order=OwnTurnsOrder)]
        folder = self.folder / name
        # No corpus: the user's batches come with the step.
        return compare(sides, self.comparing, folder, folder, self.command, self.code)[name]

    def _with_speed(self, one: TriedTogether, intervals: Mapping[str, Interval]) -> TriedTogether:
        run = self.runs.get(side_name(one))
        if run is None:
            return one
        if run.status != "ok":
            return one.model_copy(update={"status": run.status, "reason": run.reason})
        interval = intervals[run.variant]
        effect = judge("throughput", interval, self.comparing.margin, len(run.sessions))
        found = {
            "speed": effect.ratio,
            "verdict": effect.verdict,
            "peak_memory_bytes": self.peak_memory(run.variant),
            "note": "; ".join(about_sessions(run)),
        }
        return one.model_copy(update=found)

    def peak_memory(self, name: str) -> int | None:
        """Largest peak, in bytes, of any process of a side in all sessions; None if unknown."""
        sides = [
            side for run in self.runs.values() for session in run.sessions for side in session.sides
        ]
        peaks = [side.peak_memory_bytes for side in sides if side.name == name]
        return max((peak for peak in peaks if peak is not None), default=None)


def side_name(tried: TriedTogether) -> str:
    """Its name in comparisons."""
    return "_and_".join(tried.techniques)
