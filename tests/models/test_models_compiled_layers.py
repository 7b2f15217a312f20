"""Layers by torch.compile: graphs are made, and run as they are, without the compiler."""

import pytest
import torch
from torch._dynamo.utils import counters

from schemas.config.model import Transformer
from schemas.errors import Unsupported
from transformer_core.models import transformer as module
from transformer_core.models.compiled_layers import compile_layers
from transformer_core.models.registry import build_model

V = 50
GRAPHS = {"compile": "graphs"}


def built(monkeypatch, backend, **changes):
    monkeypatch.setattr(
        module,
        "compile_layers",
        lambda kind, *layers: compile_layers(kind, *layers, backend=backend),
    )
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    return build_model(Transformer(d_model=16, d_ff=32, heads=2, **changes), V)


def batch(rows, s, t):
    source = torch.randint(4, V, (rows, s))
    source[0, -2:] = 0
    return source, torch.randint(4, V, (rows, t))


def test_two_graphs_serve_all_layers_and_lengths(monkeypatch):
    model = built(monkeypatch, "aot_eager", compile="layers", dropout=0.0, encoder_layers=3).train()
    plain = built(monkeypatch, "aot_eager", dropout=0.0, encoder_layers=3).train()
    plain.load_state_dict(model.state_dict())
    for shape in ((4, 7, 6), (3, 9, 8), (5, 12, 5), (2, 6, 11)):
        given = batch(*shape)
        found = []
        for each in (model, plain):
            each.zero_grad()
            each(*given).square().sum().backward()
            found.append([p.grad.clone() for p in each.parameters()])
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


def test_evaluation_compiles_nothing(monkeypatch):
    model = built(monkeypatch, "aot_eager", compile="layers").eval()
    with torch.no_grad():
        model(*batch(3, 7, 6))
    assert not counters["stats"]


def test_a_host_that_cannot_compile_says_so(monkeypatch):
    def broken(graph, inputs):
        raise RuntimeError("no C++ compiler")

    model = built(monkeypatch, broken, compile="layers").train()
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
    for shape in 3 * ((4, 8, 8), (3, 16, 8)) + ((4, 8, 8),):
        given = [tensor.cuda() for tensor in batch(*shape)]
        found = []
        for each in (graphed, plain):
            each.zero_grad(set_to_none=True)
            each(*given).square().sum().backward()
            found.append([p.grad.clone() for p in each.parameters()])
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_a_share_of_activations_is_refused_with_dropout() -> None:
    tokens = torch.ones(1, 3, dtype=torch.long)
    for dropout in (0.1, 1e-9):
        spec = Transformer(
            d_model=16, d_ff=32, heads=2, dropout=dropout, compile="layers", kept_share=0.5
        )
        with pytest.raises(Unsupported, match="kept_share: torch draws other masks"):
            build_model(spec, V)(tokens, tokens)
