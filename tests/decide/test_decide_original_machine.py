"""The worked example of the original study's machine."""

import pytest

from transformer_core.decide.step_model import REPORTED_SHARE, parameters, worked_example


def test_parameters_are_those_of_the_annotated_transformer():
    # 6 + 6 layers of width 512: 44.0 million in matrices of the layers, 3 tables of 30,000 x 512.
    assert parameters() == 44_040_192 + 3 * 30_000 * 512


def test_shares_are_between_the_ends_of_what_is_not_known():
    example = worked_example()
    assert len(example.cases) == 8
    for case in example.cases:
        both = case.all_reduce_seconds + case.compute_seconds
        assert case.share == pytest.approx(case.all_reduce_seconds / both)
    # A slow link, products near the peak and short sentences: most communication.
    most = max(example.cases, key=lambda case: case.share)
    assert (most.link_bytes_per_second, most.utilisation, most.tokens_per_pair) == (3e9, 0.6, 20)
    least = min(example.cases, key=lambda case: case.share)
    assert (least.link_bytes_per_second, least.utilisation, least.tokens_per_pair) == (
        25e9,
        0.2,
        100,
    )


def test_an_all_reduce_of_four_gpus_sends_six_quarters_of_the_bytes():
    case = worked_example().cases[0]
    sent = 2 * 3 / 4 * 4 * parameters()
    assert case.all_reduce_seconds == pytest.approx(sent / case.link_bytes_per_second)


def test_one_all_reduce_does_not_explain_all_that_was_seen():
    """What the report says of it holds only as long as this does."""
    example = worked_example()
    assert max(case.share for case in example.cases) < REPORTED_SHARE
