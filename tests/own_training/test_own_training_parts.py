"""What a user's function must give, and what is said where it does not."""

import sys
from pathlib import Path

import pytest
import torch

from schemas.config.own_training import ImportedTask
from transformer_core.own_training.user_parts import checked_loss, load_parts, next_batch, place_of

MODULE = """
from torch import nn, optim

def loss(module, batch): return module(batch).mean()
def whole(rank, world_size, seed, width=3):
    batches = iter([1])
    return {"module": nn.Linear(width, 1), "batches": batches, "loss": loss, "optimizer": optim.SGD}
def more(**_): return whole(0, 1, 1) | {"clip_nom": 1.0}
def few(**_): return {"module": nn.Linear(1, 1), "batches": []}
def nothing(**_): return None
def no_module(**_): return whole(0, 1, 1) | {"module": 3}
def no_function(**_): return whole(0, 1, 1) | {"loss": 3}
def no_batches(**_): return whole(0, 1, 1) | {"batches": 3}
"""


def task(
    function: str = "whole", module: str = "their_own_training", **options: int
) -> ImportedTask:
    return ImportedTask(kind="import", factory=f"{module}:{function}", options=options)


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "their_own_training.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "their_own_training", raising=False)
    return tmp_path


def test_parts_and_options() -> None:
    parts = load_parts(task(width=5), 0, 1, 1)
    assert parts.module.in_features == 5
    assert parts.clip_norm == 0.0
    assert next_batch(task(), parts.batches) == 1
    assert place_of(parts.loss) == ("their_own_training.py", 4)
    assert place_of(lambda: None) is None
    assert place_of(load_parts) is None  # not below the current folder


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("more", "gives clip_nom, which is not known.*clip_norm"),
        ("few", "gives no loss and no optimizer; remedy: return a dictionary of module, batches"),
        ("nothing", "gives a NoneType"),
        ("no_module", "module is a int"),
        ("no_function", "loss is a int"),
        ("no_batches", "batches is a int"),
        ("hole", "has no function hole; remedy: .*whole"),
    ],
)
def test_what_is_wrong_is_said(function: str, message: str) -> None:
    with pytest.raises(
        ValueError, match=f"task.factory = their_own_training:{function}.*{message}"
    ):
        load_parts(task(function), 0, 1, 1)


def test_a_missing_module() -> None:
    with pytest.raises(
        ValueError, match="no module nowhere; remedy: start snakemake in the folder"
    ):
        load_parts(task(module="nowhere"), 0, 1, 1)


def test_batches_have_no_end_and_losses_are_scalars() -> None:
    with pytest.raises(ValueError, match="batches have an end"):
        next_batch(task(), iter([]))
    with pytest.raises(ValueError, match=r"loss gives a torch.float32 \[2\]"):
        checked_loss(task(), torch.zeros(2))
    with pytest.raises(ValueError, match="loss gives a float"):
        checked_loss(task(), 1.0)
