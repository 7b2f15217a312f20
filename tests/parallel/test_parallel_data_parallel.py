"""torch.nn.DataParallel where it works, and the reason where it does not."""

from itertools import islice

import pytest
import torch

from schemas.config.parallel import DataParallel, Machine
from schemas.errors import Unsupported
from tests.parallel.gradient_cases import find, reference, spec_of
from tests.training.small_training import VOCABULARY, small_setup, small_store
from transformer_core.parallel.central import DataParallelObjective, DataParallelStrategy
from transformer_core.parallel.topology import Process
from transformer_core.training.assemble import assemble
from transformer_core.training.loop import optimizer_step

KINDS = {"gathered": {}, "local_loss": {"local_loss": True}}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_cpu_is_refused(kind):
    with pytest.raises(Unsupported, match="on a CPU"):
        find(spec_of(parallel={"kind": "data_parallel"} | kind))


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        ({"devices_per_node": 1}, "the study asks for 1"),
        ({"devices_per_node": 2, "nodes": 2}, "one host; the study asks for 2"),
    ],
)
def test_too_few_devices_or_too_many_hosts_are_refused(machine, reason):
    process = Process(0, 1, 0, 1, torch.device("cuda", 0))
    spec = DataParallel(kind="data_parallel")
    with pytest.raises(Unsupported, match=reason):
        DataParallelStrategy(spec, process, Machine.model_validate(machine))


@pytest.mark.parametrize("local_loss", [False, True])
def test_the_wrapped_objective_is_the_objective(local_loss):
    # Without devices DataParallel calls the module itself: what is around it must change nothing.
    setup = small_setup(spec_of())
    (batch,) = islice(setup.feed.batches(), 1)
    (micro,) = batch.micro_batches
    arguments = (micro.source, micro.target_input, micro.target_output)
    wrapped = DataParallelObjective(setup.module, [], local_loss)
    wrapped.replicas.device_ids = []
    loss = wrapped(*arguments)
    assert loss.shape == ()
    torch.testing.assert_close(loss, setup.module(*arguments))
    assert [id(p) for p in wrapped.parameters()] == [id(p) for p in setup.module.parameters()]


@pytest.mark.gpu(2)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_gradients_on_two_gpus(kind):
    spec = spec_of(
        parallel={"kind": "data_parallel"} | kind, machine={"device": "cuda", "devices_per_node": 2}
    )
    process = Process(0, 1, 0, 1, torch.device("cuda", 0))
    setup = assemble(spec, process, VOCABULARY, small_store(), small_store())
    setup.module.train()
    (batch,) = islice(setup.strategy.batches(setup.feed, 0, 0), 1)
    loss, _ = optimizer_step(setup, batch, 0.0)
    expected = reference()
    assert float(loss) == pytest.approx(expected.loss, rel=1e-4)
    for name, parameter in setup.model.named_parameters():
        torch.testing.assert_close(
            parameter.grad.cpu(), expected.gradients[name], rtol=1e-3, atol=1e-5
        )
    assert setup.strategy.devices == [torch.device("cuda", 0), torch.device("cuda", 1)]
