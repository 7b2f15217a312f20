"""Users' own models: what they must offer, and the messages if they do not."""

import sys

import pytest
import torch
from safetensors.torch import save_file

from schemas.config.model import ImportedModel
from schemas.config.run_spec import RunSpec
from tests.measure.short_runs import recorded
from tests.models.token_batches import pairs
from tests.training.small_training import run_small, small_setup, small_spec
from transformer_core.models.decoding import beam_search, greedy
from transformer_core.models.registry import build_model
from transformer_core.parallel.sharded_weights import whole_weights
from transformer_core.training.translate import load_weights

EXAMPLE = "docs.examples.own_model:build"
V = 31

MODULE = """
import torch
from torch import nn

number = 3

def nothing(spec, vocabulary):
    return None

def alone():
    return None

class Bag(nn.Module):
    '''The next token depends on the last one and on the sum of the source.'''
    def __init__(self, spec, vocabulary, shift=0):
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary + shift)
        self.calls = []
    def forward(self, source, target_input):
        self.calls.append(target_input.size(1))
        return self.table(target_input) + self.table(source).sum(1, keepdim=True)

class Half(Bag):
    def encode(self, source):
        return self.table(source).sum(1, keepdim=True)

class Full(Half):
    def new_cache(self):
        return NoCache()
    def decode(self, memory, source, target_input, cache=None):
        return self.table(target_input) + memory

class NoCache:
    def reorder(self, rows): pass
    def select(self, rows): pass

class Gaps(Bag):
    def __init__(self, spec, vocabulary):
        super().__init__(spec, vocabulary)
        self.table.weight = nn.Parameter(self.table.weight.detach().t())
        self.register_buffer("scale", self.table.weight.detach().t())

class Twins(Bag):
    def __init__(self, spec, vocabulary):
        super().__init__(spec, vocabulary)
        self.other = nn.Parameter(self.table.weight.data)

class Window(Bag):
    def __init__(self, spec, vocabulary):
        super().__init__(spec, vocabulary)
        self.register_buffer("places", torch.arange(9))
        self.register_buffer("first", self.places[:4])

class Views(Bag):
    '''Tensors that do not fill their memory, or repeat their numbers.'''
    def __init__(self, spec, vocabulary):
        super().__init__(spec, vocabulary)
        one = torch.randn(20)
        self.left, self.right = nn.Parameter(one[:8]), nn.Parameter(one[10:])
        self.register_buffer("part", torch.randn(9)[:4])
        self.register_buffer("repeated", torch.randn(1, 3).expand(4, 3))
        self.again = self.table
    def forward(self, source, target_input):
        return super().forward(source, target_input) + self.left.sum() * self.repeated.sum()

class Growing(Bag):
    def __init__(self, spec, vocabulary):
        super().__init__(spec, vocabulary)
        self.register_buffer("longest", torch.ones(1))
    def forward(self, source, target_input):
        if target_input.size(1) > len(self.longest):
            self.register_buffer("longest", torch.ones(target_input.size(1)))
        return super().forward(source, target_input)

class Frozen(Bag):
    def __init__(self, spec, vocabulary):
        super().__init__(spec, vocabulary)
        self.requires_grad_(False)

class Noted(Bag):
    def get_extra_state(self):
        return {"calls": 3}

class Averaging(Bag):
    def __init__(self, spec, vocabulary):
        super().__init__(spec, vocabulary)
        self.norm = nn.BatchNorm1d(vocabulary)
        self.none = nn.Parameter(torch.empty(0))
    def forward(self, source, target_input):
        return self.norm(super().forward(source, target_input).transpose(1, 2)).transpose(1, 2)

class Noisy(Bag):
    def forward(self, source, target_input):
        return super().forward(source, target_input) * (1 + torch.rand(()))

class Peeking(Bag):
    def forward(self, source, target_input):
        return super().forward(source, target_input) + self.table(target_input).mean(1, keepdim=True)

def wide(spec, vocabulary):
    return Bag(spec, vocabulary, shift=2)

class Pair(Bag):
    def forward(self, source, target_input):
        return super().forward(source, target_input), None

class Ids(Bag):
    def forward(self, source, target_input):
        return super().forward(source, target_input).long()
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder on the module path; removes its modules from Python's cache afterwards."""
    (tmp_path / "users_model.py").write_text(MODULE)
    (tmp_path / "broken_model.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("users_model", "broken_model"):
        sys.modules.pop(name, None)


def build(factory, **fields):
    torch.manual_seed(3)
    return build_model(ImportedModel(kind="import", factory=factory, **fields), V)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("no_such_module:build", "there is no module no_such_module; remedy: start snakemake in"),
        ("users_model.inner:build", "there is no module users_model.inner"),
        ("users_model:bag", "users_model has no function bag; remedy: choose from Bag"),
        ("users_model:number", "users_model has no function number"),
        ("users_model:alone", "cannot be called (too many positional arguments); remedy: define"),
        ("users_model:nothing", "returns a NoneType, not a torch.nn.Module"),
        ("users_model:Twins", "other and table.weight are two parameters with the same memory"),
        (
            "users_model:Window",
            "places and first are two tensors with the same memory; remedy: regis",
        ),
        ("users_model:Frozen", "the module has no parameter that requires a gradient"),
        ("users_model:Noted", "_extra_state in the state of the module is not a tensor"),
        ("users_model:Half", "has no decode and no new_cache; remedy: define all of encode, "),
    ],
)
def test_factories_that_cannot_be_used_are_explained(modules, factory, message):
    with pytest.raises(ValueError, match=f"^model.factory = {factory}: ") as raised:
        build(factory)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_import_that_fails_inside_the_module_is_the_users_own_error(modules):
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        build("broken_model:build")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("wide", r"returns torch.float32 \[3, 4, 33\].*return logits \[3, 4, 31\]"),
        ("Pair", "returns a tuple, not a tensor"),
        ("Ids", r"returns torch.int64 \[3, 4, 31\]"),
    ],
)
def test_wrong_logits_are_reported_at_the_first_batch(modules, factory, message):
    model = build(f"users_model:{factory}")
    with pytest.raises(ValueError, match=message):
        model(*pairs(V, 6, 4))


@pytest.mark.parametrize("precision", ["fp32", "bf16_weights"])
def test_weights_with_gaps_are_trained_resumed_and_saved(modules, tmp_path, precision):
    spec = small_spec(training={"precision": {"kind": precision}, "checkpoint_every": 3})
    model = {"kind": "import", "factory": "users_model:Gaps"}
    spec = RunSpec.model_validate(spec.model_dump() | {"model": model})
    before = whole_weights(small_setup(spec).model, keep=True)
    found = []
    for folder, stop_at in (("whole", 0), ("parts", 4), ("parts", 0)):
        _, setup = run_small(spec, tmp_path / folder, stop_at)
        found.append(whole_weights(setup.model, keep=True))
    save_file(found[0], tmp_path / "model.safetensors")
    assert not torch.equal(found[0]["own.table.weight"], before["own.table.weight"])
    assert all(torch.equal(tensor, found[2][name]) for name, tensor in found[0].items())


@pytest.mark.parametrize("name", ["Views", "Growing"])
def test_unusual_tensors_are_resumed_saved_and_loaded(modules, tmp_path, name):
    spec = of_users(name)
    training = spec.training.model_dump() | {"steps": 6, "checkpoint_every": 3}
    spec = RunSpec.model_validate(spec.model_dump() | {"training": training})
    run_small(spec, tmp_path, 4)
    _, setup = run_small(spec, tmp_path)
    weights = whole_weights(setup.model, keep=True)
    save_file(weights, tmp_path / "model.safetensors")
    loaded = build_model(spec.model, setup.train_store.manifest.vocabulary)
    load_weights(loaded, tmp_path / "model.safetensors")
    assert all(
        torch.equal(weights[name], x) for name, x in whole_weights(loaded, keep=True).items()
    )


def of_users(name):
    spec = small_spec(training={"steps": 2}).model_dump()
    return RunSpec.model_validate(
        spec | {"model": {"kind": "import", "factory": f"users_model:{name}", "dropout": 0.0}}
    )


def test_short_runs_validate_with_the_running_statistics_of_a_model(modules, tmp_path):
    checks = recorded(of_users("Averaging"), tmp_path).trajectory.after_resuming
    assert checks.validation.loss == pytest.approx(checks.validation.expected_loss, rel=1e-5)
    assert max(g.error for g in checks.gradients) < 1e-5


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("Noisy", "draw random numbers only with dropout"), ("Peeking", "mask all later places")],
)
def test_short_runs_refuse_a_model_with_other_logits(modules, tmp_path, name, remedy):
    with pytest.raises(ValueError, match=remedy):
        recorded(of_users(name), tmp_path)


@torch.no_grad()
def test_both_searches_work_with_forward_alone(modules):
    source, _ = pairs(V, 6, 4)
    alone, own = build("users_model:Bag").eval(), build("users_model:Full").eval()
    assert greedy(alone, source, 6) == greedy(own, source, 6)
    assert beam_search(alone, source, 3, 0.6, 6) == beam_search(own, source, 3, 0.6, 6)
    assert max(alone.own.calls) > 1  # the whole prefix
    assert own.own.calls == []  # its decode() was called instead


def test_the_example_takes_sizes_and_options():
    assert build(EXAMPLE, d_model=24, encoder_layers=3).own.reader.num_layers == 3
    model = build(EXAMPLE, d_model=24, encoder_layers=3, options={"layers": 1})
    assert model.own.reader.num_layers == 1
    assert model.own.source.embedding_dim == 24
