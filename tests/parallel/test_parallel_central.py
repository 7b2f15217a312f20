"""The central scheme trains like one process, and its imbalance is measured."""

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tests.distributed import run_ranks
from tests.parallel.gradient_cases import spec_of
from tests.training.small_training import ODD, VOCABULARY, Watcher, small_setup
from transformer_core.data.batching.feeding import Feed
from transformer_core.parallel import messages
from transformer_core.parallel.topology import Process
from transformer_core.training.evaluation import averaged
from transformer_core.training.loop import train

pytestmark = pytest.mark.slow

KINDS = {
    "central": {"kind": "central"},
    "central_local_loss": {"kind": "central", "local_loss": True},
}
CASES = {name: (kind, "fp32") for name, kind in KINDS.items()} | {
    precision: (KINDS["central"], precision) for precision in ("bf16", "fp16")
}


def trained(parallel: dict[str, Any], precision: str = "fp32") -> dict[str, Any]:
    """Losses, weights, memory and traffic of six steps and a validation."""
    spec = spec_of(parallel=parallel, training={"precision": {"kind": precision}})
    setup = small_setup(spec, validation_pairs=ODD)
    watcher, saved, validated = Watcher(), [], []
    setup.model.register_forward_pre_hook(
        lambda model, _: None if model.training else validated.append(None)
    )

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor.nbytes)
        return tensor

    with (
        tempfile.TemporaryDirectory() as folder,
        torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor),
        patch.object(Feed, "_make", autospec=True, side_effect=Feed._make) as read,
    ):
        exact = precision == "fp32"  # on a CPU validation in 16 bits is slow
        history = train(setup, watcher, Path(folder), validate_last=exact)
    states = [value for state in setup.optimizer.state.values() for value in state.values()]
    return {
        "losses": watcher.losses,
        "validations": watcher.validations,
        "validated": len(validated),
        "steps": [(s["pairs"], s["tokens"], s["padded_tokens"]) for s in history.steps],
        "weights": [p.detach().clone() for p in setup.model.parameters()],
        "reads_the_corpus": read.called,
        "saved_bytes": sum(saved),
        "state_elements": sum(s.numel() for s in states if isinstance(s, Tensor)),
        "told": setup.strategy.communication(),
    }


def trained_all() -> dict[str, Any]:
    return {name: trained(*case) for name, case in CASES.items()}


def validated_with_averages() -> tuple[float, float, float, float]:
    """The sums of the weights before, during and after a validation and after the training; the
    averages, which rank 0 alone keeps, are all ones."""
    setup = small_setup(spec_of(parallel=KINDS["central"]))
    weights = list(setup.model.parameters())
    sums: list[float] = []

    @torch.no_grad()
    def exchange() -> None:
        for weight, other in zip(weights, kept, strict=True):
            now = weight.clone()
            weight.copy_(other)
            other.copy_(now)

    def note() -> None:
        sums.append(sum(float(w.detach().double().sum()) for w in weights))

    kept = [torch.ones_like(weight) for weight in weights]
    alone = exchange if setup.process.is_main else lambda: None
    setup.optimizer.eval = setup.optimizer.train = alone  # type: ignore[attr-defined]
    note()
    with averaged(setup):
        note()
    note()
    with tempfile.TemporaryDirectory() as folder:
        train(setup, Watcher(), Path(folder), validate_last=False)
    note()
    return tuple(sums)


def test_every_rank_validates_with_the_averages_of_the_first():
    first, second = run_ranks(validated_with_averages, 2)
    assert first == second
    before, during, after, end = first
    assert during == end == sum(p.numel() for p in small_setup(spec_of()).model.parameters())
    assert after == before != during


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(trained_all, 2)


@pytest.fixture(scope="module")
def single():
    return trained({"kind": "single"})


@pytest.mark.parametrize("name", KINDS)
def test_the_central_scheme_trains_like_one_process(ranks, single, name):
    for rank in ranks:
        result = rank[name]
        assert result["losses"] == pytest.approx(single["losses"], rel=1e-5)
        assert result["validations"] == pytest.approx(single["validations"], rel=1e-5)
        assert 2 * result["validated"] == single["validated"] + 1, "ranks share the batches"
        assert result["steps"] == single["steps"]
        # Compared all together: where the true gradient is zero, as for biases of keys, Adam
        # turns rounding errors into full-sized updates.
        found, expected = (
            torch.cat([w.flatten() for w in side["weights"]]) for side in (result, single)
        )
        assert (found - expected).norm() < 1e-2 * expected.norm()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_takes_the_gathered_logits(ranks, precision):
    plain = ranks[0]["central"]["losses"]
    for rank in ranks:
        assert rank[precision]["losses"] == pytest.approx(plain, rel=2e-2)


def test_only_the_first_rank_reads_and_updates(ranks):
    for name in KINDS:
        first, second = (rank[name] for rank in ranks)
        assert (first["reads_the_corpus"], second["reads_the_corpus"]) == (True, False)
        assert first["state_elements"] > 0 == second["state_elements"]
        assert all(map(torch.equal, first["weights"], second["weights"]))


def test_the_first_rank_holds_the_logits_of_all(ranks):
    excess = {name: ranks[0][name]["saved_bytes"] - ranks[1][name]["saved_bytes"] for name in KINDS}
    gathered = ranks[0]["central"]["told"]["traffic"]["gather of logits"]["received_bytes"][0]
    # The first rank keeps its own logits and the received ones for the loss.
    assert excess["central"] >= 2 * gathered
    assert abs(excess["central_local_loss"]) < gathered / 10


def test_traffic_of_logits_and_of_losses(ranks):
    central, local = (ranks[0][name]["told"]["traffic"] for name in KINDS)
    steps = len(ranks[0]["central"]["steps"])
    for traffic in (central, local):
        weights = sum(tensor.nbytes for tensor in ranks[0]["central"]["weights"])
        sent = traffic["broadcast of weights"]["sent_bytes"]
        # Weights are sent at the start and after every update; other ranks send gradients.
        assert sent == [(1 + steps) * weights, 0]
        assert traffic["reduce of gradients"]["sent_bytes"] == [0, steps * weights]
        for operation in traffic.values():
            assert sum(operation["sent_bytes"]) == sum(operation["received_bytes"])
    assert central["gather of logits"]["sent_bytes"][0] == 0
    assert central["gather of logits"]["sent_bytes"][1] % (4 * VOCABULARY) == 0
    assert (
        central["scatter of gradients of logits"]["sent_bytes"]
        == central["gather of logits"]["received_bytes"]
    )
    # Each loss is one number of four bytes.
    assert local["gather of losses"]["sent_bytes"] == [0, 4 * steps]
    assert "gather of logits" not in local


def test_numbers_for_hosts_travel_between_hosts_under_nccl(monkeypatch):
    """Sent through the GPU, they would make both hosts wait for their devices at every step."""
    hosts = object()
    sent: list[tuple[str, object]] = []
    dist = messages.dist
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    allowed = timedelta(seconds=3_600)

    def new_group(backend: str, timeout: timedelta) -> object:
        return hosts if (backend, timeout) == ("gloo", allowed) else None

    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(
        dist, "broadcast", lambda values, src, group=None: sent.append((values.device.type, group))
    )
    hub = messages.Hub(Process(0, 2, 0, 2, torch.device("cuda", 0)), allowed)
    assert hub.broadcast_counts([1, 2]) == [1, 2]
    assert sent == [("cpu", hosts)]
