"""Which changes seemed to gain, and which of their combinations are worth a comparison."""

from dataclasses import dataclass, field
from math import log

from transformer_core.decide.intervals import student
from transformer_core.tune.answer import Answer, Tried, useful
from transformer_core.tune.results import over_rounds
from transformer_core.tune.sessions import Outcome
from transformer_core.tune.techniques import TECHNIQUES

SURE = 0.975  # a technique that seems to gain nothing is tried again, unless this is so sure
LEAST_GAIN = 1.005  # combinations leave out techniques that gain less than this alone


@dataclass
class Choice:
    """Chooses by what the techniques of an answer seemed to gain in the sessions in which they were tried."""

    margin: float  # ratios this close to 1 are those of equal speeds
    looks_at: dict[str, list[Outcome]] = field(default_factory=dict)
    """The sessions in which a technique was tried."""
    noise: dict[str, float] = field(default_factory=dict)
    """How far the script differed from itself in these sessions, as a logarithm."""
    compared: set[str] = field(default_factory=set)
    """Techniques that were compared, alone or with others."""

    def may_gain(self, tried: Tried) -> bool:
        """Whether a technique that seemed to gain nothing in its only session may gain more than the margin,
        by the spread of its rounds. Those that take long to compile are not worth another session."""
        if not useful(tried) or len(self.looks_at.get(tried.name, [])) != 1:
            return False
        ratio = over_rounds(tried.name, self.looks_at[tried.name])
        if ratio is None or tried.name in self.compared or TECHNIQUES[tried.name].slow:
            return False
        if tried.gain > LEAST_GAIN and ratio.estimate > self.noise[tried.name]:
            return False
        most = ratio.estimate + student(SURE, max(1, ratio.freedom)) * ratio.error
        return most > log(1 + self.margin)

    def gained(self, answer: Answer) -> list[Tried]:
        """The single techniques that seemed to gain, the best first."""
        gained = [t for t in answer.tried if useful(t) and t.gain > LEAST_GAIN]
        singles = [t for t in gained if len(t.techniques) == 1]
        return sorted(singles, key=lambda t: (t.name in self.compared, -t.gain))

    def promising(self, answer: Answer) -> list[Tried]:
        """Those that gained more than the script differed from itself."""
        return [t for t in self.gained(answer) if log(t.gain) > self.noise[t.name]]

    def pays(self, answer: Answer) -> bool:
        """Whether one of them, not yet compared, gained more than the margin within which speeds are the
        same, and more than a recommended technique that it would replace."""
        taken = [answer.find((name,)) for name in answer.recommended]
        least = {TECHNIQUES[t.name].group: t.gain for t in taken if t is not None}
        new = [t for t in self.promising(answer) if t.name not in self.compared]
        return any(
            t.gain > max(1 + self.margin, least.get(TECHNIQUES[t.name].group, 0)) for t in new
        )

    def combinations(self, answer: Answer) -> list[tuple[str, ...]]:
        """The best single technique, all promising ones together, and these without one of them: slow
        ones, those that seemed to gain least, and the best, which may have been lucky. If none is
        promising, the best one is. After a comparison, only if another technique pays."""
        if self.compared and not self.pays(answer):
            return []
        good = self.promising(answer) or self.gained(answer)[:1]
        best: dict[str, str] = {}
        for tried in good:
            best.setdefault(TECHNIQUES[tried.techniques[0]].group, tried.techniques[0])
        chosen = list(best.values())
        found: list[tuple[str, ...]] = [(name,) for name in chosen[:1]]
        if len(chosen) > 1:
            found.append(tuple(sorted(chosen)))
            slow = [name for name in chosen if TECHNIQUES[name].slow]
            for left in dict.fromkeys([*slow, chosen[-1], chosen[0], chosen[-2]]):
                found.append(tuple(sorted(name for name in chosen if name != left)))
        return [c for c in dict.fromkeys(found) if not (t := answer.find(c)) or t.ratio is None]
