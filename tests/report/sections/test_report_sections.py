"""Single sections: certificates, corpus, the limits of a step, quality, collective operations."""

import json
from copy import copy
from typing import get_args

import pytest
from drawn import description, words
from pair_builders import session, side

from schemas.errors import ConfigError
from schemas.results import QualityLook
from schemas.results.certificates import DeviationOf
from schemas.results.common import BASELINE, BEST
from transformer_core.certify.bounds import WORDS, in_short, nearest
from transformer_core.decide.study_results import StudyResults
from transformer_core.measure.evaluation import alone
from transformer_core.report.page import draw
from transformer_core.report.sections.machine import headroom_context
from transformer_core.report.sections.quality import from_kernel_to_quality, reaching

FINDING = {"where": "train.py:7", "sure": False, "cause": "A < cause", "remedy": "A remedy"}


def test_a_certificate_names_the_quantity_nearest_to_its_bound_or_its_reason(results):
    certificates = results.certificates.values()
    held = [each for each in certificates if each.status == "equivalent" and each.deviations]
    others = [each for each in certificates if each.status != "equivalent"]
    assert held
    for certificate in held:
        found = nearest(certificate)
        most = found.measured / found.bound
        assert all(each.measured <= most * each.bound for each in certificate.deviations)
    assert others
    assert [in_short(each) for each in others] == [each.reason for each in others]
    assert set(WORDS) == set(get_args(DeviationOf)), "every quantity has its words"


@pytest.mark.parametrize(
    ("audit", "shown"),
    [
        ({"status": "failed", "reason": "No <b>\nmore"}, "not be audited: No &lt;b&gt;"),
        ({"status": "failed", "reason": ""}, "not be audited: no reason was given"),
        ({"status": "clean"}, "passed every self-consistency check that could be run: 1."),
        (
            {"status": "wrong", "findings": [FINDING]},
            "found something wrong: train.py:7 ( worth a look ): A &lt; cause. A remedy.",
        ),
    ],
)
def test_the_audit_of_the_baseline(copied, audit, shown):
    found = {"relations": {"a": {"status": "holds"}, "b": {"status": "untested"}}, "findings": []}
    (copied / "audit.json").write_text(json.dumps(found | audit))
    assert shown in words("equivalence", StudyResults(copied))
    (copied / "audit.json").write_text("{")
    with pytest.raises(ConfigError, match=r"audit\.json"):
        words("equivalence", StudyResults(copied))


def test_the_requested_vocabulary_is_shown_with_the_actual_one(copied):
    """A small corpus has fewer tokens than a study may ask for."""
    (file,) = copied.rglob("tokenizer.report.json")
    report = json.loads(file.read_text())
    file.write_text(json.dumps(report | {"vocabulary": 1_234}))
    results = StudyResults(copied)
    asked = results.study.tokenizer.vocabulary
    assert asked != 1_234
    assert f"1,234 of the {asked:,} requested tokens" in words("corpus", results)


def test_headroom_of_the_recommendation_and_the_baseline(results):
    assert headroom_context(results) == {"rooms": []}, "the search of this folder has no sessions"
    on_gpu = []
    for found in (side(BASELINE), side(BEST)):
        device = {"device": "cuda", "threads_per_rank": 1}
        topology = found.topology and found.topology.model_copy(update=device)
        on_gpu.append(found.model_copy(update={"topology": topology}))
    timed = session(1.6, reference=BASELINE, variant=BEST, sides=on_gpu)
    profile = results.breakdowns["amp_bf16"]
    with_times = copy(results)
    with_times.__dict__["search"] = results.search.model_copy(
        update={"sessions": [timed], "profile": profile}
    )
    rooms = headroom_context(with_times)["rooms"]
    assert [room.name for room in rooms] == ["amp_bf16", results.study.baseline]
    assert rooms[0].seconds < rooms[1].seconds
    for room in rooms:
        assert room.parts[0].name == "contraction"
        assert 0 < room.products < room.seconds


def test_only_single_processes_need_no_collective_operations(copied):
    (copied / "machine/collectives.parquet").unlink()
    with pytest.raises(ConfigError, match=r"collectives\.parquet"):
        _ = StudyResults(copied).collectives
    for name, spec in StudyResults(copied).specs.items():
        (copied / f"runs/{name}/spec.json").write_text(alone(spec).canonical_json())
    results = StudyResults(copied)
    assert results.collectives is None
    reason = "Not measured: no variant has several processes."
    assert description(draw("collective_bandwidth", results)) == reason
    assert reason in words("machine", results)


def test_the_time_to_a_loss_is_interpolated_between_evaluations():
    looks = [
        QualityLook(step=10 * k, seconds=5.0 * k, loss=6.0 - k, bleu=0.0) for k in (1, 2, 3, 4)
    ]
    assert reaching(looks, 3.5) == pytest.approx((25.0, 12.5))
    assert reaching(looks, 3.0) == pytest.approx((30.0, 15.0))
    assert reaching(looks, 5.5) is None  # passed before the first evaluation
    assert reaching(looks, 1.0) is None  # never reached


def test_gains_are_those_of_the_race(results):
    """The recommendation takes half as long for a step, and as many steps."""
    (gain,) = from_kernel_to_quality(results)
    assert (gain.name, gain.kernels) == ("amp_bf16", None)
    assert gain.step is None  # two turns are too few for an interval
    assert (gain.steps, gain.time) == (pytest.approx(1.0), pytest.approx(2.0))
