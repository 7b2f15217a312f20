"""The limits of a step of the baseline and of the recommendation."""

from typing import Any

from schemas.results.common import BASELINE, BEST
from transformer_core.decide.study_results import StudyResults
from transformer_core.decide.utilisation import Headroom, headroom, topology_of
from transformer_core.measure.session_ratio import step_seconds


def context(results: StudyResults) -> dict[str, Any]:
    """Both steps by operator class, as far as they were timed and profiled; the recommendation
    first, because it is the answer."""
    name, found = results.study.baseline, results.search
    rooms = (
        _room(results, " + ".join(found.parts), BEST, found.spec, found.profile),
        _room(results, name, BASELINE, results.specs[name], results.breakdowns.get(name)),
    )
    return {"rooms": [room for room in rooms if room]}


def _room(results: StudyResults, name: str, side: str, spec: Any, profile: Any) -> Headroom | None:
    sessions = results.search.sessions
    seconds, topology = step_seconds(sessions, side), topology_of(sessions, side)
    if profile is None or seconds is None or topology is None:
        return None
    return headroom(name, spec, topology, seconds, profile, results.roofline)
