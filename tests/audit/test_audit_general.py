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
    "momentum of another library": (("evaluation", False), ("Norm1d(16)", "Norm1d(16, momentum=0.99)")),
    "a share that is kept": (("evaluation", False), ("Dropout(0.1)", "Dropout(0.9)")),
    "never in training mode": (("evaluation", False), ("model.train()", "model.eval()")),
    "one layer in a list": (("trained", False), ("[nn.Linear(16, 16) for _ in range(2)]", "[nn.Linear(16, 16)] * 2")),
    "alike for ever": (
        ("trained", False),
        ("model = Model()", "model = Model()\nfor p in (*model.patches.parameters(), model.layers[0].weight):\n"
         "    nn.init.constant_(p, 0.1)"),
        ("Dropout(0.1)", "Dropout(0.0)"),
        ("x + layer(x).relu()", "layer(x).relu()"),
    ),
    "a layer that is left out": (("trained", False), ("x = x + layer(x).relu()", "x = x + layer(x).relu().detach() * 0")),
    "rounded": (("trained", False), ("return self.head(x)", "return self.head(x.round())")),
    "seeded in each step": (("fresh", False), ("        logits =", "        torch.manual_seed(1)\n        logits =")),
    "the first batch only": (
        ("fresh", False),
        ("for x, target in DataLoader(data, 16, shuffle=True):", "for _ in range(10):\n        x, target = next(iter(DataLoader(data, 16)))"),
    ),
    "sorted data": (
        ("fresh", False),
        ("torch.arange(160) % 5", "torch.arange(160) // 32"),
        ("16, shuffle=True", "16"),
    ),
    "sure at first": (("loss", False), ("return self.head(x)", "return 100 * self.head(x)"), ("lr=0.1", "lr=1e-6")),
    "pixels that are not scaled": (
        ("loss", False),
        ("torch.randn(160, 3, 8, 8)", "torch.randint(0, 256, (160, 3, 8, 8)).float()"),
    ),
    "an activation after the last layer": (("loss", False), ("return self.head(x)", "return self.head(x).relu()")),
    "targets out of reach": (
        ("loss", False),
        ("cross_entropy(logits, target)", "mse_loss(logits.sigmoid(), functional.one_hot(target, 5) * 2.0 - 1)"),
        ("from torch import nn\n", "from torch import nn\nfrom torch.nn import functional\n"),
    ),
    "several labels in a softmax": (
        ("loss", False),
        ("cross_entropy(logits, target)", "cross_entropy(logits, (torch.rand(16, 5) < 0.5).float())"),
    ),
    "no number": (("loss", True), ("        loss.backward()", "        loss = loss * float('nan')\n        loss.backward()")),
    "an iterator that is used up": (
        ("zero", True),
        ("optimizer = torch.optim.SGD(model.parameters()", "weights = model.parameters()\noptimizer = torch.optim.SGD(weights"),
        ("clip_grad_norm_(model.parameters()", "clip_grad_norm_(weights"),
    ),
    "an optimizer for each step": (
        ("update", False),
        ("        logits =", "        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n        logits ="),
        ("        schedule.step()\n", ""),
    ),
    "an old optimizer's schedule": (
        ("schedule", False),
        ("for epoch in range(2):", "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nfor epoch in range(2):"),
    ),
    "a schedule that turns": (("schedule", False), ("LR(optimizer, 20)", "LR(optimizer, 4)")),
    "a rate of zero": (
        ("schedule", False),
        ("CosineAnnealingLR(optimizer, 20)", "LambdaLR(optimizer, lambda step: step // 100)"),
    ),
    "a warm-up of steps, moved once an epoch": (
        ("schedule", False),
        ("CosineAnnealingLR(optimizer, 20)", "LambdaLR(optimizer, lambda step: (step + 1) / 4000)"),
        ("        schedule.step()\n", "    schedule.step()\n"),
    ),
    "a wrong sign": (
        ("update", True),
        ("model = Model()", '''
class Sign(torch.optim.Optimizer):
    def __init__(self, weights):
        super().__init__(weights, {"lr": 1e-3})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            p.add_(p.grad.sign(), alpha=1e-3)

model = Model()'''),
        ("torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)", "Sign(model.parameters())"),
    ),
}  # fmt: skip


@pytest.mark.slow
def test_a_correct_training_on_images_has_no_finding(audit):
    assert audit(IMAGES) == ([], "")


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_IMAGES)
def test_an_error_on_images_is_found(name, audit):
    expected, *changes = IN_IMAGES[name]
    assert expected in audit(IMAGES, *changes)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        (("cross_entropy(logits, target)", "mse_loss(logits.tanh(), nn.functional.one_hot(target, 5) * 2.0 - 1)"),),
        (("cross_entropy(logits, target)", "cross_entropy(logits, torch.rand(16, 5).softmax(1))"),),
        (("torch.randn(160, 3, 8, 8)", "torch.randint(0, 256, (160, 3, 8, 8)) / 255"),),
        # Attention: weights of values along the axis that is added up.
        (("self.layer(x).mean(1)", "((h := self.layer(x))[..., :1].softmax(1) * h).sum(1)"),),
        # A padded matrix that is skewed by a view, for relative positions.
        (("self.layer(x).mean(1)", "(nn.functional.pad((h := self.layer(x)) @ h.mT, (1, 0))"
          ".view(len(x), 17, 16)[:, 1:] @ h).mean(1)"),),
        (("self.layer(x).mean(1)", "((h := self.layer(x)) @ h.mT / 4).softmax(-1).matmul(h).mean(1)"),),
    ],
)  # fmt: skip
def test_what_correct_trainings_do_is_no_finding(changes, audit):
    assert audit(IMAGES, *changes) == ([], "")


@pytest.mark.slow
def test_an_update_down_the_slope_is_none_up(audit):
    _, *changes = IN_IMAGES["a wrong sign"]
    mended = [(old, new.replace("alpha=1e-3", "alpha=-1e-3")) for old, new in changes]
    assert audit(IMAGES, *mended)[0] == []


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
    "a loss that the model returns": (
        ("loss", False),
        ("torch.randn_like(mean)), mean, spread", "torch.randn_like(mean)), mean, spread, mean.square().mean()"),
        ("logits, mean, spread = model", "logits, mean, spread, _ = model"),
    ),
    "a term without a gradient": (("loss", False), ("penalty = apart(mean, spread)", "penalty = apart(mean, spread).detach()")),
    "a term that is a constant": (("loss", False), ("penalty = apart(mean, spread)", "penalty = spread.softmax(1).sum(1).mean()")),
    "a term that is zero": (("loss", False), ("penalty = apart(mean, spread)", "penalty = (mean.square() - 9).relu().mean()")),
    "all pairs of a product": (("loss", False), ("torch.rand(8)", "torch.rand(8, 1)")),
    "noise between 0 and 1": (("loss", False), ("torch.randn_like(mean)", "torch.rand_like(mean)")),
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
    "an optimizer that never steps": (
        ("zero", False),
        ("worker = torch.optim.Adam(model.parameters()", "last = torch.optim.Adam(model.head.parameters())\n"
         "worker = torch.optim.Adam([p for n, p in model.named_parameters() if 'head' not in n]"),
    ),
}  # fmt: skip


SUM = (  # begins with a zero that has no gradient
    ("loss = each.mean() + 0.1 * penalty", "loss = torch.zeros(())\n    loss += each.mean()\n    loss += 0.1 * penalty"),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("changes", [(), LEFT, SUM], ids=["on the right", "on the left", "sum"])
def test_a_correct_training_on_words_has_no_finding(changes, audit):
    assert audit(WORDS, *changes) == ([], "")


AVERAGE = """
import copy
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
slow = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(14):
    x = torch.randn(16, 6)
    with torch.no_grad():
        target = slow(x) + 1
    loss = nn.functional.mse_loss(model(x + 0.1), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept = 0.99
    with torch.no_grad():
        for old, new in zip(slow.parameters(), model.parameters()):
            old.mul_(kept).add_(new, alpha=1 - kept)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kept", "named"),
    [
        ("0.99", []),
        ("0.01", [("evaluation", False)]),
        ("(1 + step) / (10 + step)", []),
        ("0.0", []),
    ],
    ids=["slow", "exchanged", "warmed up", "the same"],
)
def test_an_average_is_slow(kept, named, audit):
    assert audit(AVERAGE, ("kept = 0.99", f"kept = {kept}"))[0] == named


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
