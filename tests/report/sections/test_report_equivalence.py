"""The figure of the certificates."""

from typing import get_args

from schemas.results.equivalence import DeviationOf
from transformer_core.certify.bounds import WORDS
from transformer_core.report.sections.equivalence import MARKERS


def test_whatever_is_compared_has_its_words_and_a_mark_of_its_own() -> None:
    quantities = get_args(DeviationOf)
    assert set(WORDS) == set(MARKERS) == set(quantities)
    assert len(set(MARKERS.values())) == len(quantities)
