"""Layers by torch.compile: graphs are made, and run as they are, without the compiler."""

import pytest
import torch
from torch._dynamo.utils import counters

from schemas.config.model import Transformer
from schemas.errors import Unsupported
from tests.models.test_models_decoder_only import batch as decoder_batch
from tests.models.test_models_decoder_only import build as decoder
from transformer_core.models import language_model, transformer
from transformer_core.models.compiled_layers import compile_layers
from transformer_core.models.registry import build_model

V = 50
GRAPHS = {"compile": "graphs"}


def compile_by(backend, monkeypatch):
    """Compile layers with ``backend`` from now on, and reset the count of graphs."""
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
    return build_model(Transformer(d_model=16, d_ff=32, heads=2, **changes), V)


def assert_same_gradients(models, batches, close=1e-4):
    for given in batches:
        found = []
        for each in models:
            each.zero_grad()
            each(*given).square().sum().backward()
            found.append([p.grad.clone() for p in each.parameters()])
        torch.testing.assert_close(*found, rtol=close, atol=close)


def batch(rows, s, t):
    source = torch.randint(4, V, (rows, s))
    source[0, -2:] = 0
    return source, torch.randint(4, V, (rows, t))


def test_two_graphs_serve_all_layers_and_lengths(monkeypatch):
    compile_by("aot_eager", monkeypatch)
    sizes = {"dropout": 0.0, "encoder_layers": 3}
    models = built(compile="layers", **sizes).train(), built(**sizes).train()
    assert_same_gradients(models, [batch(*shape) for shape in ((4, 7, 6), (3, 9, 8), (2, 6, 11))])
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


def test_one_graph_serves_all_layers_and_lengths_of_a_decoder(monkeypatch):
    compile_by("aot_eager", monkeypatch)
    given = decoder_batch()
    batches = [[part[:, :columns] for part in given] for columns in (10, 7, 9)]
    assert_same_gradients((decoder(compile="layers").train(), decoder().train()), batches)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def test_a_share_of_the_activations_is_kept(monkeypatch):
    """torch's partition of a graph recomputes more where less may be kept, with the same result."""
    kept, found = [], []
    for share in (1.0, 0.0):
        compile_by("aot_eager_decomp_partition", monkeypatch)
        model = decoder(compile="layers", kept_share=share).train()
        storages = {}

        def pack(tensor, storages=storages):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model(*decoder_batch())
        loss.backward()
        kept.append(sum(storages.values()))
        found.append([p.grad for p in model.parameters()])
    assert kept[1] < kept[0]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_evaluation_compiles_nothing(monkeypatch):
    compile_by("aot_eager", monkeypatch)
    model = built(compile="layers").eval()
    with torch.no_grad():
        model(*batch(3, 7, 6))
    assert not counters["stats"]


def test_a_host_that_cannot_compile_says_so(monkeypatch):
    def broken(graph, inputs):
        raise RuntimeError("no C++ compiler")

    compile_by(broken, monkeypatch)
    model = built(compile="layers").train()
    with pytest.raises(Unsupported, match=r"model\.compile: layers cannot be compiled here"):
        model(*batch(3, 7, 6))


def test_graphs_need_a_gpu():
    torch.manual_seed(0)
    model = build_model(Transformer(d_model=16, d_ff=32, heads=2, compile="graphs"), V).train()
    with pytest.raises(Unsupported, match=r"graphs are CUDA graphs.*this run is on a cpu"):
        model(*batch(3, 7, 6))
    model.eval()(*batch(3, 7, 6))


@pytest.mark.gpu
def test_graphs_give_the_gradients_of_every_step():
    torch.manual_seed(0)
    sizes = {"d_model": 64, "d_ff": 128, "heads": 2, "dropout": 0.0}
    graphed, plain = (
        build_model(Transformer(**sizes, **more), V).cuda().train() for more in (GRAPHS, {})
    )
    plain.load_state_dict(graphed.state_dict())
    # Every shape several times: it is warmed up, then recorded, then played.
    shapes = 3 * ((4, 8, 8), (3, 16, 8)) + ((4, 8, 8),)
    batches = [[tensor.cuda() for tensor in batch(*shape)] for shape in shapes]
    assert_same_gradients((graphed, plain), batches, 1e-3)


def test_a_share_of_activations_is_refused_with_dropout():
    tokens = torch.ones(1, 3, dtype=torch.long)
    for dropout in (0.1, 1e-9):
        spec = Transformer(
            d_model=16, d_ff=32, heads=2, dropout=dropout, compile="layers", kept_share=0.5
        )
        with pytest.raises(Unsupported, match="kept_share: torch draws other masks"):
            build_model(spec, V)(tokens, tokens)
