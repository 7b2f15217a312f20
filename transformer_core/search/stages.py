"""The way from the baseline to the best combination, measured anew."""

from collections.abc import Mapping
from statistics import fmean

from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.results import Session
from transformer_core.plan.combinations import combine
from transformer_core.search.trials import NAME, Bench, Parts


def stages(
    study: Study, variants: Mapping[str, Variant], parts: Parts, effects: Mapping[str, float]
) -> tuple[dict[str, Parts], dict[str, Parts]]:
    """The steps from the baseline to a combination, and the combination without each part.

    By the part that is added or left out; the one with the largest effect of its own is added
    first. A step whose changes do not stand alone (a bucket view without DistributedDataParallel)
    is made later, or left out.
    """
    waiting = sorted(parts, key=lambda part: -effects.get(part, 0.0))
    steps: dict[str, Parts] = {}
    have: Parts = ()
    while waiting:
        valid = [p for p in waiting if combine(study, variants, (*have, p), NAME) is not None]
        if not valid:
            break
        part = valid[0]
        waiting.remove(part)
        have = (*have, part)
        steps[part] = have
    without = {
        part: rest
        for part in parts
        if (rest := tuple(other for other in parts if other != part))
        and combine(study, variants, rest, NAME) is not None
    }
    return steps, without


def final_sessions(bench: Bench, specs: Mapping[str, RunSpec]) -> list[Session]:
    """Sessions of all stages and the baseline, at least as many as a comparison takes."""
    comparing, done = bench.study.comparison, list[Session]()
    with bench.desk() as desk:
        sessions = bench.sessions(specs, comparing, desk, "final")
        while len(done) < comparing.sessions_least or (
            len(done) < comparing.sessions_most
            and bench.left() > fmean(session.seconds for session in done)
        ):
            done.append(
                sessions.run(len(done) + 1, lambda rounds, _: len(rounds) >= comparing.pairs)
            )
    return done
