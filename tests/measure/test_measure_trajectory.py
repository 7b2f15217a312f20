"""Short runs: their number of seeds, their records, and the resulting certificates."""

import subprocess
import time
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
import torch
from analysis_builders import seed_trajectory, trajectory
from safetensors.torch import load_file
from small_training import VOCABULARY, small_setup, small_spec

from schemas.config.measurement import Bitwise, Tolerance
from schemas.config.model import ImportedModel, Transformer
from schemas.config.run_spec import RunSpec
from schemas.results import Certificate, SeedTrajectory, Trajectory
from tests.measure.short_runs import Silent, recorded
from transformer_core.certify import short_run_worker as worker
from transformer_core.certify.bounds import Weights, read_tensors
from transformer_core.certify.judge import certify
from transformer_core.certify.short_run import ShortRun, ShortRunOrder
from transformer_core.certify.short_run_worker import Recorder, digest
from transformer_core.certify.tensors import CanonicalTensors
from transformer_core.decide.search_final import command_of
from transformer_core.training.loop import Diverged, train

PLAIN = {"attention": {"kind": "reference"}, "qkv": {"kind": "separate"}}


def spec_of(**sections: Any) -> RunSpec:
    """A short run of a tiny model without dropout."""
    model = {"dropout": 0.0} | sections.pop("model", {})
    return small_spec(model=model, **sections)


def verdict(
    equivalence: Bitwise | Tolerance,
    runs: dict[str, SeedTrajectory],
    folder: Path,
    run: str,
    reference: str,
) -> Certificate:
    """The certificate of one of these runs, whose weights are below ``folder``, against another."""
    weights = Weights(
        run=read_tensors(folder / run / "final.safetensors"),
        reference=read_tensors(folder / reference / "final.safetensors"),
        initial=read_tensors(folder / reference / "initial.safetensors"),
    )
    mine, theirs = (trajectory(name, [runs[name]]) for name in (run, reference))
    return certify(equivalence, mine, theirs, weights)


BITWISE, TOLERANCE = Bitwise(kind="bitwise"), Tolerance(kind="tolerance")


def test_equivalent_runs_and_runs_of_the_same_bits(tmp_path):
    changes = {"plain": {"model": PLAIN}, "usual": {}, "seldom": {"training": {"log_every": 4}}}
    runs = {
        name: recorded(spec_of(**sections), tmp_path / name, name != "plain").trajectory
        for name, sections in changes.items()
    }
    usual = runs["usual"]
    assert usual.losses[-1] < usual.losses[0], "a training without progress shows nothing"
    assert len(usual.losses) == len(usual.grad_norms) == spec_of().training.steps
    assert usual.replica_differences is None
    assert usual.as_timed is None, "its algorithms were those of a timed run"

    certificate = verdict(TOLERANCE, runs, tmp_path, "usual", "plain")
    assert certificate.status == "equivalent", certificate.reason
    assert certificate.left_out, "biases of keys"
    exact = verdict(BITWISE, runs, tmp_path, "usual", "plain")
    assert exact.status == "not_equivalent", "another order of sums is not the same bits"

    certificate = verdict(BITWISE, runs, tmp_path, "seldom", "usual")
    assert certificate.status == "equivalent", "however often the loss is read"
    same = {d.quantity for d in certificate.deviations if d.measured == 0}
    assert {"loss", "grad_norm", "weights"} <= same


def test_recording_does_not_disturb_the_training(tmp_path):
    spec = small_spec(model={"dropout": 0.3})
    run = recorded(spec, tmp_path).trajectory
    setup = small_setup(spec)

    class Quiet(Recorder):
        def updated(self, *_: Any) -> None:
            pass

    history = train(setup, Quiet(setup.strategy, Silent()), tmp_path / "none")
    logged = [step["loss"] for step in history.steps]
    assert run.losses == pytest.approx(logged, rel=1e-6)
    assert run.grad_norms == pytest.approx([step["grad_norm"] for step in history.steps])
    final = CanonicalTensors(setup, VOCABULARY).weights()
    assert digest(final) == digest(load_file(tmp_path / "final.safetensors"))


def test_short_runs_of_users_models_add_gradients_in_one_order_on_several_threads():
    torch.manual_seed(0)
    table, ids = torch.randn(9, 64, requires_grad=True), torch.randint(9, (64, 32))
    factor = torch.randn(*ids.shape, 64)

    def gradient() -> torch.Tensor:
        return torch.autograd.grad((table[ids] * factor).sum(), table)[0]

    before, switch = torch.get_num_threads(), torch.use_deterministic_algorithms
    try:
        torch.set_num_threads(2)
        users = ImportedModel(kind="import", factory="a:b")
        worker.make_deterministic(users, torch.device("cpu"))
        first = gradient()
        assert all(torch.equal(gradient(), first) for _ in range(5))
        switch(False)
        worker.make_deterministic(Transformer(kind="transformer"), torch.device("cpu"))
        assert not torch.are_deterministic_algorithms_enabled(), "its steps would be checked again"
    finally:
        torch.set_num_threads(before)
        switch(False)


def test_weights_have_the_same_names_and_initial_values_for_every_projection():
    fused, separate = (
        CanonicalTensors(small_setup(spec_of(model=changes)), VOCABULARY).weights()
        for changes in ({"qkv": {"kind": "fused"}}, PLAIN)
    )
    assert fused.keys() == separate.keys()
    assert digest(fused) == digest(separate)
    other = dict(fused)
    other["encoder.0.feed_forward.inner.bias"] = other["encoder.0.feed_forward.inner.bias"] + 1e-7
    assert digest(other) != digest(fused)


def test_a_loss_that_is_not_finite_has_a_status(tmp_path):
    setup = small_setup(spec_of())
    recorder = Recorder(setup.strategy, Silent())
    norm = torch.tensor(float("inf"))
    recorder.updated(1, 10, torch.tensor(20.0), norm)
    assert recorder.read(1, "0" * 64).grad_norms == [None]
    recorder.updated(2, 10, torch.tensor(float("nan")), norm)
    with pytest.raises(Diverged, match="step 2"):
        recorder.read(1, "0" * 64)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without CUDA")
def test_the_job_records_that_this_machine_cannot_run_it(tmp_path):
    spec = spec_of(machine={"device": "cuda"})
    (tmp_path / "spec.json").write_text(spec.canonical_json())
    output = tmp_path / "out"
    asked = ShortRun(spec=tmp_path / "spec.json", data=tmp_path, output=output, seeds=2)
    done = subprocess.run(command_of(asked), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = Trajectory.model_validate_json((output / "trajectory.json").read_text())
    assert (found.status, found.seeds) == ("unsupported", [])
    assert "CUDA device" in (found.reason or "")
    assert (output / "final.safetensors").exists()
    assert "trajectory.json" in found.provenance.command
    assert not list(output.glob("outcome-*.json"))


LOSSES = [[8.0, 6.0, 6.0 + 0.1 * number] for number in range(6)]
"""Losses of six seeds of a reference."""


@pytest.mark.parametrize(
    ("factors", "changes", "trained"),
    [
        ((1.0001, 0.9999, 1.0), {}, 3),
        ((1.02, 1.0201, 1.0199), {}, 3),
        ((1.004, 0.996, 1.001), {}, 6),
        ((1.004, 0.996, 1.001), {"budget": 0.0}, 3),
        ((1.0, 1.0, 1.0), {"reference": None, "first_look": 0}, 6),
    ],
    ids=["the same", "off", "noisy", "noisy and out of time", "nothing to compare"],
)
def test_seeds_are_trained_until_final_losses_decide_or_time_is_up(
    tmp_path, factors, changes, trained
):
    reference = trajectory("reference", [*starmap(seed_trajectory, enumerate(LOSSES, start=1))])
    file = tmp_path / "trajectory.json"
    file.write_text(reference.model_dump_json())
    spec = small_spec()
    fields = {"spec": spec, "data": tmp_path, "output": tmp_path, "command": "run"}
    limits = {"seeds": 6, "first_look": 3, "margin": 0.005, "budget": 1000.0, "reference": file}
    order = ShortRunOrder(**(fields | {"log_file": None} | limits | changes))
    strategy = small_setup(spec).strategy
    found: list[SeedTrajectory] = []
    began = time.monotonic() - 0.001
    while len(found) < order.seeds:
        off = factors[len(found) % 3]
        losses = [8.0, 6.0, LOSSES[len(found)][2] * off]
        found.append(seed_trajectory(len(found) + 1, losses))
        if worker._enough(order, found, strategy, began):
            break
    assert len(found) == trained
