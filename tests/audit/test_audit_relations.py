"""The relations, their page in the docs, and reasons why one cannot be tested."""

import inspect
import itertools
import re
import sys
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

from tests.distributed import run_ranks
from transformer_core.audit import flow
from transformer_core.audit import watcher as watched
from transformer_core.audit.__main__ import text
from transformer_core.audit.data import read_again
from transformer_core.audit.losses import DROPOUTS, MEAN_LOSSES, Rows
from transformer_core.audit.probes.padding import _padded, padding
from transformer_core.audit.probes.probed_call import ProbedCall
from transformer_core.audit.probes.run import probe
from transformer_core.audit.probes.tokens import OTHER_TARGETS
from transformer_core.audit.relations import KEPT, NO_TIME, OF_CALLS, RELATIONS, Answer, Notes
from transformer_core.audit.replay import Call, State, evaluating, refused
from transformer_core.audit.side import Audited, functions
from transformer_core.audit.stepping import Stepped, Stepping, _may_use
from transformer_core.audit.terms import Terms
from transformer_core.audit.updates import Updates
from transformer_core.audit.watcher import Watcher, _active
from transformer_core.tune.boundaries import Boundaries, replacing
from transformer_core.tune.coordinator import Program, Side
from transformer_core.tune.records import Record, sketch

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


@pytest.mark.parametrize(
    ("kind", "options"),
    [("SGD", {"momentum": 0.9}), ("Adam", {"weight_decay": 0.1}), ("AdamW", {})],
)
def test_a_fused_kernel_gets_scaled_gradients_and_steps_to_leave_out(kind, options):
    """From a GradScaler: a correct update of them follows the formula."""
    weights = [nn.Parameter(torch.ones(40)) for _ in range(2)]
    optimizer = getattr(torch.optim, kind)(weights, lr=0.1, fused=True, **options)
    updates, found = Updates(optimizer, {}), []
    optimizer.register_step_pre_hook(lambda *_: updates.before())
    optimizer.register_step_post_hook(lambda *_: found.extend(updates.after()))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024)
    for step in range(5):
        optimizer.zero_grad()
        loss = (weights[0] * torch.randn(40)).square().mean() + weights[1].square().mean()
        scaler.scale(loss).backward()
        if step == 2:
            weights[1].grad[0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
    assert (found, updates.steps) == ([], 4)


class Handwritten(torch.optim.Optimizer):
    """The AdamW of older versions of transformers; with ``rank``, of the first rows alone."""

    __hash__ = None  # as if it were a dataclass

    def __init__(self, weights, **options):
        defaults = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-2, "weight_decay": 1e-3}
        super().__init__(weights, defaults | options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                part = slice(group.get("rank"))
                gradient, state = weight.grad[part], self.state[weight]
                if not state:
                    zeros = torch.zeros_like(gradient)
                    state |= {"step": 0, "exp_avg": zeros, "exp_avg_sq": zeros}
                state["step"] += 1
                for name, beta, new in zip(
                    ("exp_avg", "exp_avg_sq"), group["betas"], (gradient, gradient**2), strict=True
                ):
                    state[name] = state[name].lerp(new, 1 - beta)
                rate = group["lr"] * group.get("wrong", 1.0)
                if group.get("correct_bias", True):
                    one, two = (1 - beta ** state["step"] for beta in group["betas"])
                    rate *= two**0.5 / one
                weight[part] -= (
                    rate * state["exp_avg"] / (state["exp_avg_sq"].sqrt() + group["eps"])
                )
                weight *= 1 - group["lr"] * group["weight_decay"] * ("wrong" not in group)


Handwritten.__name__ = "AdamW"
Handwritten.step.__qualname__ = "AdamW.step"


@pytest.mark.parametrize(
    ("options", "different"),
    [({}, 0), ({"correct_bias": False}, 0), ({"rank": 5}, 0), ({"wrong": 2.0}, 1)],
)
def test_a_handwritten_optimizer_may_add_epsilon_first_or_train_a_projection(options, different):
    """As in BERT and GaLore. What differs in many tensors is said once."""
    weights = [nn.Parameter(torch.ones(40)) for _ in range(3)]
    optimizer = Handwritten(weights, **options)
    watch = SimpleNamespace(
        named=lambda: [(str(n), p) for n, p in enumerate(weights)], found=Notes()
    )
    stepping = Stepping(watch)
    stepping._made(lambda made: None, optimizer)
    assert stepping.held() == {*map(id, weights)}
    known = Stepped(optimizer, Updates(optimizer, {id(p): n for n, p in watch.named()}))
    for _ in range(3):
        for weight in weights:
            weight.grad = 0.01 * torch.randn(40)
        known.updates.before()
        optimizer.step()
        stepping._judge_updates(known)
    assert [f.where for f in watch.found.findings] == ["0, 1 and 1 more (AdamW)"] * different
    assert ("update" in watch.found.untested) == ("rank" in options)


@pytest.mark.parametrize(
    ("file", "sure"),
    [("/home/me/optim.py", True), ("/usr/lib/python3/dist-packages/fairseq/adam.py", False)],
)
def test_a_library_may_call_another_formula_by_the_name(file, sure, monkeypatch):
    """As fairseq, whose Adam decays the weights themselves."""

    def step(self): ...

    step.__qualname__, step.__module__ = "Adam.step", "fairseq.adam"
    made = type("Adam", (torch.optim.Adam,), {"step": step})
    monkeypatch.setitem(sys.modules, "fairseq.adam", SimpleNamespace(__file__=file))
    weight = nn.Parameter(torch.ones(40))
    optimizer = made([weight], weight_decay=0.1)
    stepping = Stepping(SimpleNamespace(found=Notes()))
    known = Stepped(optimizer, Updates(optimizer, {id(weight): "weight"}))
    weight.grad = torch.randn(40)
    known.updates.before()
    with torch.no_grad():
        weight -= 1e-3 * (weight.grad.sign() + 0.1 * weight)
    stepping._judge_updates(known)
    assert [(f.relation, f.sure) for f in stepping.notes.findings] == [("update", sure)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("RMSprop", {}),
        ("RMSprop", {"momentum": 0.9, "alpha": 0.9, "weight_decay": 0.1}),
        ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ],
)
@pytest.mark.parametrize("wrong", [False, True])
def test_an_update_follows_its_formula(name, options, wrong):
    weight = nn.Parameter(torch.ones(40))
    optimizer = getattr(torch.optim, name)([weight], lr=0.1, **options)
    updates, found = Updates(optimizer, {}), []
    for _ in range(5):
        weight.grad = torch.randn(40)
        updates.before()
        optimizer.step()
        weight.data += 0.1 * wrong
        found += updates.after()
    assert (bool(found), updates.usable, updates.steps) == (wrong, True, 5)


def test_a_step_that_is_a_plain_function_follows_no_known_formula():
    def step(self, closure=None):
        pass

    step.__qualname__ = "step"
    optimizer = type("Adam", (torch.optim.Adam,), {"step": step})([nn.Parameter(torch.ones(2))])
    assert not Updates(optimizer, {}).usable


def test_a_package_may_use_gradients_before_it_deletes_them():
    packages = Path(torch.__file__).parents[1]
    assert _may_use(str(packages / "sam" / "sam.py"))
    assert _may_use("/home/me/train.py")
    assert not _may_use(nn.utils.clip_grad.__file__)
    assert not _may_use(inspect.getfile(Stepping))


@pytest.mark.parametrize(("spared", "said"), [("bias", 1), ("LayerNorm", 0)])
def test_a_group_without_decay_that_gets_no_bias_is_seen(spared, said):
    """The script compares whole names; without biases, the group may be empty."""
    model = nn.Sequential(nn.Linear(4, 4, bias=bool(said)))
    groups: list[dict[str, Any]] = [
        {"params": [p for n, p in model.named_parameters() if n != spared]},
        {"params": [], "weight_decay": 0.0},
    ]
    stepped = {0: SimpleNamespace(optimizer=torch.optim.AdamW(groups))}
    watch = SimpleNamespace(named=lambda: [*model.named_parameters()], roots={})
    notes = Notes()
    Stepping.decayed(SimpleNamespace(watch=watch, stepped=stepped), notes)  # type: ignore[arg-type]
    assert [f.where for f in notes.findings] == ["0.bias"] * said


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_no_call_is_repeated_after_the_time(calls, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: next(ticks))
    repeated = []
    model = nn.Sequential(nn.Linear(4, 2))
    model.register_forward_hook(lambda *_: repeated.append(1))
    call = Call(model, (torch.ones(2, 3, 4),), {}, State(), None)
    notes = probe(call, Watcher(Boundaries()), [], end=calls - 1)
    assert len(repeated) == calls
    late = ("samples", "precision") if calls else OF_CALLS
    assert {notes.untested[name] for name in late} == {NO_TIME}
    functions([(None, (), "", {})], notes, end=0.0)
    assert notes.untested["slope"] == NO_TIME


def test_recomputation_by_other_means_is_not_called_compared(tmp_path, monkeypatch):
    class Run:
        def steps(self, side, count, record): ...
        def records(self, side): ...
        def facts(self, side):
            return {"without_effect": ["the script recomputes by other means"]}

    monkeypatch.setattr(flow, "session", contextmanager(lambda *given, say: iter([Run()])))
    monkeypatch.setattr(flow.Record, "read", lambda files: None)
    audit = flow.Audit(Program(("train.py",), tmp_path), tmp_path, print, 10)
    audit._without("recomputed", Side(KEPT), "recomputation", "")
    (notes,) = audit._notes
    assert notes.untested == {"recomputed": "the script recomputes by other means"}
    assert not notes.tested


def trained(sharded):
    """Trains one rank on its own rows; returns the notes of its audit, and its weights."""
    torch.manual_seed(0)
    model = nn.Linear(8, 16)
    nn.init.zeros_(model.bias)
    if sharded:
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    boundaries = Boundaries()
    boundaries.modules = [model]
    boundaries.optimizers = [torch.optim.SGD(model.parameters(), lr=0.1)]
    weights = {f"0 weight {name}": sketch(p) for name, p in boundaries.parameters()}
    rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(torch.distributed.get_rank()))
    model(rows).square().mean().backward()
    boundaries.optimizers[0].step()
    weights |= {f"1 weight {name}": sketch(p) for name, p in boundaries.parameters()}
    return {"audit": Watcher(boundaries).notes()}, weights


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [True, False])
def test_shards_that_begin_equal_may_differ_later_but_copies_may_not(sharded, tmp_path):
    facts, weights = zip(*run_ranks(trained, 2, sharded), strict=True)
    audit = flow.Audit(Program(("train.py",), tmp_path), tmp_path, print, 10)
    audit._ranks([*facts], Record([*weights]))
    causes = [found.cause for notes in audit._notes for found in notes.findings]
    assert len(causes) == (not sharded)
    assert all("its gradient is not averaged" in cause for cause in causes)


class FSDPLinear(nn.Linear):
    """A layer with the name that fully_shard gives it."""


def test_a_compiled_model_may_have_sharded_weights():
    seen = {"modules": [nn.Sequential(FSDPLinear(2, 2))]}
    watcher = Watcher(Boundaries())
    rank = {"order": SimpleNamespace(probe_seconds=1.0), "boundaries": SimpleNamespace(**seen)}
    rank |= {"watcher": watcher, "calls": [], "functions": [], "used": {}, "_gathered": print}
    Audited._probe(SimpleNamespace(**rank))  # type: ignore[arg-type]
    reasons = {watcher.found.untested[name] for name in OF_CALLS}
    assert reasons == {"its weights are sharded over ranks"}


def probed(model, *inputs):
    """The notes on one call of a model."""
    return probe(Call(model, inputs, {}, State(), None), Watcher(Boundaries()), [])


class Noisy(nn.Linear):
    always = False

    def forward(self, x):
        x = super().forward(x)
        return x + torch.randn_like(x) if self.training or self.always else x


class Coarse(nn.Linear):
    """Multiplies as a GPU does with TensorFloat-32, which has as many bits of precision as float16."""

    def forward(self, x):
        rounded = (t if t.dtype == torch.float64 else t.half().float() for t in (x, self.weight))
        return functional.linear(*rounded, self.bias)


@pytest.mark.parametrize(("products", "wrong"), [("tf32", False), ("ieee", True)])
def test_products_in_fewer_bits_are_rounding_if_torch_is_set_to_them(products, wrong, monkeypatch):
    monkeypatch.setattr(
        "transformer_core.audit.probes.precision.formats_of_products", lambda *_: {products}
    )
    found = probed(Coarse(256, 256), torch.randn(16, 4, 256)).findings
    assert [each.relation for each in found] == ["precision"] * wrong


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8)

    def forward(self, tokens):
        return self.words(tokens * (torch.rand(tokens.shape) < 0.7) if self.training else tokens)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [(Noisy(32, 32), torch.randn(16, 4, 32)), (Words(), torch.randint(50, (16, 12)))],
    ids=["noise", "words left out"],
)
def test_noise_of_the_model_is_no_rounding(model, inputs):
    notes = probed(model, inputs)
    assert not notes.findings
    assert "precision" in notes.tested


def test_a_model_that_always_adds_noise_has_no_result_in_64_bits():
    model = Noisy(32, 32)
    model.always = True
    assert "draws random numbers" in probed(model, torch.randn(16, 4, 32)).untested["precision"]


class Experts(nn.Module):
    """Each expert takes the first tokens that choose it, and no more than it has room for."""

    def __init__(self, room=12, mix=0.0, sees=False):
        super().__init__()
        self.room, self.mix, self.sees = room, mix, sees
        self.words, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)
        self.router, self.experts = nn.Linear(8, 2), nn.Parameter(torch.randn(2, 8, 8))

    def forward(self, tokens, labels):
        x = self.words(tokens)
        x = x + self.mix * x.mean(0, keepdim=True) + x.roll(-1, 1) * self.sees
        x = x.flatten(0, 1)
        chosen = functional.one_hot(self.router(x).argmax(-1), 2)
        taken = chosen * (chosen.cumsum(0) <= self.room)
        x = x + torch.einsum("te,tc,ecd->td", taken.to(x), x, self.experts)
        return functional.cross_entropy(self.head(x), labels.flatten())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"room": 96}, {}),
        ({}, {"samples": False}),
        ({"mix": 0.5}, {"samples": True}),
        ({"sees": True}, {"samples": False, "later": True}),
    ],
    ids=["room for all", "room for few", "a mean over the samples", "sees its target"],
)
def test_experts_with_room_for_few_tokens_are_worth_a_look(changes, expected, watcher):
    """Which tokens find room depends on others, on purpose, and only by decisions. Within a sample, no
    prediction sees a later token."""
    torch.manual_seed(0)
    text = torch.randint(50, (8, 13))
    call = Call(Experts(**changes), (text[:, :-1], text[:, 1:]), {}, State(), None)
    notes = probe(call, watcher, [])
    found = {f.relation: f.sure for f in notes.findings}
    assert {name: found[name] for name in ("samples", "later") if name in found} == expected
    assert "later" in notes.tested


class Weighted(nn.Module):
    """Takes the mean of a loss without reduction over the targets that a mask counts."""

    def __init__(self, masked, inside):
        super().__init__()
        self.masked, self.inside = masked, inside
        self.words, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, tokens, attention_mask):
        logits = self.head(self.words(tokens))
        return self.loss(logits, tokens, attention_mask) if self.inside else logits

    def loss(self, logits, tokens, mask):
        rows, wanted = logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
        losses = functional.cross_entropy(rows, wanted, reduction="none")
        counts = mask[:, 1:].flatten() if self.masked else torch.ones_like(wanted)
        return (losses * counts).sum() / counts.sum()


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_a_mask_leaves_places_under_the_padding_out_of_a_loss(masked, inside, watcher):
    mask = (torch.arange(12) < torch.randint(4, 12, (16, 1))).long()
    tokens = torch.randint(1, 50, (16, 12)) * mask
    model = Weighted(masked, inside)
    call = Call(model, (tokens, mask), {}, State(), None)
    outside = []
    if not inside:
        logits = model(tokens, mask)
        outside = watcher.listening = []
        (gradient,) = torch.autograd.grad(model.loss(logits, tokens, mask), logits)
        watcher.listening = None
        call.touched.append((gradient != 0).any(-1))
    notes = probe(call, watcher, [(name, x.detach(), wanted) for name, x, wanted in outside])
    found = {f.where for f in notes.findings if f.relation == "padding"}
    assert found == (set() if masked else {"the targets of Weighted"})
    assert "padding" in notes.tested


@pytest.mark.parametrize(
    ("name", "is_padding"),
    [("attention_mask", True), ("lm_mask", False), ("loss_mask", False), ("film_mask", True)],
)
def test_a_mask_for_the_loss_does_not_say_what_is_padding(name, is_padding):
    class Model(nn.Linear):
        pass

    tokens, mask = torch.ones(2, 3), torch.tensor([[1, 1, 0], [1, 0, 0]])
    parameters = [
        inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("x", name)
    ]
    Model.forward = lambda self, *args: None
    Model.forward.__signature__ = inspect.Signature(
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *parameters]
    )
    hidden, masked = _padded(Call(Model(1, 1), (tokens, mask), {}, State(), None), tokens)
    assert (masked, hidden is not None) == (is_padding, is_padding)


class Graph(nn.Embedding):
    def forward(self, atoms, edges):
        x = super().forward(atoms).sum(1)
        return x.index_add(0, edges[1], x[edges[0]])


def test_nodes_that_edges_join_are_no_samples():
    around = torch.arange(30)
    notes = probed(Graph(10, 8), torch.randint(10, (30, 4)), torch.stack([around, around.roll(1)]))
    assert not notes.findings
    assert "edges" in notes.untested["samples"]


class Scaled(nn.Linear):
    """Uses ``scale`` alone of its further arguments."""

    def forward(self, x, scale, shift, labels, ones):
        return super().forward(x) * scale


class Passed(Scaled):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize(("model", "name"), [(Scaled, "shift"), (Passed, "args[2]")])
def test_an_argument_without_effect_is_named_unless_it_is_a_target_or_the_same_everywhere(
    model, name
):
    x, scale, shift, labels = (torch.randn(16, 4, n) for n in (8, 1, 1, 1))
    given = {"labels": labels, "ones": torch.ones(16, 4, 1)}
    call = Call(model(8, 8), (x, scale, shift), given, State(), None)
    found = probe(call, Watcher(Boundaries()), []).findings
    assert [(f.relation, f.where.split()[0]) for f in found] == [("inputs", name)]


class Padded(nn.Linear):
    """Takes a batch in an object, too, and mixes its samples."""

    def forward(self, x, batch):
        return super().forward(x + batch.tensors.mean(0))


def test_samples_inside_an_object_are_not_called_replaced():
    batch = SimpleNamespace(tensors=torch.randn(16, 4, 8))
    how = probed(Padded(8, 8), torch.randn(16, 4, 8), batch).tested["samples"]
    assert how.endswith(
        "replaced by another, but not in SimpleNamespace, whose tensors are its attributes"
    )


class Similar(nn.Linear):
    """A loss of all samples together, which is the same in any order."""

    def forward(self, samples):
        return (samples.double() @ samples.double().T).round().sum()


def test_a_loss_that_is_the_same_for_each_order_of_the_samples_depends_on_them():
    assert not probed(Similar(8, 8), torch.randn(16, 8)).findings


class Neighbours(nn.Linear):
    """Adds up the nodes that edges join, in a sparse matrix."""

    def forward(self, edges, nodes, unused):
        return torch.mm(edges, super().forward(nodes))


def test_a_model_in_data_parallel_is_tested_by_its_own_name_and_arguments():
    inputs = (torch.randn(16, 4, n) for n in (8, 1, 1, 1))
    (found,) = probed(nn.DataParallel(Scaled(8, 8)), *inputs, torch.ones(16, 4, 1)).findings
    assert found.where == "shift of Scaled"


def test_other_arguments_are_tested_beside_a_sparse_one():
    edges = torch.rand(16, 16).round().to_sparse()
    notes = probed(Neighbours(8, 8), edges, torch.randn(16, 8), torch.randn(16))
    assert [f.where for f in notes.findings if f.relation == "inputs"] == ["unused of Neighbours"]


class Centred(nn.Sequential):
    """Takes the mean of the samples away, between its layers."""

    def forward(self, images):
        y = self[0](images)
        return self[1](y - y.mean(0))


class Tempered(nn.Module):
    """Multiplies by a tensor without axes."""

    def forward(self, x, by):
        return x.softmax(0) * by


class Halved(nn.Sequential):
    def forward(self, images):
        return self[0](images, torch.tensor(0.5))


@pytest.mark.parametrize(
    ("model", "where"),
    [
        (nn.Sequential(nn.Softmax(0)), "Softmax"),
        (Halved(Tempered()), "Tempered"),
        (Centred(nn.Linear(4, 4), nn.Linear(4, 4)), "the input of Linear"),
    ],
)
def test_samples_that_a_layer_mixes_are_found(model, where):
    (found,) = probed(model, torch.randn(16, 3, 4, 4)).findings
    assert (found.relation, found.where) == ("samples", where)


@pytest.mark.parametrize(("length", "end"), [(40, "y"), (400, "...")])
def test_a_reason_quotes_the_line_of_an_error_to_its_end(length, end):
    why = refused(ValueError("x " * length + "y\nmore"))
    assert why.startswith("a repeated call fails: ValueError: x x")
    assert why.endswith(f"x {end}")


def test_the_step_of_an_optimizer_adds_up_no_terms_of_a_loss():
    terms, weight = Terms(SimpleNamespace(closely=True)), nn.Parameter(torch.tensor(-5.0))
    with torch.no_grad():
        terms._sum(Tensor.add_, weight, torch.ones(()))
    weight.square().backward()
    assert not terms._terms
    terms._sum(Tensor.add, weight, torch.ones(())).backward()
    assert [*terms._terms.values()] == [[-4.0]]


@pytest.mark.parametrize(
    ("loss", "seen"),
    [
        (lambda prediction, term: prediction + term.detach(), True),
        (lambda prediction, term: 0.5 * (term.detach() + prediction), True),
        (lambda prediction, term: prediction + term, False),
        (lambda prediction, term: prediction + term.detach() * 0 + 1, False),  # a constant
        (lambda prediction, term: (term.detach() - prediction) ** 2, False),  # a target
    ],
)
def test_a_term_without_a_gradient_is_worth_a_look(loss, seen):
    terms, found = Terms(SimpleNamespace(closely=True)), Notes()
    weight = nn.Parameter(torch.tensor(2.0))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("__add__", "__sub__"):
            original = getattr(Tensor, name)
            patch.setattr(Tensor, name, lambda *given, o=original: terms._sum(o, *given))
        for step in range(5):
            terms._sums.clear()
            loss(weight * step, weight**2 * (step + 1)).backward()
    terms.judge(found)
    assert ["has no gradient" in each.cause for each in found.findings] == [True] * seen


class Critic(nn.Module):
    """The discriminator of StyleGAN: the deviation within groups of the batch is one of its features. A
    faulty one takes its attention over the batch."""

    def __init__(self, faulty):
        super().__init__()
        self.faulty = faulty
        self.last = nn.Conv2d(3 + (3 if faulty else 1), 1, 4)

    def forward(self, x):
        groups = x.view(4, -1, *x.shape[1:])
        more = groups.std(0).mean((1, 2, 3), keepdim=True).repeat(4, 1, *x.shape[2:])
        return self.last(torch.cat([x, x.softmax(0) if self.faulty else more], 1)).flatten(1)


@pytest.mark.parametrize("faulty", [False, True])
def test_a_number_of_the_batch_among_the_features_may_be_meant(faulty):
    (found,) = probed(Critic(faulty), torch.randn(8, 3, 4, 4)).findings
    assert (found.relation, found.where, found.sure) == ("samples", "the input of Conv2d", faulty)


def test_as_many_classes_as_samples_are_no_missing_rows():
    why = probed(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), torch.randn(8, 3, 4, 4)).untested
    assert (
        why["samples"] == "no result has one row for each sample, and a different number of columns"
    )


class Packed(nn.GRU):
    """Returns as many places as the longest sample of the batch has, or mixes samples."""

    def __init__(self, mixes, axis):
        super().__init__(8, 8, batch_first=True)
        self.mixes, self.axis = mixes, axis

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        x = nn.utils.rnn.pad_packed_sequence(super().forward(packed)[0], batch_first=True)[0]
        return (x.cumsum(0) if self.mixes else x).movedim(1, self.axis)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("mixes", [False, True])
def test_a_batch_without_its_longest_sample_may_have_fewer_places(mixes, axis):
    found = probed(
        Packed(mixes, axis), torch.randn(5, 9, 8), torch.tensor([9, 7, 6, 6, 2])
    ).findings
    assert [f.relation for f in found] == ["samples"] * mixes


class Sorted(nn.Module):
    """Sorts its samples by their length, and returns the order or keeps it for itself."""

    def __init__(self, returned):
        super().__init__()
        self.last, self.returned = nn.Sequential(nn.Linear(8, 3), nn.Dropout()), returned

    def forward(self, x, lengths):
        lengths, order = lengths.sort(descending=True)
        y = (self.last(x[order]) * (torch.arange(9) < lengths[:, None])[..., None]).sum(1)
        return (y, order) if self.returned else y


@pytest.mark.parametrize("lengths", [[2, 7, 9, 6, 3], [3, 2, 9, 8, 7]], ids=["moves", "stays"])
@pytest.mark.parametrize(("returned", "outside"), [(True, True), (False, True), (False, False)])
def test_a_model_may_sort_its_samples_if_it_returns_the_order(returned, outside, lengths):
    model, inputs = Sorted(returned), (torch.randn(5, 9, 8), torch.tensor(lengths))
    losses = [("cross_entropy", torch.randn(5, 3), torch.arange(5) % 3)] * outside
    notes = probe(Call(model, inputs, {}, State(), None), Watcher(Boundaries()), losses)
    found = [f for f in notes.findings if f.relation == "samples"]
    assert [(f.sure, "in other rows" in f.cause) for f in found] == [(outside, True)] * (
        not returned
    )


class Contrast(nn.Linear):
    """Similarities of the sentences of each sample with those of all others."""

    def forward(self, x):
        one, *others = super().forward(x).transpose(0, 1)
        return torch.cat([one @ other.T for other in others], 1)


@pytest.mark.parametrize("views", [2, 3])
def test_scores_of_each_sample_with_all_others_mix_no_samples(views):
    notes = probed(Contrast(8, 8), torch.randn(6, views, 8))
    assert not notes.findings
    assert notes.untested["samples"].startswith("no result has one row for each sample, ")


class Pair(nn.Module):
    """Attention over both sentences of a pair, whose words know to which they belong."""

    def __init__(self):
        super().__init__()
        self.words, self.segments = nn.Embedding(40, 16), nn.Embedding(3, 16)
        self.head = nn.Linear(16, 40)

    def forward(self, tokens, segment_label, targets):
        x = self.words(tokens) + self.segments(segment_label)
        logits = self.head(nn.functional.scaled_dot_product_attention(x, x, x))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_the_sentences_of_a_pair_are_no_packed_documents():
    tokens, targets = torch.randint(40, (2, 8, 12))
    segments = (torch.arange(12) > 5).long().expand(8, 12).contiguous() + 1
    notes = probed(Pair(), tokens, segments, targets)
    assert notes.untested["documents"] == "segments are embedded: parts of one text"


class Rounded(torch.autograd.Function):
    """Rounds to 8 bits, and passes the gradient on as if it did not."""

    @staticmethod
    def forward(ctx, x):
        return (x * 32).round() / 32

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Spike(Rounded):
    @staticmethod
    def forward(ctx, x):
        return (x > 0).float()


class Twice(Rounded):
    @staticmethod
    def forward(ctx, x):
        return x + x


class Reversed(Rounded):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Clamped(Rounded):
    """Passes the gradient on also where it cuts its argument off, so that this can come back."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(-0.5, 0.5)


class Doubled(Clamped):
    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (Rounded, []),
        (Spike, []),
        (Reversed, []),
        (Twice, [True]),
        (Clamped, [False]),
        (Doubled, [True]),
    ],
)
def test_a_step_function_has_no_slope(kind, found):
    notes = Notes()
    functions([(kind, [torch.randn(512, 512, requires_grad=True)], "train.py:1", {})], notes)
    assert [each.sure for each in notes.findings] == found, notes
    assert "slope" in notes.tested or "slope" in notes.untested


def test_the_default_device_of_a_script_may_be_another_than_that_of_its_model():
    notes, model = Notes(), nn.Linear(8, 8)
    given = torch.randn(4, 8)
    with torch.device("meta"):
        functions([(Twice, [given.requires_grad_()], "train.py:1", {})], notes)
        assert "precision" in probed(model, given.detach()).tested
    assert notes.findings


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory):
    """A model in DistributedDataParallel, in a group of one."""
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
    torch.distributed.destroy_process_group()


@pytest.fixture
def watcher(monkeypatch):
    """A watcher of the losses of this process."""
    owners = {owner: ["log_softmax", "softmax", "mean"] for owner in (torch, Tensor)}
    owners[Tensor] += ["__sub__", "sub", "__mul__", "mul"]
    owners[functional] = ["log_softmax", "kl_div", "logsigmoid", *MEAN_LOSSES, *DROPOUTS]
    for owner, names in owners.items():
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))
    made = Watcher(Boundaries())
    made.losses.install()
    return made


@pytest.mark.parametrize("owner", [torch, functional, Tensor])
def test_log_probabilities_are_counted_once(owner, watcher):
    owner.log_softmax(torch.randn(4, 3, requires_grad=True), -1)
    assert len(watcher.losses.rows) == 1


@pytest.mark.parametrize(
    ("prediction", "target", "pairs"),
    [
        ((4, 1), (4,), True),
        ((4, 1), (4, 1), False),
        ((4, 3), (3,), False),
        ((4, 1, 1), (1, 4, 1), False),  # as in quantile regression: the axes were put in on purpose
        ((4, 1), (4, 4), True),  # rewards (4) and values (4, 1) were added up
        ((4, 4), (4, 1), True),
        ((4, 4), (4, 4), False),
        ((4, 1), (4, 3), False),
        ((1, 1), (1, 1), False),
    ],
)
def test_a_loss_of_all_pairs_is_found(prediction, target, pairs, watcher):
    functional.mse_loss(torch.randn(prediction), torch.randn(target))
    assert bool(watcher.found.findings) == pairs


def test_every_epoch_of_a_sampler_has_its_own_order():
    sampler = DistributedSampler(range(8), num_replicas=2, rank=0)
    for epochs, same in (((0, 0), False), ((0, 1, 2), False), ((0, 0, 0), True)):
        watcher = Watcher(Boundaries())
        for epoch in epochs:
            sampler.set_epoch(epoch)
            watcher._share(iter, sampler)
        watcher.steps = 1
        found = Notes(**watcher.notes()["notes"]).findings
        assert [f["relation"] for f in found] == ["ranks"] * same


def test_padding_that_only_an_index_marks_is_not_replaced(watcher):
    """A token in its place would be a real one: a convolution may then give another result."""

    class Convolution(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(9, 4, padding_idx=0)
            self.layer, self.head = nn.Conv1d(4, 4, 2), nn.Linear(4, 3)

        def forward(self, words):
            return self.head(self.layer(self.embedding(words).transpose(1, 2)).amax(-1))

    model, words = Convolution(), torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    call = Call(model, (words,), {}, State(), None)
    outside = [("cross_entropy", model(words).detach(), torch.tensor([1, 2]))]
    probed = ProbedCall(call, watcher, outside)
    probed.repeat()
    padding(probed)
    assert probed.notes.findings == []


@pytest.mark.parametrize("read", [None, "all places", "real places"])
def test_places_under_padding_that_an_index_marks_are_no_targets(read, watcher):
    model = nn.Sequential(nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 9))
    words = torch.randint(1, 9, (8, 6)).masked_fill(torch.arange(6) >= 4, 0)
    wanted = torch.randint(1, 9, (8, 6)).masked_fill(words == 0, 0)  # as of a masked model
    logits = model(words)
    call = Call(model, (words,), {}, State(), None)
    if read is not None:
        call.touched.append((words > 0) | (read == "all places"))
    notes = probe(
        call, watcher, [("cross_entropy", logits.detach().flatten(0, 1), wanted.flatten())]
    )
    found = [(f.relation, f.sure) for f in notes.findings]
    assert found == [("padding", False)] * (read == "all places")
    assert ("padding" in notes.tested) == (read is not None)
    assert read or notes.untested["padding"] == OTHER_TARGETS


@pytest.mark.parametrize("forced", [range(9), [3]], ids=["teacher forcing", "at one place"])
def test_a_script_may_cut_places_along_the_first_axis_and_step_before_the_call_is_repeated(forced):
    """As in a decoder whose first prediction is left empty."""

    class Decoder(nn.GRU):
        def forward(self, words):
            x = nn.functional.one_hot(words, 8).to(self.weight_ih_l0)
            x = torch.stack([each * (place in forced) for place, each in enumerate(x)])
            return super().forward(torch.cat([torch.zeros_like(x[:1]), x[:-1]]))[0]

    model, words = Decoder(8, 8), torch.randint(8, (9, 4))
    before = model(words).detach()
    outside = [("cross_entropy", before[1:].flatten(0, 1), words[1:].flatten())]
    model.reset_parameters()
    call = Call(model, (words,), {}, State(), None, [before])
    notes = probe(call, Watcher(Boundaries()), outside)
    assert {"later", "shift"} <= {*notes.tested}
    assert not notes.findings


def test_predictions_may_see_everything_through_a_latent_variable():
    class Latent(nn.GRU):
        def forward(self, words):
            x = nn.functional.one_hot(words, 8).to(self.weight_ih_l0)
            return super().forward(x + torch.randn_like(x[:1]) + x.mean(0))[0]

    model, words = Latent(8, 8), torch.randint(8, (9, 4))
    call = Call(model, (words,), {}, State(), None)
    call.outputs.append(model(words).detach())
    outside = [("cross_entropy", call.outputs[0][:-1].flatten(0, 1), words[1:].flatten())]
    assert not probe(call, Watcher(Boundaries()), outside).findings


def test_frozen_normalizations_are_one_finding(watcher):
    model = nn.Sequential(*(nn.BatchNorm1d(2) for _ in range(3)))
    watcher.roots[id(model)] = model
    watcher._frozen = {id(part): (part, True) for part in model}
    watcher._parts(set(), notes := Notes())
    assert [f.where for f in notes.findings] == ["0 (BatchNorm1d), 1 (BatchNorm1d) and 1 more"]


@pytest.mark.parametrize(
    ("keep", "between", "wrong"),
    [
        (lambda state: state, None, True),
        (dict, None, True),
        (deepcopy, None, False),
        # These load weights that they have just changed in place, to no effect.
        (dict, lambda model, state: state["weight"].mul_(0.5), False),
        (dict, lambda model, state: nn.init.ones_(model.weight), False),
        # The weights are others for a while, and those kept by reference are lost.
        (dict, lambda model, state: model.load_state_dict(nn.Linear(3, 2).state_dict()), True),
    ],
    ids=["references", "in a dict", "copies", "scaled", "reset", "swapped"],
)
def test_weights_that_are_kept_by_reference_are_not_restored(keep, between, wrong, monkeypatch):
    for name in ("state_dict", "load_state_dict"):
        monkeypatch.setattr(nn.Module, name, getattr(nn.Module, name))
    stepping = Watcher(Boundaries()).stepping
    replacing(nn.Module, "state_dict")(stepping._keep)
    replacing(nn.Module, "load_state_dict")(stepping._load)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model.load_state_dict(model.state_dict())
    model.load_state_dict({}, strict=False)
    state = keep(model.state_dict())
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    stepping._after_step(optimizer, (), {})
    if between:
        between(model, state)
    model.load_state_dict(state)
    assert [(each.relation, each.sure) for each in stepping.notes.findings] == [
        ("state", True)
    ] * wrong


@pytest.mark.parametrize(
    ("inner", "parts", "found"),
    [
        ([(4, 8, 8), (8, 4, 4)], 1, []),  # features of two layers, as in a perceptual loss
        ([(8,), (8,)], 1, [False]),  # perhaps levels of a detector
        ([(8, 30), (8, 20)], 2, [True]),  # micro-batches of texts
    ],
)
def test_a_mean_for_each_layer_is_no_mean_of_means(inner, parts, found):
    watch = Watcher(Boundaries())
    watch.boundaries.losses = [torch.ones(())] * parts
    watch.losses.rows = [
        Rows("train.py:1", "mse_loss", count, share=1 / count, seen=True, inner=each)
        for count, each in zip((256, 128), inner, strict=True)
    ]
    watch.losses._judge()
    assert [each.sure for each in watch.found.findings] == found


def test_two_losses_in_one_line_are_no_parts_of_a_batch(watcher):
    """As those of borders and of points inside, for a network that solves an equation."""
    loss, model = functional.mse_loss, nn.Linear(2, 1)
    one, other = torch.randn(3, 2), torch.randn(8, 2)
    (loss(model(one), torch.randn(3, 1)) + loss(model(other), torch.randn(8, 1))).backward()
    for each in (one, other):
        loss(model(each), torch.randn(len(each), 1)).backward()
    sites = [rows.site for rows in watcher.losses.rows]
    assert sites[0] != sites[1] != sites[2] == sites[3]


ACCELERATE = """
def step(scheduler):
    num_processes = 6
    for _ in range(num_processes):
        scheduler.step()
"""


class Wrapped(torch.optim.Optimizer):
    """An optimizer around another one, as accelerate's."""

    def __init__(self, optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    def step(self): ...


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("once", []),
        ("twice", [True]),
        ("wrapped twice", [True]),
        ("accelerate", []),  # once for each of its processes
        ("overflow", []),
        ("critic", [False]),  # with the steps of another optimizer
        ("critic twice", [True]),
    ],
)
def test_a_schedule_moves_once_a_step(how, named, monkeypatch):
    weight = nn.Parameter(torch.ones(2))
    optimizer, critic = torch.optim.SGD([weight]), torch.optim.SGD([nn.Parameter(torch.ones(2))])
    known = Wrapped(optimizer) if "wrapped" in how else optimizer
    schedule = torch.optim.lr_scheduler.ConstantLR(known)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    stepping = Watcher(Boundaries()).stepping
    for owner, name, function in (
        (torch.optim.lr_scheduler.LRScheduler, "step", stepping._move_schedule),
        (torch.amp.GradScaler, "step", stepping._step_of_scaler),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
        replacing(owner, name)(function)
    for each in (optimizer, critic):
        each.register_step_pre_hook(stepping._before_step)
        each.register_step_post_hook(stepping._after_step)
    of_accelerate: dict[str, Any] = {"__name__": "accelerate.scheduler"}
    exec(ACCELERATE, of_accelerate)
    for step in range(12):
        if "critic" in how:
            critic.step()
        overflows = how == "overflow" and step % 3 == 2
        weight.grad = torch.full((2,), torch.inf if overflows else 1.0)
        if "critic" not in how or step % 4 == 3:
            scaler.scale(torch.ones(()))
            scaler.step(optimizer)
            scaler.update()
        for _ in range(1 + ("twice" in how)):
            of_accelerate["step"](schedule) if how == "accelerate" else schedule.step()
    assert [each.sure for each in stepping.notes.findings if each.relation == "schedule"] == named


@pytest.mark.parametrize("owner", [torch, Tensor, functional])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize(
    ("lengths", "named"),
    [
        ((1, 1, 1), True),
        ((1, 1, 2), False),
        ((1, 1), False),  # A batch may have one place.
    ],
)
def test_a_softmax_over_one_score_is_worth_a_look(owner, name, lengths, named, watcher):
    softmax = getattr(owner, name)
    for watcher.steps, length in enumerate(lengths):
        scores = torch.randn(4, length, 3, requires_grad=True)
        softmax(scores, dim=1)
        softmax(scores, 2)
    watcher.steps += 1
    found = Notes(**watcher.notes()["notes"]).findings
    assert [(f["relation"], f["sure"]) for f in found] == [("trained", False)] * named


def batch_mean(logs, wanted, **how):
    return functional.kl_div(logs, wanted, reduction="batchmean", **how)


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (lambda logs, wanted: functional.kl_div(logs, wanted) * 4, [False]),
        (lambda logs, wanted: nn.KLDivLoss()(logs, wanted), [False]),
        (lambda logs, wanted: functional.kl_div(logs, wanted, reduction="none").mean(), [False]),
        (
            lambda logs, wanted: functional.kl_div(logs, wanted, reduction="none").mean(-1).sum(),
            [False],
        ),
        (lambda logs, wanted: batch_mean(logs.exp(), wanted), [True]),
        (batch_mean, []),
        (lambda logs, wanted: functional.kl_div(logs, wanted, size_average=False), []),
        (lambda logs, wanted: batch_mean(logs, wanted.log(), log_target=True), []),
        (lambda logs, wanted: functional.kl_div(logs, wanted) * logs.shape[-1], []),
        (lambda logs, wanted: functional.kl_div(logs, wanted, reduction="none").mean(0).sum(), []),
        (lambda logs, wanted: functional.kl_div(logs, wanted, reduction="none").sum(-1).mean(), []),
        (lambda logs, wanted: functional.kl_div(logs[:, :3], wanted[:, :3]), []),  # no distribution
    ],
)
@pytest.mark.filterwarnings("ignore:reduction", "ignore:size_average")
def test_a_divergence_is_no_mean_over_classes(loss, named, watcher):
    logs = torch.randn(6, 9, requires_grad=True).log_softmax(-1)
    loss(logs, torch.randn(6, 9).softmax(-1)).backward()
    assert [found.sure for found in watcher.found.findings] == named


@pytest.mark.parametrize(
    ("axis", "pick", "wrong"),
    [
        (0, lambda logs, wanted: logs.gather(1, wanted[:, None]), True),
        (1, lambda logs, wanted: logs[range(6), wanted], False),
        (-2, lambda logs, wanted: logs * functional.one_hot(wanted, 4), True),
        (1, lambda logs, wanted: logs[wanted > 1, 1], False),
        (0, lambda logs, wanted: logs * logs.exp(), False),  # an entropy
        (0, lambda logs, wanted: logs[:, 2] * logs[:, 2].detach(), False),  # a chosen distribution
        (0, lambda logs, wanted: logs.gather(1, wanted[:, None]) * torch.rand(6, 1), False),
    ],
)
def test_a_loss_picks_along_the_axis_of_the_softmax(axis, pick, wrong, watcher):
    logs = functional.log_softmax(torch.randn(6, 4, requires_grad=True), dim=axis)
    pick(logs, torch.tensor([0, 3, 2, 2, 1, 0])).sum().backward()
    assert ["axis" in found.cause for found in watcher.found.findings] == [True] * wrong


def test_the_parametrization_of_a_weight_is_no_model():
    watcher, layer = Watcher(Boundaries()), nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    watcher._outermost(layer.parametrizations.weight)
    assert not watcher.roots
    watcher._outermost(layer)
    assert [*watcher.roots.values()] == [layer]


@pytest.mark.parametrize(("part", "named"), [("eval", True), ("train", False)])
def test_a_model_whose_parts_are_called_in_training_is_trained(part, named):
    """The whole is called only in evaluation, here with gradients."""
    watcher = Watcher(Boundaries())
    watcher.stepping.stepped = {}
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for watcher.steps in range(4):
        watcher._outermost(getattr(model, part)()[0])
        model[1](model[0](torch.randn(8, 3))).sum().backward()
        watcher._outermost(model.eval())
        watcher.stepping._before_step(optimizer, (), {})
    watcher._modes(watcher.found)
    relations = [
        (f.relation, f.where.split()[0])
        for f in watcher.found.findings
        if f.relation == "evaluation"
    ]
    assert bool(relations) == named


@pytest.mark.parametrize(
    ("left", "named"), [("inner", [False]), ("whole", [True]), ("frozen", []), ("", [])]
)
def test_a_model_inside_another_returns_to_training_mode(left, named):
    """As in diffusion: the script evaluates the inner model, and trains the one that adds noise."""
    watcher = Watcher(Boundaries())
    inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    outer = nn.Sequential(inner, nn.Linear(4, 2))
    for watcher.steps in range(5):
        outer.train()
        if left == "frozen" or (left and watcher.steps > 1):
            (outer if left == "whole" else inner).eval()
        watcher._outermost(outer)
    watcher._modes(watcher.found)
    found = watcher.found.findings
    assert [each.sure for each in found] == named
    assert all("0.1 (BatchNorm1d)" in each.cause for each in found)


@pytest.mark.parametrize(
    ("name", "options", "drops"),
    [
        ("DropPath", {"drop_prob": 0.1}, True),
        ("DropPath", {"drop_prob": 0.0}, False),
        ("StochasticDepth", {"p": 0.1}, True),
        ("Linear", {"p": 0.1}, False),
    ],
)
def test_layers_that_are_left_out_at_random_drop(name, options, drops):
    """As in timm, torchvision and DINO."""
    part = type(name, (nn.Module,), {})()
    vars(part).update(options)
    assert _active(nn.Sequential(part)) == f"0 ({name})" * drops


@pytest.mark.parametrize("gradients", [False, True])
def test_dropout_that_is_active_in_evaluation_mode_is_worth_a_look(gradients, watcher):
    watcher.forwards = [nn.Linear(2, 2).eval()]
    with torch.set_grad_enabled(gradients):
        functional.dropout(torch.ones(3), 0.5, training=False)
        assert not watcher.found.findings
        functional.dropout(torch.ones(3), 0.5)
    assert [(each.relation, each.sure) for each in watcher.found.findings] == [
        ("evaluation", False)
    ]


@pytest.mark.parametrize(("again", "named"), [(True, False), (False, True)])
def test_a_dropout_that_a_script_calls_itself_returns_to_training_mode(again, named):
    watcher = Watcher(Boundaries())
    drop = nn.Dropout(0.5)
    for watcher.steps in range(6):
        watcher._outermost(drop)
        if watcher.steps == 2:
            drop.eval()
            with torch.no_grad():
                watcher._outermost(drop)
            drop.train(again)
    watcher._modes(watcher.found)
    assert [(f.relation, f.sure) for f in watcher.found.findings] == [("evaluation", True)] * named


@pytest.mark.parametrize(
    ("kind", "buffers", "named"),
    [
        *((nn.BatchNorm1d, "", True), (nn.BatchNorm1d, "copied", False)),
        (nn.BatchNorm1d, "its own", False),  # in training mode
        (nn.LayerNorm, "", False),
    ],
)
def test_an_average_with_old_statistics_is_worth_a_look(kind, buffers, named):
    watcher = Watcher(Boundaries())
    model = nn.Sequential(nn.Linear(3, 4), kind(4))
    average = deepcopy(model).train(buffers == "its own")
    for watcher.steps in range(3):
        watcher._outermost(model)
        model(torch.randn(8, 3) + watcher.steps)
        with torch.no_grad():
            nn.init.normal_(model[0].weight)
            average[0].weight.lerp_(model[0].weight, 0.5)
            if buffers == "copied":
                for mine, its in zip(average.buffers(), model.buffers(), strict=True):
                    mine.copy_(its)
            watcher._outermost(average)
            average(torch.randn(8, 3))
    assert [(f.relation, f.sure) for f in watcher.found.findings] == [("evaluation", False)] * named


@pytest.mark.parametrize(
    ("rows", "reduces", "named"),
    [(8, False, True), (8, True, False), (16, False, False)],  # 16: each rank has the whole loss
)
def test_gathered_rows_without_the_gradients_of_other_ranks(wrapped, rows, reduces, named):
    watcher, notes = Watcher(Boundaries()), Notes()
    watcher.roots[0] = wrapped
    watcher.losses.history = [[Rows("train.py:3", "cross_entropy", rows)]]
    side = SimpleNamespace(
        watcher=watcher, gathers={"Gather": 16}, used={"Gather": True}, reduces=reduces
    )
    Audited._gathered(side, notes)
    assert [(f.relation, f.sure) for f in notes.findings] == [("ranks", False)] * named


@pytest.mark.parametrize(
    ("forward", "value"),
    [
        (lambda x, mask=None, training=None: x, True),
        (lambda x, mask=None, train=False: x, True),
        (lambda x, mask=None, deterministic=True: x, False),
    ],
)
def test_an_argument_in_place_of_a_mode_is_known_by_its_name(forward, value):
    model = nn.Module()
    model.forward = forward
    *_, name = inspect.signature(forward).parameters
    assert evaluating(model, (1,), {name: value}) == ((1,), {name: not value}, True)
    assert evaluating(model, (1, True, value), {}) == ((1, True, not value), {}, True)
    assert evaluating(model, (1, True), {name: not value}) == ((1, True), {name: not value}, False)


@pytest.mark.parametrize("gradients", [True, False])
def test_a_layer_that_learns_its_shapes_is_not_asked_for_its_parameters(gradients):
    """A layer of Keras makes some of its variables if it is asked, and fails."""

    class Layer(nn.Linear):
        def named_parameters(self, *args, **kwargs):
            raise RuntimeError("not built")

    watcher, layer = Watcher(Boundaries()), Layer(2, 2)
    with torch.set_grad_enabled(gradients):
        watcher._outermost(layer)
    watcher.forwards.append(layer)
    assert watcher.in_model()


def test_data_without_a_length_is_not_read_again():
    class Slices:
        def __getitem__(self, rows): ...

        def __len__(self):
            raise TypeError("object of type 'Slices' has no len()")

    notes = Notes()
    read_again(DataLoader(Slices(), batch_sampler=[[0]]), notes)
    assert notes.untested["data"] == "the data set cannot read a sample by its number"


def looks(watcher):
    """The relations of what is worth a look after a training; nothing may be wrong."""
    found = Notes(**watcher.notes()["notes"]).findings
    assert not any(f["sure"] for f in found)
    return [f["relation"] for f in found]


@pytest.mark.parametrize("operation", ["__sub__", "sub", "__mul__", "mul"])
@pytest.mark.parametrize(
    ("one", "other", "pairs"),
    [
        (lambda row: row, lambda column: column, True),
        (lambda row: row, lambda column: column.squeeze(1), False),
        (lambda row: row, lambda column: column[:1], False),
        (lambda row: row, lambda column: column.squeeze(1).clone()[:, None], False),  # on purpose
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_formula_of_all_pairs_is_worth_a_look(one, other, pairs, operation, turned, watcher):
    given = one(torch.randn(4)), other(nn.Linear(3, 1)(torch.randn(4, 3)))
    getattr(Tensor, operation)(*(given[::-1] if turned else given))
    watcher.steps = 1
    assert {*looks(watcher)} == ({"loss"} if pairs else set())


def test_a_product_of_all_pairs_without_a_gradient_is_no_loss(watcher):
    edges = torch.rand(4, 4)
    _ = edges.sum(0) * edges.sum(1, keepdim=True)  # the degrees of a graph
    watcher.steps = 1
    assert not looks(watcher)


def test_distances_between_places_are_no_difference_of_losses(watcher):
    places = torch.arange(4)
    watcher.forwards.append(nn.Linear(2, 2))
    _ = places[:, None].float() - places.float()
    watcher.steps = 1
    assert not looks(watcher)


def test_a_trace_of_torch_fx_has_no_values(watcher):
    class Traced(nn.Module):
        def forward(self, x):
            return functional.logsigmoid(torch.mean(x, dim=1))

    torch.fx.symbolic_trace(Traced())


def test_the_dropout_of_a_gpu_draws_its_random_numbers(monkeypatch):
    """Ranks may seed the GPU alone by their number, or have the same seed there and others on the CPU."""
    monkeypatch.setattr(watched, "device_of", lambda module: torch.device("cuda", 1))

    def digest(seed: int, of_gpu: int) -> str:
        state = torch.tensor([of_gpu], dtype=torch.uint8)
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: state)
        torch.manual_seed(seed)
        watcher = Watcher(Boundaries())
        watcher._outermost(nn.Linear(2, 2))
        return watcher.random

    assert digest(0, 1) == digest(1, 1) != digest(0, 2)


@pytest.mark.parametrize("trains", [True, False])
def test_only_a_model_that_trains_needs_a_scaled_loss(trains):
    watcher = Watcher(Boundaries())
    with torch.autocast("cpu", torch.float16):
        watcher._outermost(nn.Linear(2, 2).requires_grad_(trains))
    assert watcher.half == trains


@pytest.mark.parametrize("detached", [True, False])
def test_targets_that_move_are_worth_a_look(detached, watcher):
    prediction, best = torch.randn(2, 4, requires_grad=True)
    target = 1 + 0.9 * best
    functional.smooth_l1_loss(prediction, target.detach() if detached else target)
    watcher.steps = 1
    assert looks(watcher) == ["loss"] * (not detached)


@pytest.mark.parametrize(
    ("use", "named"), [("never", True), ("once", False), ("logged", False), ("evaluated", False)]
)
def test_a_loss_that_is_never_used_is_worth_a_look(use, named, watcher):
    logits = torch.randn(4, requires_grad=True)
    for step in range(4):
        with torch.set_grad_enabled(use != "logged"):
            loss = -functional.logsigmoid(logits).mean()
        if use == "once" and step == 2:
            loss.backward()
        if use == "evaluated" and step == 1:
            break
        watcher.boundary()
    assert looks(watcher) == ["loss"] * named


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (lambda x: functional.mse_loss(x[:0], x[:0]), True),
        (lambda x: functional.mse_loss(x[:0], x[:0], reduction="sum"), False),
        (lambda x: functional.cross_entropy(x, torch.full((4,), -100)), True),
        (lambda x: functional.cross_entropy(x, torch.tensor([-100, -100, 1, -100])), False),
    ],
)
def test_a_mean_over_nothing_is_worth_a_look(loss, named, watcher):
    loss(torch.randn(4, 3, requires_grad=True))
    assert ["over no targets" in each.cause for each in watcher.found.findings] == [True] * named


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([[6]], False),
        ([[6], [6]], False),
        ([[6, 3], [6, 3]], False),
        ([[6], [4]], True),
        ([[6, 3], [4, 2]], True),
    ],
)
def test_means_over_short_batches_are_worth_a_look(rows, named, watcher):
    """Two levels of a detector have other numbers of targets, but the same in each batch."""
    with torch.no_grad():
        for each in rows:
            watcher._outermost(nn.Linear(2, 2))
            for count in each:
                functional.mse_loss(torch.randn(count), torch.randn(count))
    watcher.losses.validations(watcher.found)
    assert looks(watcher) == ["evaluation"] * named


@pytest.mark.parametrize(("axis", "named"), [(-1, True), (0, False)])
def test_a_mean_of_probabilities_over_their_own_axis_is_worth_a_look(axis, named, watcher):
    torch.randn(6, 4, requires_grad=True).softmax(-1).mean(axis)
    watcher.steps = 1
    assert looks(watcher) == ["trained"] * named


@pytest.mark.parametrize("kind", ["teacher", "in evaluation mode", "trained later", "policy"])
def test_a_model_that_only_runs_without_gradients_drops_nothing(kind):
    watcher = Watcher(Boundaries())
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1)).train(kind != "in evaluation mode")
    if kind == "policy":  # A part of it trains in another call.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watcher.stepping.made[optimizer] = True
    with torch.no_grad():
        watcher._outermost(model)
    if kind == "trained later":
        watcher._outermost(model)
    watcher.steps = 1
    assert looks(watcher) == ["evaluation"] * (kind == "teacher")


class Score(nn.Module):
    def __init__(self, masked):
        super().__init__()
        self.words, self.masked = nn.Embedding(50, 8), masked

    def forward(self, tokens, attention_mask):
        mask = attention_mask if self.masked else torch.ones_like(attention_mask)
        return (self.words(tokens) * mask[..., None]).sum(1)


@pytest.mark.parametrize("masked", [True, False])
def test_scores_do_not_change_with_the_padding(masked):
    mask = (torch.arange(12) < torch.randint(4, 12, (16, 1))).long()
    notes = probed(Score(masked), torch.randint(1, 50, (16, 12)) * mask, mask)
    found = [f.sure for f in notes.findings if f.relation == "padding"]
    assert found == [True] * (not masked)
    assert "padding" in notes.tested


class Last(nn.Module):
    """Scores a row by its last token that is no padding, like classifiers of transformers."""

    def __init__(self, shift):
        super().__init__()
        self.words, self.shift = nn.Embedding(50, 8), shift

    def forward(self, tokens, attention_mask):
        last = (torch.arange(tokens.shape[1]) * (tokens != 0)).argmax(1) + self.shift
        return self.words(tokens)[torch.arange(len(tokens)), last]


@pytest.mark.parametrize("shift", [0, 1])
def test_a_model_may_find_the_padding_by_its_token(shift):
    mask = (torch.arange(12) < torch.randint(4, 11, (16, 1))).long()
    notes = probed(Last(shift), torch.randint(1, 50, (16, 12)) * mask, mask)
    assert [f.relation for f in notes.findings if f.relation == "padding"] == ["padding"] * shift
    assert "padding" in notes.tested


class Copied(nn.Linear):
    def forward(self, tokens, attention_mask, **others):
        return super().forward(functional.one_hot(tokens, 50).float())


@pytest.mark.parametrize(
    ("hidden", "counted", "others", "wrong"),
    [
        ((0, 0, 1, 1), (1, 1, 0, 1), {}, True),
        ((0, 0, 1, 1), (1, 1, 0, 0), {}, False),
        ((1, 1, 0, 0), (0, 1, 1, 1), {}, False),  # the last place predicts the first word
        ((0, 1, 0, 0), (0, 1, 0, 0), {}, False),  # a word that a masked model has to predict
        ((0, 0, 1, 1), (1, 1, 1, 1), {"target": torch.ones(8, 4, dtype=torch.int64)}, False),
    ],
)
def test_a_handwritten_loss_does_not_count_padding(hidden, counted, others, wrong):
    hidden, counted = (torch.tensor([each] * 8).bool() for each in (hidden, counted))
    tokens = torch.randint(1, 50, (8, 4)).masked_fill(hidden, 0)
    call = Call(Copied(50, 50), (tokens, (~hidden).long()), others, State(), None)
    call.touched.append(counted)
    notes = probe(call, Watcher(Boundaries()), [])
    assert ("padding" in {f.relation for f in notes.findings}) == wrong


def test_what_was_tested_comes_before_what_was_not():
    statuses = {"parts": "untested", "update": "holds", "data": "untested", "zero": "look"}
    relations = {name: {"status": each, "how": name} for name, each in statuses.items()}
    lines = text(Answer("train.py", relations=relations)).splitlines()
    order = [line.rpartition("(")[2].rstrip(")") for line in lines if "(" in line]
    assert order == ["update", "zero", "parts", "data"]


@pytest.mark.parametrize(
    ("trained", "expected"),
    [
        ("body head start weight bias", []),
        ("head weight bias", [("body, start", False)]),  # a fine-tune of the head alone
        (
            "body weight bias",
            [("head.weight", True), ("head.bias", True), ("start", True)],
        ),
        ("body head start", [("Bilinear", False)]),  # a loss with weights of its own
    ],
)
def test_a_head_alone_may_be_trained_but_no_layer_forgotten(trained, expected):
    watcher, model = Watcher(Boundaries()), nn.Sequential()
    for name, sizes in (("body", (4, 16)), ("head", (16, 2))):
        model.add_module(name, nn.Linear(*sizes))
    model.body = nn.Sequential(model.body, nn.BatchNorm1d(16))
    model.register_parameter("start", nn.Parameter(torch.ones(4)))
    loss = nn.Bilinear(2, 2, 1)
    named = [*model.named_parameters(), *loss.named_parameters()]
    optimizer = torch.optim.SGD([p for n, p in named if n.startswith(tuple(trained.split()))], 0.1)
    optimizer.register_step_pre_hook(watcher.stepping._before_step)
    watcher.stepping.made[optimizer] = True
    for watcher.steps in range(3):
        watcher._outermost(model)
        watcher._outermost(loss)
        y = model(torch.randn(8, 4) * model.start)
        loss(y, y).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    watcher._trained(watcher.found)
    found = [(f.where, f.sure) for f in watcher.found.findings if f.relation == "trained"]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("training", [True, False])
def test_a_handwritten_loss_in_training_mode_is_worth_a_look(training, watcher):
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout())
    watcher._outermost(model)
    with torch.no_grad():
        watcher._outermost(model.train(training))
        functional.log_softmax(model(torch.randn(8, 3)), -1)
    watcher.boundary()
    found = watcher.found.findings
    assert [(f.relation, f.sure) for f in found] == [("evaluation", False)] * training
