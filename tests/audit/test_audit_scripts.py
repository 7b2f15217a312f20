"""Audits of small scripts: errors are named, and mended scripts are not called wrong."""

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from benchmarks.fifty.__main__ import PLACE, findings, ranks
from transformer_core.audit.__main__ import main
from transformer_core.audit.relations import Finding

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parents[1] / "tune" / "scripts"
SEEN = {
    "laplace_redux_1": "loss",
    "wekws_73": "zero",
    "flaggems_4988": "update",
    "transformers_48745": "later",
    "transformers_47394": "shift",
    "pytorch_nlp_2": "samples",
    "siamcar_18": "trained",
    "appfl_198": "zero",
    "applio_860": "zero",
    "coursia_926": "loss",
    "doctr_840": "data",
    "tutorials_188": "state",
    "bert_summarizer_41": "padding",
    "esrgan_pytorch_39": "zero",
    "sentence_vae_20": "samples",
    "trl_937": "padding",
}
WORTH_A_LOOK = {
    "d2l_en_2707": "padding",
    "deepspeedexamples_755": "trained",
    "ld_74": "loss",
    "lightly_1528": "ranks",
    "llm_course_33": "padding",
    "minimind_749": "parts",
    "pytorch_fm_21": "evaluation",
    "sesemi_36": "evaluation",
    "stacked_capsule_networks_5": "trained",
    "texar_pytorch_72": "trained",
    "virtex_16": "trained",
    "easy_rl_117": "loss",
    "knowlege_distillation_2": "evaluation",
    "l2d_5": "loss",
    "open_rig3r_35": "zero",
    "open_unlearning_30": "loss",
    "transformers_28093": "trained",
    "transformers_34469": "evaluation",
}


@pytest.fixture(scope="module")
def forks():
    """Forks of a process that has imported torch."""
    with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
        yield pool


@pytest.fixture
def audit(forks, capsys, monkeypatch):
    """The audit's findings in a program; the command itself audits those with ranks."""

    def found(name, which):
        script = PLACE / f"{name}.py"
        if ranks(script) == 1:
            return forks.submit(findings, script, which).result()
        monkeypatch.chdir(PLACE)
        main(["--json", "torchrun", f"--nproc-per-node={ranks(script)}", script.name, which])
        return [Finding(**each) for each in json.loads(capsys.readouterr().out)["findings"]]

    return found


@pytest.mark.parametrize("name", SEEN)
def test_an_error_is_named(name, audit):
    assert SEEN[name] in {found.relation for found in audit(name, "faulty") if found.sure}


@pytest.mark.parametrize("name", WORTH_A_LOOK)
def test_what_may_be_on_purpose_is_worth_a_look(name, audit):
    found = audit(name, "faulty")
    assert WORTH_A_LOOK[name] in {each.relation for each in found}
    assert not any(each.sure for each in found)


@pytest.mark.parametrize(
    "name",
    [
        *("transformers_34191", "transformers_47394", "mcan_vqa_26"),
        *("appfl_198", "applio_860", "coursia_926", "doctr_840", "tutorials_188"),
        *("bert_summarizer_41", "esrgan_pytorch_39", "sentence_vae_20", "trl_937"),
        # One for each relation; python -m benchmarks.fifty audits all.
        *{relation: name for name, relation in WORTH_A_LOOK.items()}.values(),
    ],
)
def test_a_mended_script_is_clean(name, audit):
    assert audit(name, "mended") == []


def test_the_command_ends_with_1_if_it_finds_an_error(capsys, monkeypatch):
    monkeypatch.chdir(PLACE)
    assert main(["--json", "--time", "20s", "transformers_34191.py", "faulty"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert "parts" in {each["relation"] for each in found if each["sure"]}


def test_a_script_without_training_is_refused(tmp_path, capsys, monkeypatch):
    (tmp_path / "nothing.py").write_text("print('no training here')\n")
    monkeypatch.chdir(tmp_path)
    assert main(["--json", "nothing.py"]) == 2
    assert "no training to observe" in json.loads(capsys.readouterr().out)["reason"]
    assert main(["--json", "missing.py"]) == 2


COMPILED = """
import torch
from torch import nn

class Head(nn.Linear):
    def forward(self, x):
        logits = super().forward(x)
        logits[..., 0] = -100.0
        return logits

layer = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
model = nn.Sequential(nn.Embedding(9, 8), layer, nn.Linear(8, 9))
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(200):
    tokens = torch.randint(0, 9, (4, 6))
    loss = nn.functional.cross_entropy(compiled(tokens).view(-1, 9), tokens.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


IN_PLACE = COMPILED.replace("nn.Linear(8, 9)", "Head(8, 9)").replace(
    'torch.compile(model, backend="eager")', "model"
)


@pytest.mark.parametrize("script", [COMPILED, IN_PLACE], ids=["compiled", "changed in place"])
def test_the_probes_run_on_models_of_any_kind(script, tmp_path, capsys, monkeypatch):
    (tmp_path / "compiled.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    main(["--json", "--time", "15s", "compiled.py"])
    found = json.loads(capsys.readouterr().out)
    assert found["relations"]["samples"]["status"] == "holds", found


PREFIX = """
import sys
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(19, 16), nn.Linear(16, 19)
        self.mask = torch.ones(12, 12).tril()
        self.mask[:, :5] = 1

    def forward(self, tokens):
        return self.head(torch.tanh(self.mask @ self.embedding(tokens)))

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(200):
    tokens = (torch.randint(0, 19, (8, 1)) + torch.arange(13) * torch.randint(1, 4, (8, 1))) % 19
    targets = tokens[:, 1:].clone()
    targets[:, : int(sys.argv[1])] = -100
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).view(-1, 19), targets.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("ignored", "later", "shift"),
    # With three, a token of the prefix must be predicted; only the last prediction shows nothing.
    [("4", "holds", "holds"), ("3", "broken", "holds"), ("11", "untested", "untested")],
)
def test_predictions_that_do_not_count_may_see_everything(
    ignored, later, shift, tmp_path, capsys, monkeypatch
):
    (tmp_path / "prefix.py").write_text(PREFIX)
    monkeypatch.chdir(tmp_path)
    main(["--json", "--time", "15s", "prefix.py", ignored])
    found = json.loads(capsys.readouterr().out)["relations"]
    assert (found["later"]["status"], found["shift"]["status"]) == (later, shift), found


PADDED = """
import sys
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(19, 16), nn.Linear(16, 19)
        self.mask = torch.ones(13, 13)
        if "causal" in sys.argv:
            self.mask = self.mask.tril()

    def forward(self, tokens):
        return self.head(torch.tanh(self.mask @ self.embedding(tokens)))

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(200):
    texts = [torch.randint(3, 19, (n,)) for n in (12, 7, 9, 11, 6, 8, 10, 5)]
    texts = [torch.cat([torch.tensor([1]), text, torch.tensor([2])]) for text in texts]
    tokens, targets = (
        nn.utils.rnn.pad_sequence(each, batch_first=True)
        for each in ([t[:-1] for t in texts], [t[1:] for t in texts])
    )
    loss = nn.functional.cross_entropy(model(tokens).view(-1, 19), targets.view(-1), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("words", "later"), [(["causal"], "holds"), ([], "broken")])
def test_the_end_of_a_text_may_be_a_target_alone(words, later, tmp_path, capsys, monkeypatch):
    """Inputs and targets are padded one by one, and the inputs never have the end."""
    (tmp_path / "padded.py").write_text(PADDED)
    monkeypatch.chdir(tmp_path)
    main(["--json", "--time", "15s", "padded.py", *words])
    found = json.loads(capsys.readouterr().out)["relations"]
    assert (found["later"]["status"], found["shift"]["status"]) == (later, "holds"), found


UNUSUAL = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Block(nn.Module):
    def forward(self, x):
        made = [nn.Linear(16, 16), nn.LayerNorm(16)] if "created" in sys.argv else [torch.tanh]
        for each in made:
            x = each(x)
        return x

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.block, self.head = nn.Embedding(19, 16), Block(), nn.Linear(16, 19)
        self.attention, self.pair = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 2)

    def forward(self, tokens):
        mask = torch.ones(12, 12).triu(1).bool() if "causal" in sys.argv else None
        x = self.words(tokens)
        x = self.block(self.attention(x, x, x, attn_mask=mask)[0])
        return self.head(x), self.pair(x[:, 0])

torch.manual_seed(0)
data = TensorDataset(torch.randint(19, (48, 13)))
model, loss_of = Model(), nn.CrossEntropyLoss()
pair_loss = nn.CrossEntropyLoss(ignore_index=0 if "ignored" in sys.argv else -100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    tokens = torch.randint(19, (8, 13))
    logits, pair = model(tokens[:, :-1])
    loss = loss_of(logits.reshape(-1, 19), tokens[:, 1:].reshape(-1))
    loss += pair_loss(pair, torch.arange(8) % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 2:
        model.eval()
        with torch.no_grad():
            for size in (16, 8):
                for (tokens,) in DataLoader(data, size):
                    logits, _ = model(tokens[:, :-1])
                    loss_of(logits.reshape(-1, 19), tokens[:, 1:].reshape(-1))
        model.train()
"""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["causal"], {}),  # Two loaders may have batches of different sizes.
        ([], {"later": "broken"}),  # The loss is a module of torch, outside the model.
        (["causal", "ignored"], {"loss": "broken"}),
        (["causal", "created"], {"trained": "broken"}),
    ],
    ids=["clean", "no mask", "one of two classes ignored", "created in each pass"],
)
def test_what_public_scripts_do_is_seen(words, named, tmp_path, capsys, monkeypatch):
    (tmp_path / "unusual.py").write_text(UNUSUAL)
    monkeypatch.chdir(tmp_path)
    main(["--json", "--time", "20s", "unusual.py", *words])
    found = json.loads(capsys.readouterr().out)["relations"]
    # A model with other weights in each pass has no prediction to compare.
    assert (found["later"]["status"] == "untested") == ("created" in words)
    assert {k: v["status"] for k, v in found.items() if v["status"] in ("broken", "look")} == named


@pytest.mark.parametrize("optimizer", ["LBFGS(max_iter=3, ", "SGD("])
def test_evaluations_in_a_closure_are_no_parts_of_a_batch(optimizer, tmp_path, capsys, monkeypatch):
    (tmp_path / "search.py").write_text(
        """
import torch

torch.manual_seed(0)
model, x = torch.nn.Linear(6, 1), torch.randn(64, 6)
optimizer = torch.optim.OPTIMIZERparams=model.parameters(), lr=0.05)
for _ in range(200):
    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        return loss
    optimizer.step(closure)
""".replace("OPTIMIZER", optimizer)
    )
    monkeypatch.chdir(tmp_path)
    assert main(["--json", "--time", "15s", "search.py"]) == 0
    relations = json.loads(capsys.readouterr().out)["relations"]
    for name in ("update", "zero"):
        assert relations[name]["status"] == "untested"
        assert "in a closure" in relations[name]["how"]


def test_a_script_without_an_optimizer_of_torch_is_told_what_was_not_tested(capsys, monkeypatch):
    monkeypatch.chdir(SCRIPTS)
    assert main(["--json", "--time", "15s", "by_hand.py"]) == 0
    relations = json.loads(capsys.readouterr().out)["relations"]
    untested = {relations[name]["how"] for name in ("trained", "update", "zero")}
    assert untested == {"no optimizer of torch steps"}


def test_an_optimizer_that_never_steps_is_named(tmp_path, capsys, monkeypatch):
    (tmp_path / "idle.py").write_text(
        """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(200):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.arange(8) % 3).backward()
"""
    )
    monkeypatch.chdir(tmp_path)
    assert main(["--json", "--time", "15s", "idle.py"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert ["has not stepped once" in each["cause"] for each in found] == [True]


@pytest.mark.parametrize("given", ["training=True", "True"])
def test_batch_normalization_with_an_argument_in_place_of_a_mode_is_no_error(
    given, tmp_path, capsys, monkeypatch
):
    """In the style of Keras, which also calls a model without values to learn its shapes."""
    (tmp_path / "keras_style.py").write_text(
        """
import torch
from torch import nn

class BatchNormalization(nn.Module):
    def forward(self, x, training=False):
        return (x - x.mean(0)) / (x.std(0) + 0.1) if training else x

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 9), nn.Linear(9, 3)
        self.layers = [BatchNormalization()]  # unknown to torch, as in Keras

    def forward(self, x, training=False):
        return self.last(self.layers[0](self.first(x.flatten(1)), training=training))

torch.manual_seed(0)
with torch.device("meta"):
    Model()(torch.empty(2, 1, 8, 8))
model = Model()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(200):
    optimizer.zero_grad()
    logits = model(torch.randn(8, 1, 8, 8), GIVEN)
    nn.functional.cross_entropy(logits, torch.randint(0, 3, (8,))).backward()
    optimizer.step()
""".replace("GIVEN", given)
    )
    monkeypatch.chdir(tmp_path)
    assert main(["--json", "--time", "15s", "keras_style.py"]) == 0
    assert json.loads(capsys.readouterr().out)["relations"]["samples"]["status"] == "holds"


def test_gradients_that_the_script_reads_before_it_deletes_them_are_used(
    tmp_path, capsys, monkeypatch
):
    """Sharpness-aware minimization, whose losses of two tasks are in one line."""
    (tmp_path / "sharp.py").write_text("""
import torch
from torch import nn

torch.manual_seed(0)
model, heads = nn.Linear(16, 32), [nn.Linear(32, 4), nn.Linear(32, 9)]
parameters = [p for part in (model, *heads) for p in part.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)

def loss_of(x, targets):
    logits = [head(model(x)) for head in heads]
    hand = -nn.functional.log_softmax(logits[0], 1)[range(8), targets[0]].mean()
    return hand + sum(nn.functional.cross_entropy(*each) for each in zip(logits, targets))

for _ in range(200):
    x, targets = torch.randn(8, 16), [torch.randint(0, n, (8,)) for n in (4, 9)]
    targets[1][: torch.randint(1, 7, ())] = -100
    optimizer.zero_grad()
    loss_of(x, targets).backward()
    steps = [0.05 * p.grad for p in parameters]
    with torch.no_grad():
        torch._foreach_add_(parameters, steps)
    optimizer.zero_grad()
    loss_of(x, targets).backward()
    with torch.no_grad():
        torch._foreach_sub_(parameters, steps)
    optimizer.step()
""")
    monkeypatch.chdir(tmp_path)
    assert main(["--json", "--time", "15s", "sharp.py"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("layer", ["Past", "Both"])
def test_a_call_of_forward_is_a_call_of_the_model(layer, tmp_path, capsys, monkeypatch):
    (tmp_path / "direct.py").write_text("""
import sys, torch
from torch import nn

class Past(nn.Module):
    def forward(self, x):
        return x.cumsum(1)

class Both(nn.Module):
    def forward(self, x):
        return x.cumsum(1) + x.flip(1).cumsum(1).flip(1)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(20, 16), globals()[sys.argv[1]]()
        self.head = nn.Linear(16, 20)

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens)))

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(200):
    optimizer.zero_grad()
    tokens = torch.randint(0, 20, (8, 17))
    logits = model.forward(tokens[:, :-1])
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
""")
    monkeypatch.chdir(tmp_path)
    main(["--json", "--time", "15s", "direct.py", layer])
    found = json.loads(capsys.readouterr().out)["relations"]
    assert found["later"]["status"] == {"Past": "holds", "Both": "broken"}[layer]
    assert found["samples"]["status"] == found["precision"]["status"] == "holds"


def test_a_step_between_two_optimizers_is_not_the_one_that_is_probed(tmp_path, capsys, monkeypatch):
    (tmp_path / "two.py").write_text("""
import torch
from torch import nn

torch.manual_seed(0)
one, two = nn.Linear(8, 8), nn.Linear(8, 3)
first, second = torch.optim.SGD(one.parameters(), 0.1), torch.optim.SGD(two.parameters(), 0.1)
for step in range(200):
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(two(one(x)), torch.randint(0, 3, (16,)))
    first.zero_grad()
    second.zero_grad()
    loss.backward()
    if step:
        first.step()
    second.step()
""")
    monkeypatch.chdir(tmp_path)
    main(["--json", "--time", "15s", "two.py"])
    found = json.loads(capsys.readouterr().out)["relations"]
    assert found["inputs"]["status"] == "holds", found


def test_an_evaluation_that_does_not_end_in_time_is_not_waited_for(tmp_path, capsys, monkeypatch):
    (tmp_path / "slow.py").write_text("""
import time, torch
from torch import nn

model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(20):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 3, (16,))).backward()
    optimizer.step()
    if step == 9:
        time.sleep(3600)
""")
    monkeypatch.chdir(tmp_path)
    assert main(["--json", "--time", "10s", "slow.py"]) == 0
    found = json.loads(capsys.readouterr().out)["relations"]
    assert found["update"]["status"] == "holds"
    assert found["evaluation"]["how"] == "no time was left"


GAN = """
import torch
from torch import nn

torch.manual_seed(0)
made, judged = nn.Linear(4, 8), nn.Linear(8, 1)
first, second = (torch.optim.SGD(each.parameters(), 0.1) for each in (made, judged))

def bce(samples, target):
    return nn.functional.binary_cross_entropy_with_logits(judged(samples), torch.full((16, 1), target))

for _ in range(40):
    second.zero_grad()
    (bce(torch.randn(16, 8) + 2, 1.0) + bce(made(torch.randn(16, 4)).detach(), 0.0)).backward()
    second.step()
    first.zero_grad()
    bce(made(torch.randn(16, 4)), 1.0).backward()
    first.step()
"""
PARTS = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for part in range(80):
    if part % 2:
        optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 3, (16,))).backward()
    if part % 2:
        optimizer.step()
"""
LOOSE = """
import torch
from torch import nn

class Balance(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy, self.scale = nn.Linear(8, 3), nn.Parameter(torch.zeros(()))

torch.manual_seed(0)
model = Balance()
optimizer = torch.optim.SGD(HELD, 0.1)
for _ in range(40):
    optimizer.zero_grad()
    (model.policy(torch.randn(16, 8)).sum(1) + model.scale - 1).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("script", "named"),
    [
        (GAN, []),
        (GAN.replace("second.step()", "second.step(); second.zero_grad()"), []),
        (PARTS, [("zero", "only later parts count")]),
        (LOOSE.replace("HELD", "model.parameters()"), []),
        (LOOSE.replace("HELD", "model.policy.parameters()"), [("trained", "in no optimizer")]),
    ],
)
def test_gradients_that_nothing_uses_are_named(script, named, tmp_path, capsys, monkeypatch):
    (tmp_path / "lost.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    main(["--json", "--time", "10s", "lost.py"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [each["relation"] for each in found] == [relation for relation, _ in named]
    assert all(words in each["cause"] for each, (_, words) in zip(found, named, strict=True))
