"""Single sections: details, corpus, certificates, the limits of a step and of the machine."""

import json
import re
from copy import copy
from typing import get_args

import pytest
from pair_builders import session, side

from schemas.errors import ConfigError
from schemas.results.certificates import DeviationOf
from schemas.results.common import BASELINE, BEST
from transformer_core.certify.bounds import WORDS, in_short, nearest
from transformer_core.decide.study_results import StudyResults
from transformer_core.measure.evaluation import alone
from transformer_core.report import page
from transformer_core.report.kit import svg
from transformer_core.report.page import draw
from transformer_core.report.sections.headroom import context


def test_the_comparison_nearest_to_its_bound_is_named(study_folder):
    certificates = StudyResults(study_folder).certificates.values()
    held = [each for each in certificates if each.status == "equivalent" and each.deviations]
    assert held
    for certificate in held:
        found = nearest(certificate)
        most = found.measured / found.bound
        assert all(each.measured <= most * each.bound for each in certificate.deviations)


def test_a_certificate_that_fails_gives_its_whole_reason(study_folder):
    certificates = StudyResults(study_folder).certificates.values()
    others = [each for each in certificates if each.status != "equivalent"]
    assert others
    assert [in_short(each) for each in others] == [each.reason for each in others]


def test_the_vocabulary_that_was_asked_for_stands_beside_the_one_there_is(written):
    """A small corpus has fewer tokens than a study may ask for."""
    (file,) = written.rglob("tokenizer.report.json")
    report = json.loads(file.read_text())
    file.write_text(json.dumps(report | {"vocabulary": 1_234}))
    page.write_page(StudyResults(written))
    asked = StudyResults(written).study.tokenizer.vocabulary
    assert asked != 1_234
    expected = f"1,234 of the {asked:,} requested tokens"
    assert expected in re.sub("<[^>]*>", "", (written / "report.html").read_text())


def test_whatever_is_compared_has_its_words():
    quantities = get_args(DeviationOf)
    assert set(WORDS) == set(quantities)


def test_baseline_and_recommendation_stand_side_by_side(study_folder):
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


COLLECTIVES = "machine/collectives.parquet"
NONE = "Not measured: no variant has several processes."


def test_nobody_misses_collective_operations_of_single_processes(written):
    (written / COLLECTIVES).unlink()
    for name, spec in StudyResults(written).specs.items():
        (written / f"runs/{name}/spec.json").write_text(alone(spec).canonical_json())
    assert StudyResults(written).collectives is None
    figure = written / "figures/collective_bandwidth.svg"
    figure.write_text(draw(figure.stem, StudyResults(written)))
    assert svg.read(figure).description == NONE
    page.write_page(StudyResults(written))
    assert NONE in re.sub("<[^>]*>", "", (written / "report.html").read_text())


def test_where_processes_talk_to_one_another_they_are_missed(copied):
    (copied / COLLECTIVES).unlink()
    with pytest.raises(ConfigError, match=r"collectives\.parquet"):
        _ = StudyResults(copied).collectives
