"""Certificates of a user's training, the choice of techniques, the report and the diff."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.config.equivalence import Statistical, Tolerance
from schemas.config.own_training import ImportedTask
from schemas.results import Interval
from schemas.results.own_training import (
    OwnCertificate,
    ShortTraining,
    StepFacts,
    TriedTogether,
)
from transformer_core.own_training.advice.script_changes import script_changes
from transformer_core.own_training.best_together import best_together, combinations
from transformer_core.own_training.own_certificate import Short, certify

FACTS = StepFacts(
    parameters=3,
    optimizer="AdamW",
    optimizer_fused=False,
    clip_norm=0.0,
    loss_place=None,
    optimizer_place=None,
)
EXACT, FEWER = Tolerance(kind="tolerance"), Statistical(kind="statistical")


def short(
    error: float = 0.0, loss: float = 0.0, norm: float = 0.0, first: str = "a", seeds: int = 1
) -> Short:
    losses = [[5.0 / (1 + step) * (1 + loss) for step in range(6)] for _ in range(seeds)]
    record = ShortTraining(
        losses=losses,
        norms=[[1.0 + norm] * 6] * seeds,
        initial_sha256=[first] * seeds,
        facts=FACTS,
        wide=False,
    )
    initial = {"w": np.zeros(4, np.float32), "b": np.zeros(2, np.float32)}
    final = {"w": np.full(4, 1.0 + error, np.float32), "b": np.ones(2, np.float32)}
    return Short(record, initial, final)


def test_rounding_is_the_same() -> None:
    found = certify(short(error=2e-6), short(), short(error=-1e-6), EXACT)
    assert found.word == "same"
    assert found.weights == pytest.approx(2e-6, rel=0.1)
    assert found.rounding == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize("fault", [{"error": 0.1}, {"loss": 1e-3}, {"norm": 0.01}, {"first": "b"}])
def test_a_fault_is_different(fault: dict[str, Any]) -> None:
    assert certify(short(**fault), short(), None, EXACT).word == "different"


def test_other_names_of_weights_are_different() -> None:
    other = short()
    renamed = Short(other.record, other.initial, {"v": other.final["w"]})
    assert certify(renamed, short(), None, EXACT).word == "different"


def test_fewer_bits_are_judged_by_the_course_of_the_loss() -> None:
    reference = short(seeds=3)
    assert certify(short(error=0.3, loss=1e-4, seeds=3), reference, None, FEWER).word == "same"
    assert certify(short(loss=0.05, seeds=3), reference, None, FEWER).word == "different"


SPEEDS = {"bf16": 1.5, "fp16": 1.6, "fused_optimizer": 1.2, "allocator_kept": 1.01, "tf32": 2.0}


def tried(names: Any, word: Any = "same") -> TriedTogether:
    return TriedTogether(
        techniques=list(names),
        status="ok",
        reason=None,
        certificate=OwnCertificate(word=word, reason=""),
        speed=None,
        verdict=None,
    )


def timed(all_tried: Any, together: float = 1.1) -> list[TriedTogether]:
    """Each by its speed; of several the best one, times ``together``."""
    found = []
    for one in all_tried:
        speed = max(SPEEDS[name] for name in one.techniques)
        speed *= together if len(one.techniques) > 1 else 1
        interval = Interval(median=speed, low=speed - 0.05, high=speed + 0.05, samples=9)
        verdict = "FASTER" if interval.low > 1 else "UNDECIDED"
        found.append(one.model_copy(update={"speed": interval, "verdict": verdict}))
    return found


def test_the_best_of_each_group_together() -> None:
    def judged(names: Any) -> TriedTogether:
        return tried(names, "different" if "tf32" in names else "same")

    everything, best = best_together(list(SPEEDS), judged, timed)
    # tf32 is fastest and another training; bf16 and fp16 exclude each other; one is not FASTER.
    assert best == ["fp16", "fused_optimizer"]
    assert [one.techniques for one in everything[len(SPEEDS) :]] == [["fp16", "fused_optimizer"]]


def test_together_may_be_slower() -> None:
    _, best = best_together(["bf16", "fused_optimizer"], tried, lambda t: timed(t, together=0.7))
    assert best == ["bf16"]


def test_nothing_may_be_faster() -> None:
    assert best_together(["allocator_kept"], tried, timed)[1] == []
    assert combinations(timed([tried(["bf16"])])) == []


SCRIPT = """import torch
import torch.nn.functional as F


def loss_of(model, batch):
    x, y = batch
    return F.mse_loss(model(x), y)


def optimizer_of(parameters):
    return torch.optim.AdamW(
        parameters,
        lr=0.1,
    )
"""


def task() -> ImportedTask:
    return ImportedTask(kind="import", factory="script:build")


def test_the_diff_applies_and_the_script_still_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    facts = FACTS.model_copy(
        update={"loss_place": ("script.py", 5), "optimizer_place": ("script.py", 10)}
    )
    names: Any = ["bf16", "fused_optimizer", "allocator_kept"]
    diff, words = script_changes(names, task(), facts, "cpu")
    (said,) = words
    assert "MALLOC_TRIM_THRESHOLD_" in said
    (tmp_path / "changes.diff").write_text(diff)
    subprocess.run(["git", "apply", "changes.diff"], check=True, capture_output=True)
    changed = (tmp_path / "script.py").read_text()
    assert '@torch.autocast("cpu", dtype=torch.bfloat16)\ndef loss_of' in changed
    found: dict[str, Any] = {}
    exec(compile(changed, "script.py", "exec"), found)
    import torch

    model = torch.nn.Linear(4, 4)
    optimizer = found["optimizer_of"](model.parameters())
    assert optimizer.param_groups[0]["fused"] is True
    seen = []
    model.register_forward_hook(lambda _, __, result: seen.append(result.dtype))
    found["loss_of"](model, (torch.ones(2, 4), torch.ones(2, 4))).backward()
    optimizer.step()
    assert seen == [torch.bfloat16]


def test_what_cannot_be_told_in_a_diff_is_told_in_words() -> None:
    diff, words = script_changes(["bf16", "fused_optimizer", "ddp"], task(), FACTS, "cuda")
    assert not diff
    assert "torch.autocast('cuda', dtype=torch.bfloat16)" in words[0]
    assert "fused=True" in words[1]
    assert "torchrun" in words[2]
