"""The section on the limit of a step."""

from copy import copy
from pathlib import Path

from pair_builders import session, side

from schemas.results.search import BASELINE, BEST
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.sections.headroom import context


def test_baseline_and_recommendation_stand_side_by_side(study_folder: Path) -> None:
    results = StudyResults(study_folder)
    assert context(results) == {"rooms": []}, "the search of this folder has no sessions"
    on_gpu = [
        found.model_copy(
            update={
                "topology": found.topology
                and found.topology.model_copy(update={"device": "cuda", "threads_per_rank": 1})
            }
        )
        for found in (side(BASELINE), side(BEST))
    ]
    timed = session(1.6, reference=BASELINE, variant=BEST, sides=on_gpu)
    profile = results.breakdowns["amp_bf16"]
    with_times = copy(results)
    with_times.__dict__["search"] = results.search.model_copy(
        update={"sessions": [timed], "profile": profile}
    )
    rooms = context(with_times)["rooms"]
    assert [room.name for room in rooms] == ["amp_bf16", results.study.baseline]
    assert rooms[0].seconds < rooms[1].seconds
    for room in rooms:
        assert room.parts[0].name == "contraction"
        assert 0 < room.products < room.seconds
