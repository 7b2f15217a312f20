"""Relations that hold in any training: an error that breaks each, and the program without it."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks.fifty.__main__ import findings
from transformer_core.audit.axes import crossed
from transformer_core.audit.losses import _way


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        ((8, 3, 5), (8, 5, 3), True),  # a view where a transpose belongs
        ((8, 16, 32), (8, 4, 16, 8), True),  # heads that are split before the places
        ((8, 4, 16, 8), (8, 16, 32), True),  # and joined again
        ((2, 8, 32), (8, 64), True),  # (layers, batch, size) as (batch, both layers)
        ((8, 3, 8, 8), (8, 4, 48), True),  # patches of an image
        ((8, 16, 32), (8, 16, 4, 8), False),
        ((8, 16, 32), (128, 32), False),
        ((8, 32, 4, 4), (8, 512), False),
        ((8, 32, 4, 4), (16, 16, 4, 4), False),  # groups of channels
        ((1, 8, 4), (8, 4), False),
        ((8, 16), (128,), False),
        ((8, 3, 16, 16), (8, 3, 4, 4, 4, 4), False),
    ],
)
def test_axes_are_only_split_and_merged(before, after, wrong):
    torch.empty(before).view(after)  # such a view exists
    assert bool(crossed([*before], [*after])) == wrong


def test_two_predictions_of_one_model_are_no_moving_targets():
    """As in VICReg; a predictor on one side only makes the other the target."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    one, other = (model(torch.randn(5, 3)) for _ in range(2))
    assert _way(one) == _way(other) != _way(model[0](other.relu()))
    assert _way(functional.normalize(one)) != _way(other)


@pytest.fixture(scope="module")
def forks():
    """Forks of a process that has imported torch."""
    with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
        yield pool


@pytest.fixture
def audit(forks, tmp_path):
    """Audits a script in which some text is replaced; returns the findings and their causes."""

    def found(script, *changes):
        for old, new in changes:
            assert old in script, old
            script = script.replace(old, new)
        (tmp_path / "train.py").write_text(script)
        every = forks.submit(findings, tmp_path / "train.py", "").result()
        return [(f.relation, f.sure) for f in every], " ".join(f.cause for f in every)

    return found


IMAGES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)

class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Dropout(0.1)

    def forward(self, x):
        x = x.view(len(x), 3, 4, 2, 4, 2).permute(0, 2, 4, 1, 3, 5).reshape(len(x), 16, 12)
        return self.drop(self.norm(self.layer(x).mean(1)))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.head = Patches(), nn.Linear(16, 5)
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])

    def forward(self, x):
        x = self.patches(x)
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.head(x)

model = Model()
data = TensorDataset(torch.randn(160, 3, 8, 8), torch.arange(160) % 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
for epoch in range(2):
    model.train()
    for x, target in DataLoader(data, 16, shuffle=True):
        optimizer.zero_grad()
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
"""

IN_IMAGES = {
    "a view cuts patches": (
        ("axes", False),
        ("x.view(len(x), 3, 4, 2, 4, 2).permute(0, 2, 4, 1, 3, 5)", "x"),
    ),
    "never in training mode": (("evaluation", False), ("model.train()", "model.eval()")),
    "no number": (("loss", True), ("        loss.backward()", "        loss = loss * float('nan')\n        loss.backward()")),
    "statistics of a frozen part": (
        ("trained", False), ("model = Model()", "model = Model()\nmodel.patches.requires_grad_(False)"),
    ),
    "a schedule that turns": (("schedule", False), ("LR(optimizer, 20)", "LR(optimizer, 4)")),
}  # fmt: skip


FOR_A_WHILE = (  # as a discriminator while the generator trains
    "        loss.backward()",
    "        loss.backward()\n        model.requires_grad_(False)\n        model(x)\n        model.requires_grad_(True)",
)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [(), (FOR_A_WHILE,)], ids=["as it is", "frozen for a while"])
def test_a_correct_training_on_images_has_no_finding(changes, audit):
    assert audit(IMAGES, *changes) == ([], "")


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_IMAGES)
def test_an_error_on_images_is_found(name, audit):
    expected, *changes = IN_IMAGES[name]
    assert expected in audit(IMAGES, *changes)[0]


# A padded matrix that is skewed by a view, for relative positions.
SKEWED = (
    "self.layer(x).mean(1)",
    "(nn.functional.pad((h := self.layer(x)) @ h.mT, (1, 0)).view(len(x), 17, 16)[:, 1:] @ h).mean(1)",
)
# Attention with as many samples in a batch as features in a head.
HEADS = (
    "self.layer(x).mean(1)",
    "self.layer(x).repeat(1, 6, 1).reshape(32, 48, 16)[:, :16].reshape(16, 32, 16).mean(1)",
)
EVALUATED = (
    "for epoch in",
    "with torch.no_grad():\n    model.eval()(data.tensors[0])\nfor epoch in",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        # Attention: weights of values along the axis that is added up.
        (("self.layer(x).mean(1)", "((h := self.layer(x))[..., :1].softmax(1) * h).sum(1)"),),
        (HEADS,),
        (SKEWED,),
        (SKEWED, EVALUATED),
        (("self.layer(x).mean(1)", "((h := self.layer(x)) @ h.mT / 4).softmax(-1).matmul(h).mean(1)"),),
    ],
)  # fmt: skip
def test_what_correct_trainings_do_is_no_finding(changes, audit):
    assert audit(IMAGES, *changes) == ([], "")


WORDS = """
import copy
import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.kinds = nn.Embedding(40, 16, padding_idx=0), nn.Embedding(2, 16)
        self.places, self.memory = nn.Embedding(32, 16), nn.GRU(16, 16, batch_first=True)
        self.mean, self.spread, self.head = nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask, kinds):
        places = attention_mask.cumsum(1)
        x = self.words(input_ids) + self.places(places) + self.kinds(kinds)
        x = self.memory(x)[0] * attention_mask[..., None]
        x = x.sum(1) / attention_mask.sum(1, keepdim=True)
        mean, spread = self.mean(x), self.spread(x)
        return self.head(mean + spread.exp() * torch.randn_like(mean)), mean, spread

def apart(mean, spread):
    return 0.5 * (mean.square() + (2 * spread).exp() - 2 * spread - 1).sum(1).mean()

model = Model()
other = copy.deepcopy(model).requires_grad_(False).eval()
worker = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(14):
    lengths = torch.randint(4, 12, (8,))
    lengths[:2] = torch.tensor([4, 11])
    mask = (torch.arange(11) < lengths[:, None]).long()
    tokens, target = torch.randint(1, 40, (8, 11)) * mask, torch.randint(0, 3, (8,))
    kinds = (torch.arange(11) >= lengths[:, None] // 2).long() * mask
    logits, mean, spread = model(tokens, mask, kinds)
    weights = torch.rand(8)
    each = weights * functional.cross_entropy(logits, target, reduction="none")
    penalty = apart(mean, spread)
    loss = each.mean() + 0.1 * penalty
    worker.zero_grad()
    loss.backward()
    worker.step()
"""
LEFT = (
    ("torch.arange(11) < lengths[:, None]", "torch.arange(11) >= 11 - lengths[:, None]"),
    ("nn.GRU(16, 16, batch_first=True)", "None"),
    ("self.memory(x)[0]", "x"),
)

IN_WORDS = {
    "an argument that is left out": (("inputs", False), (" + self.kinds(kinds)", "")),
    "the mean counts more padding": (("padding", True), ("x.sum(1) / attention_mask.sum(1, keepdim=True)", "x.mean(1)")),
    "places count padding on the left": (
        ("padding", False), *LEFT,
        ("places = attention_mask.cumsum(1)", "places = torch.arange(input_ids.shape[1])"),
    ),
    "batches and places exchanged": (("samples", True), (", batch_first=True", "")),
    "a term that is a constant": (("loss", False), ("penalty = apart(mean, spread)", "penalty = spread.softmax(1).sum(1).mean()")),
    "a term that is zero": (("loss", False), ("penalty = apart(mean, spread)", "penalty = (mean.square() - 9).relu().mean()")),
    "weights of another axis": (
        ("axes", False),
        ("x = x.sum(1) / attention_mask.sum(1, keepdim=True)", "x = (x[..., :1].softmax(0) * x).sum(1)"),
    ),
    "a product with weights of another axis": (
        ("axes", False),
        ("x = x.sum(1) / attention_mask.sum(1, keepdim=True)", "x = ((x @ x.mT).softmax(-2) @ x).mean(1)"),
    ),
    "a frozen model that drops": (
        ("evaluation", False),
        (".eval()", "\nother.words = nn.Sequential(other.words, nn.Dropout(0.1))"),
        ("penalty = apart", "wanted = other(tokens, mask, kinds)[0]\n    penalty = (logits - wanted).square().mean() + apart"),
    ),
}  # fmt: skip


SUM = (  # begins with a zero that has no gradient
    ("loss = each.mean() + 0.1 * penalty", "loss = torch.zeros(())\n    loss += each.mean()\n    loss += 0.1 * penalty"),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("changes", [(), LEFT, SUM], ids=["on the right", "on the left", "sum"])
def test_a_correct_training_on_words_has_no_finding(changes, audit):
    assert audit(WORDS, *changes) == ([], "")


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_WORDS)
def test_an_error_on_words_is_found(name, audit):
    expected, *changes = IN_WORDS[name]
    assert expected in audit(WORDS, *changes)[0]


BY_KEYWORD = """
import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        y = functional.dropout(input=self.layer(input=x), p=0.1, training=self.training)
        weights = torch.softmax(input=torch.bmm(input=y, mat2=y.transpose(dim0=1, dim1=2)), dim=-1)
        y = torch.add(input=y, other=torch.matmul(input=weights, other=y))
        y = torch.sub(input=y, other=torch.mean(input=y, dim=-1, keepdim=True))
        y = torch.sum(input=torch.mul(input=y, other=y), dim=1)
        return self.head(torch.reshape(input=y, shape=(len(x), 8)))

model = Model()
optimizer = torch.optim.SGD(params=model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer=optimizer, lr_lambda=lambda step: 0.9**step)
scaler = torch.amp.GradScaler(device="cpu")
for step in range(20):
    optimizer.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(input=model(x=torch.randn(size=(6, 5, 8))), target=torch.arange(end=6) % 3)
    torch.autograd.backward(tensors=scaler.scale(outputs=loss))
    scaler.unscale_(optimizer=optimizer)
    nn.utils.clip_grad_norm_(parameters=model.parameters(), max_norm=1.0)
    scaler.step(optimizer=optimizer)
    scaler.update(new_scale=None)
    schedule.step(epoch=None)
    if step == 2:
        torch.save(obj=model.state_dict(), f="model.pt")
        model.load_state_dict(state_dict=torch.load(f="model.pt"))
"""


def test_functions_may_be_called_by_keyword(audit):
    found, causes = audit(BY_KEYWORD)
    assert not [each for each in found if each[1]], causes


def test_copies_of_weights_that_get_gradients_by_hand_are_not_frozen(audit):
    script = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3).bfloat16()
main = [p.detach().float() for p in model.parameters()]
optimizer = torch.optim.SGD(main, lr=0.1)
for _ in range(20):
    model.zero_grad()
    x = torch.randn(6, 8).bfloat16()
    nn.functional.cross_entropy(model(x).float(), torch.arange(6) % 3).backward()
    for copy, p in zip(main, model.parameters()):
        copy.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for copy, p in zip(main, model.parameters()):
            p.copy_(copy)
"""
    found, causes = audit(script)
    assert not [each for each in found if each[1]], causes


ADVERSARIES = """
import torch
from torch import nn

torch.manual_seed(0)
maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)
of_maker = torch.optim.SGD(maker.parameters(), lr=0.1)
of_judge = torch.optim.SGD(judge.parameters(), lr=0.1)
for step in range(20):
    made, real = maker(torch.randn(16, 4)), torch.randn(16, 8)
    of_maker.zero_grad()
    nn.functional.softplus(-judge(made)).mean().backward()
    of_maker.step()
    of_judge.zero_grad()
    loss = nn.functional.softplus(judge(made.detach())) + nn.functional.softplus(-judge(real))
    loss.mean().backward()
    of_judge.step()
"""
CLEARED = "    of_judge.zero_grad()\n"
AT_THE_END = ("    of_judge.step()\n", "    of_judge.step()\n    of_judge.zero_grad()\n")


@pytest.mark.parametrize(
    ("changes", "mixed"),
    [
        ([], False),
        (
            [(CLEARED, ""), AT_THE_END],
            True,
        ),  # the gradients of the maker's loss are left in the judge
        ([(CLEARED, "    of_maker.zero_grad()\n"), AT_THE_END], True),
        (
            # Steps of both after both backward passes, as where each has its own part of a loss.
            [
                ("    of_maker.step()\n", ""),
                AT_THE_END,
                ("judge.step()\n", "judge.step()\n    of_maker.step()\n"),
            ],
            False,
        ),
    ],
    ids=["cleared", "left", "the other cleared", "steps together"],
)
def test_gradients_of_one_optimizers_loss_are_not_left_for_another(audit, changes, mixed):
    found, why = audit(ADVERSARIES, *changes)
    assert (("zero", False) in found) == mixed, (found, why)
    assert ("another optimizer (SGD)" in why) == mixed


SEARCH = """
import torch
from torch import nn

torch.manual_seed(0)
layers, choice = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)]), nn.ParameterList([nn.Parameter(torch.zeros(2))])
of_layers = torch.optim.SGD(layers.parameters(), lr=0.1)
of_choice = torch.optim.Adam(choice.parameters(), lr=0.1)

def loss():
    x = torch.randn(16, 4)
    shares = choice[0].softmax(0)
    return sum(share * layer(x) for share, layer in zip(shares, layers)).sub(x.sum(1, True)).square().mean()

for step in range(20):
    of_choice.zero_grad()
    (gradient,) = torch.autograd.grad(loss(), [choice[0]])
    choice[0].grad = gradient
    of_choice.step()
    of_layers.zero_grad()
    loss().backward()
    of_layers.step()
"""


OF_CHOICE = """    of_choice.zero_grad()
    (gradient,) = torch.autograd.grad(loss(), [choice[0]])
"""
SCALED = OF_CHOICE.replace("of_choice.zero_grad()", "loss().backward()").replace(
    "torch.autograd.grad(loss(), [choice[0]])", "[0.5 * choice[0].grad]\n    of_choice.zero_grad()"
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("", ""), []),
        (("    choice[0].grad = gradient", "    choice[0].backward(gradient)"), []),
        (("    of_choice.zero_grad()\n", ""), []),
        (("of_choice.zero_grad()", "of_choice.zero_grad(set_to_none=False)"), []),
        (("    of_layers.zero_grad()\n", ""), [("zero", True)]),
        ((OF_CHOICE, SCALED), [("zero", False)]),
    ],
    ids=["by hand", "by a backward pass", "kept", "zeros", "layers add up", "of the stale ones"],
)
def test_gradients_that_a_script_puts_there_replace_those_of_another_loss(audit, change, expected):
    """As in a search for an architecture: the loss of the weights leaves a gradient in the choice, too."""
    found, why = audit(SEARCH, change)
    assert [each for each in found if each[0] == "zero"] == expected, why


PENALTY = """
import torch
from torch import nn

torch.manual_seed(0)
judge = nn.Sequential(nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(judge.parameters(), lr=1e-3)
for step in range(30):
    real = torch.randn(16, 8, requires_grad=True)
    optimizer.zero_grad()
    nn.functional.softplus(-judge(real)).mean().backward()
    optimizer.step()
    score = judge(real)
    (slope,) = torch.autograd.grad(score.sum(), real, create_graph=True)
    loss = slope.square().sum(1).mean() + 0 * score[0, 0]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("", ""), []),
        (("create_graph", "retain_graph"), [("zero", False)]),
        (("loss = slope", "loss = 0 * slope"), [("zero", False)]),
        (("loss.backward()", "loss.backward()\n    optimizer.zero_grad()"), [("zero", True)]),
    ],
    ids=["right", "no graph", "no weight", "set to zero"],
)
def test_a_loss_without_a_slope_sets_no_gradients_to_zero(audit, change, expected):
    found, why = audit(PENALTY, change)
    assert [each for each in found if each[0] == "zero"] == expected, why
    assert ("does not depend" in why) == (("zero", False) in expected)


FLOW = """
import torch
from torch import nn

torch.manual_seed(0)

class BatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(8))

    def forward(self, x):
        mean = x.mean(0) if self.training else self.running_mean
        if self.training:
            self.running_mean.mul_(0.9).add_(0.1 * mean.detach())
        return x - mean

flow = nn.Sequential(nn.Linear(8, 8), BatchNorm(), nn.Linear(8, 8))
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
for epoch in range(20):
    flow.train()
    for _ in range(2):
        loss = flow(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    flow.eval()
"""
LEFT_OUT = ("    flow.train()\n", "")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], []),
        ([LEFT_OUT], [("evaluation", True)]),
        ([LEFT_OUT, ("BatchNorm(", "FrozenBatchNorm(")], []),
        ([LEFT_OUT, ("running_mean", "shift")], []),
    ],
    ids=["right", "no train()", "frozen", "no statistics"],
)
def test_batch_normalization_by_hand_has_two_modes(audit, changes, expected):
    found, why = audit(FLOW, *changes)
    assert [each for each in found if each[0] == "evaluation"] == expected, why


LOGGED = """
import torch
from torch import nn

torch.manual_seed(0)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop, self.head = nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.drop(self.layer(x)))

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.randn(6, 8)
for step in range(20):
    x, target = torch.randn(6, 8), torch.arange(6) % 3
    LOG_BEFORE = None
    logits = model(x)
    LOG_BETWEEN = None
    loss = nn.functional.cross_entropy(logits, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    LOG_AFTER = None
"""
LOG = "with torch.no_grad(): nn.functional.cross_entropy(model(BATCH), target)"


@pytest.mark.parametrize(
    ("where", "line", "named"),
    [
        ("BEFORE", LOG.replace("BATCH", "x"), False),
        ("AFTER", LOG.replace("BATCH", "x.clone()"), False),
        ("AFTER", LOG.replace("model(BATCH)", "logits.detach()"), False),
        ("BEFORE", "with torch.no_grad(): x = x + model(x).mean()", False),
        ("BETWEEN", LOG.replace("model(BATCH)", "logits"), False),
        ("BEFORE", LOG.replace("BATCH", "other"), True),
        ("AFTER", LOG.replace("BATCH", "other"), True),
    ],
)
def test_a_loss_of_the_steps_own_batch_for_a_log_is_no_validation(audit, where, line, named):
    found, why = audit(LOGGED, (f"LOG_{where} = None", line))
    assert [each for each in found if each[1]] == [("evaluation", True)] * named, why


TAUGHT = [
    ("import torch\n", "import copy\nimport torch\n"),
    ("optimizer =", "teacher = copy.deepcopy(model)\noptimizer ="),
    (
        "LOG_AFTER = None",
        "for mine, its in zip(model.parameters(), teacher.parameters()):\n"
        "        if mine.dim() > 1: its.data.lerp_(mine.data, 0.1)",
    ),
]


@pytest.mark.parametrize(
    ("target", "expected"), [("teacher(x)", [("trained", False)]), ("teacher(x).detach()", [])]
)
def test_gradients_of_an_averaged_copy_are_one_thing_worth_a_look(audit, target, expected):
    loss = (
        "loss.backward()",
        f"loss = loss + (logits - {target}).square().mean()\n    loss.backward()",
    )
    found, why = audit(LOGGED, *TAUGHT, loss)
    assert found == expected, why


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("[loss_of(other, target) for _ in range(3)]", True),
        ("loss_of(other, target)", False),  # as of a step that is left out
        ("model.eval(); [loss_of(other, target) for _ in range(3)]; model.train()", False),
    ],
)
def test_an_evaluation_with_gradients_in_training_mode_is_worth_a_look(audit, line, seen):
    changes = [
        ("other =", "loss_of = lambda x, t: nn.functional.cross_entropy(model(x), t)\nother ="),
        ("nn.functional.cross_entropy(logits, target)", "loss_of(x, target)"),
        ("    LOG_AFTER = None", f"    if step == 15:\n        {line}"),
    ]
    found, why = audit(LOGGED, *changes)
    assert found == [("evaluation", False)] * seen, why


KEPT = """
import torch
from torch import nn

torch.manual_seed(0)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.memory = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True)
        self.head, self.state = nn.Linear(8, 20), None

    def forward(self, tokens):
        if self.state is not None:
            self.state = tuple(each.detach() for each in self.state)
        y, self.state = self.memory(self.words(tokens), self.state)
        return self.head(y)

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
text = torch.randint(0, 20, (4, 201))
for at in range(0, 200, 10):
    logits = model(text[:, at : at + 10])
    loss = nn.functional.cross_entropy(logits.transpose(1, 2), text[:, at + 1 : at + 11])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_state_that_a_model_keeps_for_its_next_call_mixes_no_samples(audit):
    assert audit(KEPT) == ([], "")


def test_a_traced_model_is_audited(audit):
    traced = ("model = Model()", "model = torch.jit.trace(Model(), torch.zeros(6, 8))")
    assert audit(LOGGED, traced, ("Dropout(0.1)", "Identity()")) == ([], "")


@pytest.mark.parametrize(
    ("guard", "sure"),
    [
        ("if not nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite(): continue", False),
        ("", True),
    ],
)
def test_a_step_that_a_script_leaves_out_for_its_loss_is_worth_a_look(audit, guard, sure):
    spoiled = ("LOG_BEFORE = None", "if step == 4: x[0, 0] = float('nan')")
    backward = ("loss.backward()", f"loss.backward()\n    {guard}")
    found, why = audit(LOGGED, spoiled, backward)
    assert ("loss", sure) in found, why
    assert sure or len(found) == 1, why
    assert ("throws away" in why) != sure


FOUND = """
saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
for step in range(5):
    loss = nn.functional.cross_entropy(model(torch.randn(6, 8)), torch.arange(6) % 3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.load_state_dict(saved[0])
optimizer.load_state_dict(saved[1])
other ="""


def test_an_optimizer_may_begin_again_after_a_search_for_its_rate(audit):
    search = ("other =", FOUND), ("import torch\n", "import copy\nimport torch\n")
    assert audit(LOGGED, *search, ("lr=0.1", "lr=0.1, momentum=0.9")) == ([], "")


@pytest.mark.parametrize(
    ("forward", "line", "named"),
    [
        ("self.layer(x)", "model.layer.weight.grad = None", False),  # frozen for the first epoch
        ("self.layer(x.detach()).detach()", "", True),
    ],
)
def test_a_gradient_that_the_script_removes_is_no_detached_part(audit, forward, line, named):
    changes = ("loss.backward()", f"loss.backward()\n    {line}"), ("self.layer(x)", forward)
    found, why = audit(LOGGED, *changes)
    assert found == [("trained", True)] * named, why
