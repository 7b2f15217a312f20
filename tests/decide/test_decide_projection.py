"""Projections: curves, the best bucket size, and the check against runs."""

import json
from typing import Any

import pytest
from analysis_builders import repeat, result, window
from projection_builders import LAYERS, compute, compute_times

from schemas.config.measurement import Projecting
from schemas.config.parallel import LinkModel
from schemas.config.run_spec import RunSpec
from schemas.results import ComputeRecord, MeasuredLink, ProjectionCheck
from tests.orders import run_job
from tests.records import collective_run, topology
from transformer_core.decide.link_error import measured_link
from transformer_core.decide.projection import (
    CURVE_BUCKETS_MB,
    best_buckets,
    checks,
    curves,
    project,
)
from transformer_core.decide.step_model import MIB, step_seconds
from transformer_core.measure.collectives import write_table
from transformer_core.parallel.link_times import PAYLOAD_SHARE, all_reduce_seconds

SLOW = LinkModel(bandwidth=8 * MIB)
"""A link on which an all-reduce of 1 MiB between two devices takes a second."""

MEASURED = MeasuredLink(
    bandwidth=SLOW.bandwidth, latency=0.0, world_size=2, nodes=1, sizes=5, worst_residual=0.1
)


def spec(variant: str = "ddp", **sections: Any) -> RunSpec:
    data = {"parallel": {"kind": "ddp"}, "machine": {"devices_per_node": 2}} | sections
    return RunSpec.model_validate({"variant": variant} | data)


def check_of(found: RunSpec, link: MeasuredLink | None = MEASURED, **times: Any) -> ProjectionCheck:
    """The check of one run, whose steps took 0.2 s: 10 in 2 s."""
    measured = compute_times(found.training.accumulation.micro_batches, found.variant, **times)
    results = {found.variant: result(found.variant, [100.0, 100.0])}
    (check,) = checks({found.variant: found}, results, [measured], link)
    return check


def test_curves_cover_all_strategies_bucket_sizes_and_links():
    links = {"slow": SLOW, "fast": LinkModel(bandwidth=1e12)}
    found = list(curves([compute_times(), compute_times(4)], links, 1024))
    keys = [(curve.strategy, curve.link, curve.bucket_mb) for curve in found]
    assert len(set(keys)) == len(keys) == 2 * (4 * len(CURVE_BUCKETS_MB) + 2)
    for curve in found:
        assert [point.devices for point in curve.points] == [2**n for n in range(11)]
        assert (curve.points[0].efficiency, curve.points[0].exposed_seconds) == (1.0, 0.0)
        for point in curve.points:
            alone = point.step_seconds - point.exposed_seconds
            assert point.efficiency == pytest.approx(alone / point.step_seconds)
    most = Projecting(devices=2**20).devices
    assert next(curves([compute_times()], links, most)).points[-1].devices == most
    of_micro_batches = {curve.strategy for curve in curves([compute_times(4)], links, 8)}
    assert of_micro_batches == {"accumulation_sync", "accumulation_no_sync"}


def test_the_knee_is_where_communication_is_more_than_half():
    slow = list(curves([compute_times()], {"slow": SLOW}, 64))
    (ddp,) = [curve for curve in slow if (curve.strategy, curve.bucket_mb) == ("ddp", 25)]
    # 3.5 s alone; a ring of 2 takes 4 s for 4 MiB, which one large bucket exposes.
    assert ddp.knee == 2
    assert ddp.points[1].exposed_seconds == pytest.approx(LAYERS)
    fast = next(curves([compute_times()], {"fast": LinkModel(bandwidth=1e12)}, 64))
    assert fast.knee is None


def test_the_best_bucket_is_the_smallest_of_equally_good_ones():
    (best,) = best_buckets(compute(), {"slow": SLOW}, 2)
    # Buckets up to the size of a layer are all full when the layer is done.
    assert best.bucket_mb == 0.25
    assert best.step_seconds == pytest.approx(step_seconds("ddp", compute(), SLOW, 2, 0.25))
    assert best.default_step_seconds == pytest.approx(step_seconds("ddp", compute(), SLOW, 2, 25))
    assert best.step_seconds < best.default_step_seconds
    assert min(tried.step_seconds for tried in best.tried) == best.step_seconds
    # A latency of a second makes one large message the best.
    (late,) = best_buckets(compute(), {"late": LinkModel(bandwidth=SLOW.bandwidth, latency=1.0)}, 2)
    assert late.bucket_mb == 5


def test_a_run_is_checked_with_the_measured_link():
    check = check_of(spec())
    assert check.predicted_seconds == pytest.approx(step_seconds("ddp", compute(), SLOW, 2))
    assert check.measured_seconds == pytest.approx(0.2)
    assert check.error == pytest.approx(check.predicted_seconds / 0.2 - 1)
    assert (check.link, check.devices, check.note) == ("measured", 2, "")


def test_a_link_measured_between_hosts_is_not_that_within_one(tmp_path):
    rows = [
        ("all_reduce", size, 10, all_reduce_seconds(SLOW, size, 2), 1.0, 1.0, 0.0)
        for size in (2**10, 2**20, 2**24)
    ]
    file = tmp_path / "collectives.parquet"
    write_table(file, rows, collective_run().model_copy(update={"nodes": 2}))
    between = measured_link(file)
    assert check_of(spec(), between).predicted_seconds is None
    hosts = {"nodes": 2, "devices_per_node": 1}
    seconds = check_of(spec(machine=hosts), between).predicted_seconds
    assert seconds == pytest.approx(step_seconds("ddp", compute(), SLOW, 2))


HALVED = {"kind": "compress", "dtype": "fp16"}
EMULATED = {"kind": "emulated_link", "bandwidth": "1Mbit/s", "devices": 8}
LIMITED = {"nodes": 2, "devices_per_node": 1, "link": {"bandwidth": "1Mbit/s"}}


@pytest.mark.parametrize(
    ("sections", "kind", "bandwidth", "devices"),
    [
        # A limited link delivers its bandwidth without headers.
        ({"machine": LIMITED}, "limited", 1e6 * PAYLOAD_SHARE, 2),
        ({"parallel": {"kind": "ddp", "hook": EMULATED}}, "emulated", 1e6, 8),
    ],
)
def test_a_run_with_its_own_link_needs_no_measured_one(sections, kind, bandwidth, devices):
    check = check_of(spec(**sections), link=None)
    seconds = step_seconds("ddp", compute(), LinkModel(bandwidth=bandwidth), devices)
    assert (check.link, check.predicted_seconds) == (kind, pytest.approx(seconds))


@pytest.mark.parametrize(
    ("parallel", "of_run", "strategy", "manner"),
    [
        ({"kind": "ddp", "bucket_mb": 1}, None, "ddp", {"bucket_mb": 1}),
        ({"kind": "ddp", "bucket_mb": 1, "overlap": False}, None, "ddp_no_overlap", {}),
        ({"kind": "ddp", "hook": {"kind": "ring"}}, None, "ddp", {}),
        ({"kind": "ddp", "hook": HALVED}, None, "ddp", {"payload": 0.5}),
        ({"kind": "central"}, None, "central", {}),
        ({"kind": "central", "local_loss": True}, None, "central", {"local_loss": True}),
        ({"kind": "fsdp"}, None, "fsdp", {}),
        ({"kind": "fsdp", "reshard_after_forward": False}, None, "fsdp", {"reshard": False}),
        # Over gloo the prediction follows gloo's algorithm.
        ({"kind": "fsdp"}, topology(2), "fsdp", {"backend": "gloo"}),
    ],
)
def test_strategies_of_runs(parallel, of_run, strategy, manner):
    seconds = step_seconds(strategy, compute(), SLOW, 2, **manner)
    check = check_of(spec(parallel=parallel), topology=of_run)
    assert check.strategy == strategy
    assert check.predicted_seconds == pytest.approx(seconds)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("synchronise", ["every", "last"])
def test_accumulation_of_runs(synchronise, overlap):
    training = {"accumulation": {"micro_batches": 4, "synchronise": synchronise}}
    parallel = {"kind": "ddp", "overlap": overlap, "bucket_mb": 1}
    strategy: Any = {"every": "accumulation_sync", "last": "accumulation_no_sync"}[synchronise]
    seconds = step_seconds(strategy, compute(4), SLOW, 2, 1, overlap=overlap)
    check = check_of(spec(training=training, parallel=parallel))
    assert check.predicted_seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("sections", "link", "times", "note"),
    [
        ({}, None, {}, "was not measured"),
        ({}, MEASURED, {"status": "failed"}, "work on one device was not measured"),
        ({"parallel": {"kind": "fsdp", "bf16": True}}, MEASURED, {}, "32 bits"),
        ({"parallel": {"kind": "ddp", "hook": {"kind": "powersgd"}}}, MEASURED, {}, "powersgd"),
        ({"machine": {"nodes": 2}}, MEASURED, {}, "was not measured"),
    ],
)
def test_a_run_without_a_model_says_why(sections, link, times, note):
    check = check_of(spec(**sections), link, **times)
    assert note in check.note
    assert (check.predicted_seconds, check.error) == (None, None)
    assert check.measured_seconds == pytest.approx(0.2)


def test_failed_and_single_process_runs_are_not_checked():
    ended = result("ddp", [100.0]).model_copy(update={"status": "oom"})
    assert not list(checks({"ddp": spec()}, {"ddp": ended}, [compute_times()], MEASURED))
    alone = spec(parallel={"kind": "single"})
    assert not list(checks({"ddp": alone}, {"ddp": result("ddp", [100.0])}, [], MEASURED))


def test_errors_are_summarised_without_sign():
    specs = {"ddp": spec(), "late": spec("late", parallel={"kind": "ddp", "overlap": False})}
    slow = repeat(1, [], "late", windows=[window(100.0).model_copy(update={"seconds": 1000.0})])
    results = {"ddp": result("ddp", [100.0]), "late": result("late", [100.0])}
    results["late"] = results["late"].model_copy(update={"repeats": [slow]})
    record = ComputeRecord(times=[compute_times()])
    projection = project(record, specs, results, MEASURED, Projecting())
    errors = [check.error for check in projection.checks]
    assert errors[0] > 0 > errors[1]
    assert projection.worst_error == pytest.approx(max(abs(e) for e in errors if e is not None))
    assert projection.reason is None
    assert projection.curves[0].link == "measured"


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ([], "no variant of the study runs on several devices"),
        ([compute_times(status="oom", reason="too large")], "oom, too large"),
    ],
)
def test_without_a_measured_device_the_reason_is_given(times, reason):
    results = {"ddp": result("ddp", [100.0])}
    projection = project(ComputeRecord(times=times), {"ddp": spec()}, results, None, Projecting())
    assert reason in str(projection.reason)
    assert (projection.curves, projection.buckets, projection.compute) == ([], [], None)


def test_the_job_fits_the_link_to_all_reduces_only(tmp_path):
    (tmp_path / "spec.json").write_text(spec().canonical_json())
    (tmp_path / "compute.json").write_text(ComputeRecord(times=[compute_times()]).model_dump_json())
    collectives, metrics = tmp_path / "collectives.parquet", tmp_path / "metrics.json"
    rows = [
        (name, size, 10, all_reduce_seconds(SLOW, size, 2) * factor, 1.0, 1.0, 0.0)
        for name, factor in (("all_reduce", 1), ("broadcast", 7))
        for size in (2**10, 2**20, 2**24)
    ]
    write_table(collectives, rows, collective_run())
    measured = {"compute": tmp_path / "compute.json", "collectives": collectives}
    of_runs = {"specs": [tmp_path / "spec.json"], "results": [metrics]}
    asked = {"settings": {"devices": 16, "links": {}}, "output": tmp_path / "projection.json"}
    order = measured | of_runs | asked
    metrics.write_text(result("ddp", [100.0]).model_dump_json())
    assert run_job("projection", **order) == 0
    written = json.loads((tmp_path / "projection.json").read_text())
    assert written["measured_link"]["bandwidth"] == pytest.approx(SLOW.bandwidth)
    assert {curve["link"] for curve in written["curves"]} == {"measured"}
    assert {len(curve["points"]) for curve in written["curves"]} == {5}
    assert written["checks"][0]["variant"] == "ddp"
