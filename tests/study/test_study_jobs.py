"""The resources that a job reserves on a cluster, from its run spec alone."""

from pathlib import Path
from typing import Any

import pytest

from schemas.config.run_spec import RunSpec
from tests.records import prediction
from transformer_core.study.reservations import (
    devices_on_a_host,
    largest,
    on_one_device,
    parameters,
    reservation,
)

ROOT = Path(__file__).parents[2]
VOCABULARY = 1000


def spec(kind: str = "ddp", **sections: Any) -> RunSpec:
    return RunSpec.model_validate({"variant": "v", "parallel": {"kind": kind}} | sections)


def machine(**fields: Any) -> dict[str, Any]:
    return {"machine": {"device": "cuda"} | fields}


@pytest.mark.parametrize(
    ("run", "hosts", "gpus"),
    [
        (spec("single", **machine()), 1, 1),
        (spec(**machine(devices_per_node=4)), 1, 4),
        (spec(**machine(devices_per_node=4, nodes=2)), 2, 4),
        (spec(**machine(device="cpu", devices_per_node=4, nodes=2)), 2, 0),
        (spec(**machine(device="auto")), 1, 0),
        # Both hosts of a limited link are simulated on one.
        (spec(**machine(devices_per_node=2, nodes=2, link={"bandwidth": 1e9})), 1, 4),
    ],
)
def test_hosts_and_gpus_come_from_the_spec(run, hosts, gpus):
    job = reservation([run], VOCABULARY)
    assert (job.hosts, job.gpus_per_host) == (hosts, gpus)


def test_a_lease_has_the_gpus_of_both_simulated_hosts():
    """With fewer, the hosts could not divide them, and the run was unsupported."""
    link = {"bandwidth": 1e9}
    both = spec(**machine(device="auto", devices_per_node=2, nodes=2, link=link))
    assert devices_on_a_host(both.machine) == both.world_size == 4
    assert devices_on_a_host(spec(**machine(devices_per_node=2, nodes=2)).machine) == 2
    rules = "".join(file.read_text() for file in (ROOT / "workflow/rules").glob("*.smk"))
    assert "devices_per_node" not in rules


def test_parameters_are_counted_from_the_matrices():
    """The model of the Annotated Transformer: 6 + 6 layers, 512 wide, has 44 million in layers."""
    sizes = {"encoder_layers": 6, "decoder_layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8}
    model = {"model": {"kind": "transformer"} | sizes}
    assert parameters(spec(**model), 0) == 44_040_192
    assert parameters(spec(**model), 30_000) - parameters(spec(**model), 0) == 30_000 * 512


def test_larger_models_batches_and_longer_trainings_need_more():
    small, again = (reservation([spec()], VOCABULARY, attempt=attempt) for attempt in (1, 2))
    wide, batch, long = (
        reservation([spec(**sections)], VOCABULARY)
        for sections in (
            {"model": {"kind": "transformer", "d_model": 4096, "d_ff": 16384}},
            {"batching": {"kind": "token_budget", "tokens": 10**6}},
            {"training": {"steps": 10**7}},
        )
    )
    assert wide.memory_mb > 2 * small.memory_mb
    assert batch.memory_mb > small.memory_mb
    assert long.minutes > 4 * small.minutes
    assert long.memory_mb == small.memory_mb
    # A second attempt gets more.
    assert (again.memory_mb, again.minutes) == (2 * small.memory_mb, 2 * small.minutes)
    assert again.hosts == small.hosts
    # Two specs at the same time need the memory of both, each host for as many processes, with half
    # the batch.
    two = reservation([spec(), spec(**machine(device="cpu", nodes=2))], VOCABULARY)
    assert 1.8 * small.memory_mb < two.memory_mb <= 2 * small.memory_mb
    assert two.hosts == 2


def test_trainings_at_once_need_memory_and_budgets_need_time():
    one = reservation([spec()], VOCABULARY)
    many = reservation(9 * [spec()], VOCABULARY, seconds=7_200)
    assert many.memory_mb == pytest.approx(9 * one.memory_mb, rel=1e-3)
    assert many.minutes == one.minutes + 8 * 10 + 120, "each starts, one trains"


def test_main_memory_beside_gpus_grows_with_the_model():
    """Checks of steps copy the weights to the host, in 64 bits."""
    model = {"kind": "transformer", "d_model": 4096, "d_ff": 16384}
    small, large = (
        reservation([spec(**machine(), **more)], VOCABULARY) for more in ({}, {"model": model})
    )
    weights = parameters(spec(model=model), VOCABULARY)
    assert small.memory_mb < 20_000
    assert large.memory_mb * 1e6 > small.memory_mb * 1e6 + 2 * 8 * weights


def test_a_prediction_of_memory_replaces_the_estimate():
    run = spec(**machine(device="cpu", devices_per_node=2))
    context = 10**8
    predicted = [prediction(8 * 10**9 - context, variant="v", context_bytes=context)]
    job = reservation([run], VOCABULARY, predicted)
    assert job.memory_mb == pytest.approx(2 * 1.25 * 8000)
    other = spec().model_copy(update={"variant": "w"})
    assert reservation([other], VOCABULARY, predicted).memory_mb < job.memory_mb


def test_the_largest_spec_has_most_hosts():
    runs = [spec("single"), spec(**machine(devices_per_node=8)), spec(**machine(nodes=2))]
    assert largest(runs) is runs[2]
    assert on_one_device(runs[2]).machine.nodes == 1
    assert reservation([on_one_device(runs[1])], VOCABULARY).gpus_per_host == 1
