"""The last comparison of a search: the best combination and its stages, measured anew."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from schemas.config.run_spec import RunSpec
from schemas.config.variants import Variant
from schemas.results import Certificate, Effect, Session
from schemas.results.search import BASELINE, BEST, Stage
from transformer_core.certify.kernels import uncertified
from transformer_core.decide.search.stages import stages
from transformer_core.decide.search.trials import NAME, Bench, Parts, Trial
from transformer_core.decide.verdicts import session_effects
from transformer_core.study.combinations import combine


@dataclass(frozen=True)
class FinalComparison:
    """What the sessions say of a combination, of the steps to it, and of it without its parts."""

    sessions: list[Session]
    sides: Mapping[frozenset[str], str]
    """Names of what took turns, by its parts."""
    effects: Mapping[str, Effect]
    """By the name of the side."""
    steps: Mapping[str, Parts]
    without: Mapping[str, Parts]
    certificates: Sequence[Certificate]

    def side(self, trial: Trial) -> str:
        """The name of the side that ``trial`` was."""
        return self.sides[frozenset(trial.parts)]

    def of(self, trial: Trial) -> Effect:
        """The effect of ``trial`` against the baseline."""
        return self.effects[self.side(trial)]

    def fastest_step(self, bench: Bench, variants: Mapping[str, Variant]) -> Trial | None:
        """The step with the highest ratio, as a trial that took its turns; none if that is the
        combination itself."""
        stages = [stage for stage in self._stages(self.steps) if stage.effect.ratio]
        top = max(stages, key=_ratio, default=None)
        best = self.effects[BEST].ratio
        if top is None or best is None or _ratio(top) <= best.median:
            return None
        spec = combine(bench.study, variants, top.parts, NAME)
        assert spec is not None, "it was measured"
        side = self.sides[frozenset(top.parts)]
        turns = [(session, side) for session in self.sessions]
        return Trial(tuple(top.parts), spec, _ratio(top), turns=turns)

    def shown_for(self, winner: Trial) -> dict[str, object]:
        """The stages as a result shows them that recommends ``winner``, which is one of the steps
        or their end: those to it, those beyond it, and it without its parts."""
        parts, steps = set(winner.parts), self._stages(self.steps)
        return {
            "waterfall": [stage for stage in steps if set(stage.parts) <= parts],
            "beyond": [stage for stage in steps if not set(stage.parts) <= parts],
            "left_out": [s for s in self._stages(self.without) if set(s.parts) < parts],
            "sessions": self.sessions,
        }

    def _stages(self, chosen: Mapping[str, Parts]) -> list[Stage]:
        return [
            Stage(
                parts=list(some),
                change=part,
                effect=self.effects[side],
                uncertified=uncertified(self.sessions, side, self.certificates),
            )
            for part, some in chosen.items()
            if (side := self.sides.get(frozenset(some)))
        ]


def _ratio(stage: Stage) -> float:
    return stage.effect.ratio.median if stage.effect.ratio else 0.0


def compare_stages(
    bench: Bench, variants: Mapping[str, Variant], best: Trial, effects: Mapping[str, float]
) -> FinalComparison:
    """Compare ``best`` and as many of its stages as may be alive with the baseline."""
    study = bench.study
    steps, without = stages(study, variants, best.parts, effects)
    sides, specs = {frozenset(best.parts): BEST}, {BEST: best.spec}
    for parts in (*steps.values(), *without.values()):
        spec = combine(study, variants, parts, NAME)
        if len(sides) < bench.together - 1 and frozenset(parts) not in sides and spec:
            sides[frozenset(parts)] = side = f"stage_{len(sides)}"
            specs[side] = spec
    sessions = _sessions(bench, specs)
    found = session_effects(sessions, BASELINE, list(specs), study.comparison)
    known = [*bench.certificates.values(), *filter(None, [best.certificate])]
    return FinalComparison(sessions, sides, found, steps, without, known)


def _sessions(bench: Bench, specs: Mapping[str, RunSpec]) -> list[Session]:
    """Sessions of all stages and the baseline, at least as many as a comparison takes."""
    comparing, done = bench.study.comparison, list[Session]()
    with bench.coordinator() as coordinator:
        sessions = bench.sessions(specs, comparing, coordinator, "final")
        while len(done) < comparing.sessions_least or (
            len(done) < comparing.sessions_most
            and bench.left() > fmean(session.seconds for session in done)
        ):
            done.append(
                sessions.run(len(done) + 1, lambda rounds, _: len(rounds) >= comparing.pairs)
            )
    return done
