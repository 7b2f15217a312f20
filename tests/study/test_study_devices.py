"""A study whose runs need more GPUs than this host has is refused, unless some of them fit."""

import pytest

from schemas.config.parallel import Machine
from tests.training.small_training import small_spec
from transformer_core.study.checks import missing_here


@pytest.mark.parametrize(
    ("device", "needed", "found", "problems"),
    [
        ("cuda", [1, 2], 0, 1),
        ("cuda", [4, 2], 1, 1),
        ("cuda", [1, 2], 1, 0),
        ("auto", [2], 0, 0),
        ("cuda", [], 0, 0),
    ],
)
def test_only_a_study_of_which_nothing_fits_is_refused(
    device, needed, found, problems, monkeypatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: found > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: found)
    machines = [Machine(device=device, devices_per_node=count) for count in needed]
    specs = [small_spec().model_copy(update={"machine": machine}) for machine in machines]
    refused = list(missing_here(small_spec().corpus, [], specs, "study.yaml"))
    assert len(refused) == problems
    if refused:
        assert f"at least {min(needed)} CUDA device" in refused[0].message
        assert f"torch finds {found}" in refused[0].message
