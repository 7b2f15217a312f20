"""Products of 32 bits by oneDNN: the same numbers for every operator and layout."""

from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from schemas.config.training import Fp32, Fp32Onednn
from schemas.errors import Unsupported
from transformer_core.training import precision
from transformer_core.training.precision import set_matmul

CPU = torch.device("cpu")
ONEDNN = Fp32Onednn(kind="fp32_onednn")
PRODUCT = "mkldnn::_linear_pointwise"


@pytest.fixture
def onednn():
    set_matmul(ONEDNN, CPU)
    yield
    set_matmul(Fp32(), CPU)


def operators(dtype):
    x, w, b = (torch.randn(*shape, dtype=dtype) for shape in ((8, 4), (6, 4), (6,)))
    with profile(activities=[ProfilerActivity.CPU]) as found:
        F.linear(x, w, b)
    return {event.key for event in found.key_averages()}


def forms(a, b):
    """Arguments of products [n, k] by [k, m] in all layouts and forms of the operator."""
    n, m = len(a), b.size(1)
    torch.manual_seed(1)
    c, row = torch.randn(n, m), torch.randn(m)
    gaps = torch.randn(n, 2 * a.size(1))
    gaps[:, : a.size(1)] = a
    gaps = gaps[:, : a.size(1)]
    rows = torch.zeros(2 * len(b), m)
    rows[::2] = b
    yield a @ b
    yield a.t().contiguous().t() @ b
    yield a @ b.t().contiguous().t()
    yield gaps @ b
    yield a @ rows[::2]
    yield torch.ones(1, 1).expand(n, a.size(1)) @ b
    yield a @ torch.ones(1, 1).expand(len(b), m)
    yield torch.mm(a, b, out=torch.empty(n, m))
    yield torch.mm(a, b, out=torch.empty(m, n).t())
    yield torch.addmm(row, a, b)
    yield torch.addmm(row, a, b, beta=0.5)
    yield torch.addmm(c, a, b, beta=0.5, alpha=2.0)
    yield torch.addmm(c, a, b, out=torch.empty(n, m))
    yield c.clone().addmm_(a, b)
    yield c.clone().addmm_(a, b, beta=0.5, alpha=2.0)
    yield torch.full((n, m), torch.nan).addmm_(a, b, beta=0)
    yield torch.addmm(torch.full((n, m), torch.nan), a, b, beta=0)


@pytest.mark.parametrize(("n", "k", "m"), [(6, 4, 5), (30, 2, 3), (1, 4, 2), (3, 4, 1), (4, 1, 6)])
def test_every_layout_and_form_gives_the_same(onednn, n, k, m):
    torch.manual_seed(0)
    a, b = torch.randn(n, k), torch.randn(k, m)
    mine = list(forms(a, b))
    set_matmul(Fp32(), CPU)
    torch.testing.assert_close(mine, list(forms(a, b)), rtol=1e-5, atol=1e-5)


def test_onednn_computes_32_bits_until_switched_back(onednn):
    assert PRODUCT in operators(torch.float32)
    assert PRODUCT not in operators(torch.float64) | operators(torch.bfloat16)
    set_matmul(Fp32(), CPU)
    assert PRODUCT not in operators(torch.float32)


def test_empty_products_are_left_to_torch_and_shapes_that_do_not_fit_refused(onednn):
    assert (torch.zeros(0, 3) @ torch.zeros(3, 2)).shape == (0, 2)
    assert (torch.zeros(2, 0) @ torch.zeros(0, 2)).tolist() == [[0.0, 0.0]] * 2
    with pytest.raises(RuntimeError):
        torch.randn(2, 3) @ torch.randn(4, 5)


def test_other_devices_and_a_torch_without_onednn_are_refused(monkeypatch):
    with pytest.raises(Unsupported, match="computes on CPUs; this run is on CUDA"):
        set_matmul(ONEDNN, torch.device("cuda"))
    monkeypatch.setattr(precision, "_product", Mock(side_effect=AttributeError("no such operator")))
    with pytest.raises(Unsupported, match="no oneDNN for 32 bits: no such operator"):
        set_matmul(ONEDNN, CPU)
