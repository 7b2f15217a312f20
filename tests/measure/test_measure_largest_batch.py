"""The search for the largest batch that fits."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from schemas.config.data import TokenBudget
from schemas.config.measurement import LargestBatch
from schemas.config.run_spec import RunSpec
from schemas.errors import PeerLost
from schemas.results import Gpu
from tests.training.small_training import small_spec
from transformer_core.common.endings import failures
from transformer_core.measure import largest_batch as job
from transformer_core.measure.largest_batch import (
    BatchTrialOrder,
    Trials,
    find,
    first_size,
    limit_memory,
    memory_limit,
    search,
)
from transformer_core.parallel import nvml
from transformer_core.run import supervisor
from transformer_core.run.statuses import Outcome, write_outcome

MIB = 2**20
TWO_DEVICES = small_spec(parallel={"kind": "ddp"}, machine={"devices_per_node": 2})


@pytest.mark.parametrize("start", [1, 3, 64, 100, 1000])
@pytest.mark.parametrize("largest", [1, 2, 63, 64, 65, 99, 100, 1234])
@pytest.mark.parametrize("resolution", [0.0001, 0.1])
def test_the_search_ends_next_to_the_border(start, largest, resolution):
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= largest

    found = search(fits, start, resolution)
    assert found is not None
    low, high = found
    assert low <= largest < high
    assert high - low <= max(1, resolution * low)
    assert {low, high} <= set(tried)
    assert len(tried) == len(set(tried))
    assert len(tried) < 30


def test_the_search_ends_if_nothing_fits():
    tried: list[int] = []
    assert search(lambda size: bool(tried.append(size)), 9, 0.02) is None
    assert tried == [9, 4, 2, 1]


def order_of(spec: RunSpec, folder: Path) -> BatchTrialOrder:
    """Trials in ``folder`` under a limit."""
    return BatchTrialOrder(
        spec=spec,
        output=folder,
        command="",
        vocabulary=1000,
        pairs=1,
        source_tokens=20,
        target_tokens=20,
        limit=1200 * MIB,
    )


class Pretended(Trials):
    """Simulated trials on two devices: ``border`` pairs fit, except for ``surprises`` by number of
    the trial."""

    def __init__(self, surprises: dict[int, str] | None = None, border: int = 40) -> None:
        super().__init__(order_of(TWO_DEVICES, Path("nowhere")), LargestBatch().resolution)
        self.surprises, self.border = surprises or {}, border

    def _attempt(self, pairs: int) -> dict[str, Any]:
        status = "ok" if pairs <= self.border else "oom"
        status = self.surprises.pop(len(self.trials), status)
        ok = status == "ok"
        reason = None if ok else f"{status} at {pairs}"
        return {"status": status, "reason": reason, "peak_bytes": pairs if ok else None}


def test_the_answer_is_confirmed_and_a_step_more_fails_again():
    trials = Pretended()
    found = find(trials, 4)
    assert (found["status"], found["largest_pairs"], found["confirmed"]) == ("ok", 40, True)
    assert found["step_pairs"] == 2, "a pair for each device"
    last = [(trial.pairs, trial.purpose, trial.status) for trial in trials.trials[-2:]]
    assert last == [(40, "confirmation", "ok"), (42, "one_step_more", "oom")]

    confirmation, one_more = len(trials.trials) - 2, len(trials.trials) - 1
    found = find(Pretended({confirmation: "oom"}), 4)
    # The size that failed once fits again: the next one is the first that fails.
    assert (found["largest_pairs"], found["step_pairs"]) == (38, 4)

    again = Pretended({one_more: "ok"})
    found = find(again, 4)
    assert (found["largest_pairs"], found["confirmed"], found["reason"]) == (40, True, None)
    assert again.trials[-1].status == "oom"
    assert again.trials[-1].pairs == 40 + found["step_pairs"] > 42
    always = find(Pretended(dict.fromkeys(range(one_more, one_more + 9), "ok")), 4)
    assert always["confirmed"] is False
    assert "fitted after all" in always["reason"]


@pytest.mark.parametrize(
    ("trials", "status", "reason"),
    [
        (Pretended({2: "failed"}), "failed", "failed at"),
        (Pretended({2: "unsupported"}), "unsupported", "unsupported at"),
        (Pretended(border=1), "oom", "Not even the smallest batch fits. oom at 2"),
    ],
)
def test_without_an_answer_there_is_a_reason(trials, status, reason):
    found = find(trials, 4)
    assert (found["status"], found["largest_pairs"]) == (status, None)
    assert found["reason"].startswith(reason)


@pytest.mark.parametrize(("signal", "tried_again"), [(0, 1), (11, 0)])
def test_a_trial_that_fails_for_a_reason_that_may_pass_is_not_final(
    tmp_path, monkeypatch, signal, tried_again
):
    ended = Outcome(status="failed", reason="no space", again=True, signal=signal)
    monkeypatch.setattr(job, "attempt", lambda *_: ended)
    found = find(Trials(order_of(TWO_DEVICES, tmp_path / "ddp"), 0.1), 2)
    assert found["status"] == ("oom" if signal else "failed")
    assert failures(tmp_path / "ddp.json") == tried_again


def test_sizes_start_at_those_of_the_study():
    assert first_size(TWO_DEVICES, 10) == 4  # 8 pairs for two devices
    budget = TWO_DEVICES.model_copy(update={"batching": TokenBudget(tokens=700)})
    assert first_size(budget, 70) == 5


def test_without_a_limit_ranks_share_the_host(monkeypatch):
    own_share = job.read_hardware().memory_bytes // 2
    assert memory_limit(TWO_DEVICES, LargestBatch()) == ("data_segment", own_share)
    one_each = {"nodes": 2, "devices_per_node": 1, "link": {"bandwidth": "1 Gbit/s"}}
    linked = RunSpec(variant="v", parallel={"kind": "ddp"}, machine=one_each)
    assert memory_limit(linked, LargestBatch()) == ("data_segment", own_share)
    assert memory_limit(TWO_DEVICES, LargestBatch(limit="2GiB")) == ("data_segment", 2 * 2**30)
    # A limit of the shell cannot be raised, except by root.
    monkeypatch.setattr(job.resource, "getrlimit", lambda _: (10 * MIB, 70 * MIB))
    for asked in (LargestBatch(), LargestBatch(limit="2GiB")):
        assert memory_limit(TWO_DEVICES, asked) == ("data_segment", 70 * MIB)


@pytest.mark.parametrize(
    ("listed", "visible", "kind"),
    [
        (["GPU-a1"], None, "torch_allocator"),
        (["GPU-a1"], "", "data_segment"),
        (["GPU-a1"], "-1", "data_segment"),
        ([], None, "torch_allocator"),  # without NVML, torch lists only those that it can use
    ],
)
def test_a_run_on_the_cpu_of_a_host_with_hidden_gpus_has_the_limit_of_a_cpu(
    listed, visible, kind, monkeypatch
):
    gpu = Gpu(
        index=0,
        name="GPU",
        memory_bytes=MIB,
        compute_capability=None,
        driver="1",
        power_limit_watts=None,
    )
    found = job.read_hardware().model_copy(update={"gpus": [gpu]})
    monkeypatch.setattr(job, "read_hardware", lambda: found)
    monkeypatch.setattr(nvml, "uuids", lambda: listed)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    limit = MIB if kind == "torch_allocator" else found.memory_bytes
    assert memory_limit(small_spec(machine={"device": "auto"}), LargestBatch()) == (kind, limit)


def test_a_trial_takes_the_memory_of_a_hook_that_starts_late(tmp_path, monkeypatch):
    hook = {"kind": "powersgd", "start_step": 10}
    spec = small_spec(parallel={"kind": "ddp", "hook": hook}, machine={"devices_per_node": 2})
    seen: list[int] = []

    def strategy(parallel: Any, *_: Any) -> Any:
        seen.append(parallel.hook.start_step)
        raise RuntimeError("far enough")

    monkeypatch.setattr(job, "build_strategy", strategy)
    monkeypatch.setattr(job, "limit_memory", lambda *_: None)
    program: Any = SimpleNamespace(process=SimpleNamespace(device=torch.device("cpu")))
    with pytest.raises(RuntimeError, match="far enough"):
        job.work(order_of(spec, tmp_path), program)
    assert seen[0] < job.steps_of(spec.compressing_at_once())


def test_a_rank_that_a_library_ends_under_the_limit_has_run_out_of_memory(tmp_path, monkeypatch):
    """torchrun's exit code tells of it, and the report of another rank."""

    def end(order: Any) -> int:
        write_outcome(order.output, 0, PeerLost("rank 1 on host n1 does not answer"))
        return 134

    monkeypatch.setattr(supervisor, "run_workers", end)
    trials = Trials(order_of(TWO_DEVICES, tmp_path), LargestBatch().resolution)
    assert not trials.fits(4)
    assert "SIGABRT" in trials.trials[0].reason


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's RLIMIT_DATA")
def test_a_limit_below_what_a_process_needs_is_refused():
    with pytest.raises(ValueError, match=r"margin, is 1.00 MiB, but a process has \d+\.\d+ [MG]iB"):
        limit_memory(torch.device("cpu"), 2**20)


@pytest.mark.parametrize(("free", "fraction"), [(24, 0.75), (10, 0.5)])
def test_the_limit_on_a_gpu_allows_for_other_memory(monkeypatch, free, fraction):
    """torch's allocator does not count contexts, NCCL's buffers and other processes."""
    set_to = []
    gib = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * gib, 24 * gib))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 * gib)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: set_to.append(share)
    )
    limit_memory(torch.device("cuda", 0), 18 * gib)
    assert set_to == [fraction]
