"""Settings of profiles, and profiles that users bring."""

import pytest

from schemas.errors import ConfigError
from tests.refusals import problem_of
from transformer_core.study.compared_pairs import check_targets, known_targets
from transformer_core.study.resolve import check_study

STUDY = {"name": "mine", "variants": ["single"]}


def test_traces_are_targets_beside_the_variants():
    study = check_study(STUDY | {"traces": {"other": ["a.sqlite"]}}, "study")
    known = known_targets(study)
    for name in ("single", "other"):
        assert f"results/profiles/{name}/breakdown.json" in known
    assert "results/profiles/single/capture.json" in known
    assert "results/profiles/other/capture.json" not in known
    with pytest.raises(ConfigError, match="did you mean results/profiles/other/breakdown"):
        check_targets(["results/profiles/othr/breakdown.json"], known)


@pytest.mark.parametrize(
    ("traces", "message", "remedy"),
    [
        ({"single": ["a.sqlite"]}, "is that of a variant", "choose another name"),
        ({"other": []}, "has no file for other", "name a file"),
    ],
)
def test_traces_that_cannot_be_read(traces, message, remedy):
    problem = problem_of(check_study, STUDY | {"traces": traces}, "study")
    assert (problem.field, problem.remedy) == ("traces", remedy)
    assert message in problem.message
