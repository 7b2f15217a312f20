"""The details of every variant."""

from pathlib import Path

from transformer_core.certify.bounds import in_short, nearest
from transformer_core.decide.study_results import StudyResults


def test_the_comparison_nearest_to_its_bound_is_named(study_folder: Path) -> None:
    certificates = StudyResults(study_folder).certificates.values()
    held = [each for each in certificates if each.status == "equivalent" and each.deviations]
    assert held
    for certificate in held:
        found = nearest(certificate)
        assert found is not None
        most = found.measured / found.bound
        assert all(each.measured <= most * each.bound for each in certificate.deviations)


def test_a_certificate_that_fails_gives_its_whole_reason(study_folder: Path) -> None:
    certificates = StudyResults(study_folder).certificates.values()
    others = [each for each in certificates if each.status != "equivalent"]
    assert others
    assert [in_short(each) for each in others] == [each.reason for each in others]
