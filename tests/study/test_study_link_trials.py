"""The configurations with which the emulated link is checked, and settings of projections."""

from typing import Any

import pytest

from schemas.config.study import Study
from tests.refusals import problem_in
from transformer_core.study.compared_pairs import known_targets
from transformer_core.study.plan import LINK_CHECKS, link_trials

MINE = {"name": "s", "variants": ["ddp"], "baseline": "ddp"}


def study(**sections: Any) -> Study:
    return Study.model_validate(MINE | sections)


def test_a_study_that_checks_no_link_has_no_trials():
    assert link_trials(study()) == {}
    assert "results/links/error.json" not in known_targets(study())


def test_at_least_twelve_configurations_are_checked():
    found = link_trials(study(link_check={}))
    assert len(found) >= 12
    assert len({(t.change, t.bandwidth) for t in found.values()}) == len(found)
    assert "results/links/error.json" in known_targets(study(link_check={}))


def test_the_sides_of_a_trial_differ_in_their_link_only():
    for name, trial in link_trials(study(link_check={"bandwidths": ["1Gbit/s"]})).items():
        assert name == f"{trial.change}_1000mbit"
        assert not trial.real.machine.link.emulate
        assert trial.emulated.machine.link.emulate
        assert trial.real.machine.link.bandwidth == trial.bandwidth == 1e9
        assert trial.real.world_size == 2
        real, emulated = (
            spec.model_dump(exclude={"variant": True, "machine": {"link"}})
            for spec in (trial.real, trial.emulated)
        )
        assert real == emulated


def test_a_trial_is_the_study_with_its_change():
    found = link_trials(study(link_check={}, training={"steps": 7}))
    assert {trial.real.training.steps for trial in found.values()} == {7}
    made = found["accumulation_no_sync_100mbit"].real.training.accumulation
    assert (made.micro_batches, made.synchronise) == (4, "last")
    assert set(LINK_CHECKS) == {trial.change for trial in found.values()}


def test_a_projection_is_made_unless_it_is_given_up():
    assert "results/projection/projection.json" in known_targets(study())
    assert "results/projection/projection.json" not in known_targets(study(projection=None))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"links": {"lan": {"bandwidth": "fast"}}}, "projection.links.lan.bandwidth"),
        ({"devices": 0}, "projection.devices"),
        ({"links": {"lan": {"bandwidth": 1e9, "algorithm": "star"}}}, "projection.links.lan"),
    ],
)
def test_mistakes_in_a_projection_are_named(settings, field):
    assert problem_in(Study, MINE | {"projection": settings}).field.startswith(field)
