"""torch.nn.DataParallel, and the reasons for which it is refused."""

import pytest
import torch

from schemas.config.parallel import DataParallel, Machine
from schemas.config.training import Accumulation
from schemas.errors import Unsupported
from tests.parallel.gradient_cases import Case, distance, find, reference, spec_of
from tests.training.small_training import small_setup
from transformer_core.parallel.central import DataParallelObjective
from transformer_core.parallel.registry import build_strategy
from transformer_core.parallel.topology import Process

FIRST_GPU = Process(0, 1, 0, 1, torch.device("cuda", 0))
each_loss = pytest.mark.parametrize("local_loss", [False, True], ids=["gathered", "local"])


@pytest.mark.parametrize(
    ("process", "machine", "reason"),
    [
        (Process(0, 1, 0, 1, torch.device("cpu")), {"devices_per_node": 2}, "on a CPU"),
        (FIRST_GPU, {"devices_per_node": 1}, "the study asks for 1"),
        (FIRST_GPU, {"devices_per_node": 2, "nodes": 2}, "one host; the study asks for 2"),
    ],
)
def test_a_cpu_too_few_devices_and_several_hosts_are_refused(process, machine, reason):
    spec = DataParallel(kind="data_parallel")
    with pytest.raises(Unsupported, match=reason):
        build_strategy(spec, process, Machine.model_validate(machine), Accumulation())


@each_loss
def test_the_wrapped_objective_is_the_objective(local_loss):
    # Without devices DataParallel calls the module directly; our wrapper must change nothing.
    setup = small_setup(spec_of())
    (micro,) = next(setup.feed.batches()).micro_batches
    arguments = (micro.source, micro.target_input, micro.target_output)
    wrapped = DataParallelObjective(setup.module, [], local_loss)
    wrapped.replicas.device_ids = []
    loss = wrapped(*arguments)
    assert loss.shape == ()
    torch.testing.assert_close(loss, setup.module(*arguments))
    assert [id(p) for p in wrapped.parameters()] == [id(p) for p in setup.module.parameters()]


@pytest.mark.gpu(2)
@each_loss
def test_gradients_on_two_gpus(local_loss):
    parallel = {"kind": "data_parallel", "local_loss": local_loss}
    machine = {"device": "cuda", "devices_per_node": 2}
    spec, expected = spec_of(parallel=parallel, machine=machine), reference()
    used = small_setup(spec, FIRST_GPU).strategy.devices
    assert used == [torch.device("cuda", 0), torch.device("cuda", 1)]
    found = find(Case(spec), FIRST_GPU)
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert distance(found, expected) <= 1e-3
