"""From kernel to quality: how much of a gain is left after a race."""

import pytest

from schemas.results import QualityLook
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.sections.quality import from_kernel_to_quality, reaching


def test_the_same_loss_is_found_between_two_evaluations():
    looks = [
        QualityLook(step=10 * k, seconds=5.0 * k, loss=6.0 - k, bleu=0.0) for k in (1, 2, 3, 4)
    ]
    assert reaching(looks, 3.5) == pytest.approx((25.0, 12.5))
    assert reaching(looks, 3.0) == pytest.approx((30.0, 15.0))
    assert reaching(looks, 5.5) is None  # passed before the first evaluation
    assert reaching(looks, 1.0) is None  # never reached


def test_gains_are_those_of_the_race(study_folder):
    """The recommendation takes half as long for a step, and as many steps."""
    (gain,) = from_kernel_to_quality(StudyResults(study_folder))
    assert (gain.name, gain.kernels) == ("amp_bf16", None)
    assert gain.step is None  # two turns are too few for an interval
    assert (gain.steps, gain.time) == (pytest.approx(1.0), pytest.approx(2.0))
