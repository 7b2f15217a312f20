"""The relations, their page in the docs, and reasons why one cannot be tested."""

import re
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from transformer_core.audit import flow
from transformer_core.audit.probes import Probes
from transformer_core.audit.relations import KEPT, OF_CALLS, RELATIONS
from transformer_core.audit.replay import Call, State
from transformer_core.audit.updates import Updates
from transformer_core.audit.watcher import Watcher
from transformer_core.tune.boundaries import Boundaries
from transformer_core.tune.coordinator import Program, Side

PAGE = Path(__file__).resolve().parents[2] / "docs" / "audit.md"


def test_the_page_names_each_relation_as_the_report_does():
    table = PAGE.read_text(encoding="utf-8").partition("## The relations")[2].partition("\n## ")[0]
    found = {}
    for names, titles in re.findall(r"^\| (`.+?`) \| (.+?) \|", table, re.M):
        # A row of two relations has two titles; the second begins in the middle of a sentence.
        for name, title in zip(names.split(", "), titles.split("; "), strict=True):
            found[name.strip("`")] = title[0].upper() + title[1:]
    assert found == RELATIONS
    assert list(found) == list(RELATIONS), "another order"


class Adam(torch.optim.Optimizer):
    def step(self): ...


class Renamed(torch.optim.AdamW): ...


class Lars(torch.optim.SGD):
    def step(self): ...


@pytest.mark.parametrize(
    ("kind", "formula"),
    [(torch.optim.AdamW, "adamw"), (Adam, "adam"), (Renamed, "adamw"), (Lars, "")],
)
def test_an_optimizer_follows_the_formula_of_the_class_that_steps(kind, formula):
    weights = [nn.Parameter(torch.ones(1))]
    optimizer = kind(weights, {}) if kind is Adam else kind(weights, lr=0.1)
    assert Updates(optimizer, {}).kind == formula


def test_without_time_every_relation_of_calls_says_so(monkeypatch):
    probes = Probes(Call(nn.Linear(1, 1), (), {}, State(), None), Watcher(Boundaries()), [])
    monkeypatch.setattr(probes, "_again", lambda: None)
    probes.run(end=0.0)
    assert probes.notes.untested == dict.fromkeys(OF_CALLS, "no time was left")


def test_recomputation_by_other_means_is_not_called_compared(tmp_path, monkeypatch):
    class Run:
        def steps(self, side, count, record): ...
        def records(self, side): ...
        def facts(self, side):
            return {"without_effect": ["the script recomputes by other means"]}

    monkeypatch.setattr(flow, "session", contextmanager(lambda *given: iter([Run()])))
    monkeypatch.setattr(flow.Record, "read", lambda files: None)
    audit = flow.Audit(Program(("train.py",), tmp_path), tmp_path, print, 10)
    audit._without("recomputed", Side(KEPT), "recomputation", "")
    (notes,) = audit._notes
    assert notes.untested == {"recomputed": "the script recomputes by other means"}
    assert not notes.tested


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory):
    """A model in DistributedDataParallel, in a group of one."""
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("weight", "penalty", "named"), [(0.5, 0.0, True), (1.0, 0.0, False), (0.5, 0.5, False)]
)
def test_a_loss_divided_by_the_ranks_is_worth_a_look(wrapped, monkeypatch, weight, penalty, named):
    """With another term, the weight may be meant."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    watcher = Watcher(Boundaries())
    watcher.roots[0] = wrapped
    logits, targets = wrapped(torch.ones(6, 4)), torch.arange(6) % 3
    own = watcher.losses._loss("cross_entropy", nn.functional.cross_entropy, logits, targets)
    loss = weight * own + penalty * logits.square().mean()
    loss.backward()
    watcher.boundaries.losses = [loss.detach()]
    watcher.boundary()
    found = [(f.relation, f.sure) for f in watcher.found.findings]
    assert found == [("ranks", False)] * named
