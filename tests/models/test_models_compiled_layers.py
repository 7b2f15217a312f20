"""Layers by torch.compile: captures their graphs and runs these without the compiler."""

import pytest
import torch
from torch._dynamo.utils import counters

from schemas.config.model import Transformer
from schemas.errors import Unsupported
from tests.models.test_models_checkpoint import kept_bytes
from tests.models.test_models_decoder_only import batch as decoder_batch
from tests.models.test_models_decoder_only import build as decoder
from transformer_core.models import language_model, transformer
from transformer_core.models.compiled_layers import compile_layers
from transformer_core.models.registry import build_model
from transformer_core.run.statuses import classify

V = 50


def compile_by(backend, monkeypatch):
    """Makes models compile layers with ``backend``, and resets the count of graphs."""
    for module in (transformer, language_model):
        monkeypatch.setattr(
            module,
            "compile_layers",
            lambda kind, *layers: compile_layers(kind, *layers, backend=backend),
        )
    torch._dynamo.reset()
    counters.clear()


def built(**changes):
    torch.manual_seed(0)
    return build_model(Transformer(**{"d_model": 16, "d_ff": 32, "heads": 2} | changes), V)


def assert_same_gradients(models, batches, close=1e-4):
    for given in batches:
        found = []
        for each in models:
            each.train().zero_grad()
            each(*given).square().sum().backward()
            found.append([p.grad.clone() for p in each.parameters()])
        torch.testing.assert_close(*found, rtol=close, atol=close)


def batch(rows, s, t):
    source = torch.randint(4, V, (rows, s))
    source[0, -2:] = 0
    return source, torch.randint(4, V, (rows, t))


def assert_graphs(number):
    assert counters["stats"]["unique_graphs"] == number
    assert not counters["graph_break"]


@pytest.mark.slow
def test_two_graphs_serve_all_layers_and_lengths(monkeypatch):
    compile_by("aot_eager", monkeypatch)
    sizes = {"dropout": 0.0, "encoder_layers": 3}
    models = built(compile="layers", **sizes), built(**sizes)
    assert_same_gradients(models, [batch(*shape) for shape in ((4, 7, 6), (3, 9, 11))])
    assert_graphs(2)


@pytest.mark.slow
def test_one_graph_serves_all_layers_and_lengths_of_a_decoder_and_keeps_a_share(monkeypatch):
    """torch's partition of a graph recomputes more if it may keep less, with the same result."""
    kept = []
    for share in (1.0, 0.0):
        compile_by("aot_eager_decomp_partition", monkeypatch)
        model = decoder(compile="layers", kept_share=share).train()
        kept.append(kept_bytes(lambda model=model: model(*decoder_batch())))
        batches = [[part[:, :columns] for part in decoder_batch()] for columns in (10, 7)]
        assert_same_gradients((model, decoder()), batches)
        assert_graphs(1)
    assert kept[1] < kept[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"compile": "layers"}, r"model\.compile: layers cannot be compiled here"),
        ({"compile": "graphs"}, r"graphs needs a GPU.*this run is on a cpu"),
        (
            {"compile": "layers", "kept_share": 0.5, "dropout": 1e-9},
            "kept_share: torch draws different dropout masks",
        ),
    ],
)
def test_training_that_cannot_be_compiled_explains_why_and_evaluation_compiles_nothing(
    monkeypatch, fields, message
):
    def broken(graph, inputs):
        raise RuntimeError("no C++ compiler")

    compile_by(broken, monkeypatch)
    model = built(**fields).train()
    with pytest.raises(Unsupported, match=message):
        model(*batch(3, 7, 6))
    model.eval()(*batch(3, 7, 6))


def test_lack_of_memory_while_compiling_is_no_lack_of_support(monkeypatch):
    def broken(graph, inputs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    compile_by(broken, monkeypatch)
    with pytest.raises(RuntimeError, match="Tried to allocate") as found:
        built(compile="layers").train()(*batch(3, 7, 6))
    assert classify(found.value)[0] == "oom"


@pytest.mark.gpu
def test_graphs_give_the_gradients_of_every_step():
    sizes = {"d_model": 64, "d_ff": 128, "dropout": 0.0}
    models = built(**sizes, compile="graphs").cuda(), built(**sizes).cuda()
    # Every shape occurs several times: to warm up, to be recorded, and to be replayed.
    shapes = 3 * ((4, 8, 8), (3, 16, 8)) + ((4, 8, 8),)
    batches = [[tensor.cuda() for tensor in batch(*shape)] for shape in shapes]
    assert_same_gradients(models, batches, 1e-3)
