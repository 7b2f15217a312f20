"""A link fitted to the times of its all-reduces, and the error of the emulated link, from runs that
alternated between both."""

import json
from typing import Any

import pytest
from pair_builders import ended, paired, side

from schemas.config.parallel import LinkKind, LinkModel
from schemas.results import LinkUse, PairedRun
from tests.orders import run_job
from transformer_core.decide.link_error import EMULATED, REAL, fit_link, judge, summarise
from transformer_core.parallel.link_times import all_reduce_seconds

BANDWIDTH = 1e8


def trial(*ratios: float, kind: LinkKind = "namespaces", **changes: Any) -> PairedRun:
    """Sessions in which the emulated link has these throughputs, relative to the real one."""
    sides = []
    for name, used in ((REAL, kind), (EMULATED, "emulated")):
        found = side(name)
        link = {"link": LinkUse(kind=used, bandwidth=BANDWIDTH)}
        topology = found.topology.model_copy(update=link)
        sides.append(found.model_copy(update={"topology": topology}))
    return paired(*ratios, reference=REAL, variant=EMULATED, sides=sides, **changes)


def test_a_smaller_throughput_is_a_longer_step():
    found = judge("ddp", BANDWIDTH, trial(0.8, 0.8))
    assert found.status == "ok"
    # The rounds scatter around the ratio by less than a hundredth in the middle.
    assert found.error == pytest.approx(1 / 0.8 - 1, abs=0.01)
    assert found.emulated_seconds / found.real_seconds == pytest.approx(1.25, rel=0.05)
    of_all_sessions = judge("ddp", BANDWIDTH, trial(0.9, 1.1, 1.1))
    assert of_all_sessions.error == pytest.approx(1 / 1.1 - 1, abs=0.02)


def test_two_emulated_links_and_trials_that_ended_are_no_check():
    found = judge("ddp", BANDWIDTH, trial(1.0, kind="emulated"))
    assert found.status == "unsupported"
    assert "cannot create a limited link" in str(found.reason)
    assert (found.real_seconds, found.emulated_seconds, found.error) == (None, None, None)
    found = judge("ddp", BANDWIDTH, ended("oom", "too large", EMULATED, REAL))
    assert (found.status, found.reason, found.error) == ("oom", "too large", None)


def test_errors_are_summarised_without_sign():
    ratios = {"a": 1.1, "b": 0.98, "c": 1.0}
    trials = [judge(name, BANDWIDTH, trial(ratio)) for name, ratio in ratios.items()]
    trials.append(judge("d", BANDWIDTH, ended("oom", "too large", EMULATED, REAL)))
    summary = summarise(trials)
    assert summary.median_error == pytest.approx(0.02, abs=0.01)
    assert summary.worst_error == pytest.approx(0.09, abs=0.015)
    nothing = summarise(trials[-1:])
    assert (nothing.median_error, nothing.worst_error) == (None, None)


def test_the_job_writes_all_trials(tmp_path):
    (tmp_path / "0.json").write_text(trial(0.8).model_dump_json())
    trials = [("ddp", 1e8, tmp_path / "0.json"), ("ring", 1e9, tmp_path / "1.json")]
    output = tmp_path / "error.json"
    (tmp_path / "1.json").write_text(trial(1.0, kind="emulated").model_dump_json())
    assert run_job("link_error", trials=trials, output=output) == 0
    written = json.loads(output.read_text())["trials"]
    assert [(t["name"], t["bandwidth"]) for t in written] == [("ddp", 1e8), ("ring", 1e9)]


SIZES = [2.0**power for power in range(10, 26, 3)]
LINK = LinkModel(bandwidth=4e9, latency=30e-6)


@pytest.mark.parametrize("devices", [2, 4])
def test_times_of_a_ring_recover_its_link(devices):
    times = [all_reduce_seconds(LINK, size, devices) for size in SIZES]
    found = fit_link(SIZES, times, devices)
    assert (found.bandwidth, found.latency) == (pytest.approx(4e9), pytest.approx(30e-6))
    assert found.worst_residual < 1e-6
    assert (found.world_size, found.sizes) == (devices, len(SIZES))
    # The worst residual is that of the size with the poorest fit.
    times[2] *= 1.5
    assert 0.2 < fit_link(SIZES, times, devices).worst_residual < 0.4


def test_neither_is_negative():
    # Large messages that are slower by the byte would ask for a negative latency.
    found = fit_link([1e3, 1e5, 1e7], [1e-6, 2e-4, 4e-2], 2)
    assert found.latency >= 0
    assert found.bandwidth > 0


@pytest.mark.parametrize(
    ("sizes", "seconds", "devices"),
    [
        ([1e3, 1e6], [1e-4, 1e-3], 2),
        ([1e3, 1e3, 1e3], [1e-4] * 3, 2),
        (SIZES, [1e-3] * len(SIZES), 1),
        ([], [], 2),
        ([1e3, 1e5, 1e7], [3e-2, 2e-2, 1e-2], 2),  # times that fall give no bandwidth
    ],
)
def test_too_few_data_give_no_link(sizes, seconds, devices):
    assert fit_link(sizes, seconds, devices) is None
