"""torch's linear_cross_entropy as a loss: what it adds to torch's function, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.loss import whole_head_loss
from transformer_core.models.objective import head_loss
from transformer_core.study.checks import violations
from transformer_core.techniques.linear_cross_entropy import LinearCrossEntropy

LOSS = LinearCrossEntropy(kind="linear_cross_entropy")
NEEDS_IT = pytest.mark.skipif(
    not hasattr(F, "linear_cross_entropy"), reason="needs torch 2.13 or newer"
)


def drawn(b=3, t=40, d=16, v=50):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(b, t, d, generator=generator).requires_grad_()
    output = torch.randn(v, d, generator=generator).requires_grad_()
    labels = torch.randint(1, v, (b, t), generator=generator)
    labels[torch.rand(b, t, generator=generator) < 0.3] = PAD
    return hidden, output, labels


def loss_sum(hidden, output, labels, smoothing):
    return head_loss(LOSS)(LOSS, hidden, output, labels, smoothing)


@NEEDS_IT
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_value_and_gradients_are_those_of_whole_logits(smoothing):
    found, expected = [], []
    for results in (found, expected):
        hidden, output, labels = drawn()
        if results is found:
            loss = loss_sum(hidden, output, labels, smoothing)
        else:
            logits = (hidden @ output.T).flatten(0, 1)
            loss = F.cross_entropy(
                logits,
                labels.flatten(),
                ignore_index=PAD,
                label_smoothing=smoothing,
                reduction="sum",
            )
        (0.5 * loss).backward()
        results += [loss.detach(), hidden.grad, output.grad]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@NEEDS_IT
def test_padding_counts_nothing_even_where_there_is_nothing_else():
    hidden, output, labels = drawn()
    loss = loss_sum(hidden, output, torch.full_like(labels, PAD), 0.1)
    loss.backward()
    assert loss == 0
    assert not hidden.grad.any()
    assert not output.grad.any()


@NEEDS_IT
def test_without_gradients_and_on_tensors_without_memory():
    hidden, output, labels = drawn()
    with torch.no_grad():
        torch.testing.assert_close(
            loss_sum(hidden, output, labels, 0.0), whole_head_loss(hidden, output, labels)
        )
    with FakeTensorMode(allow_non_fake_inputs=True):
        hidden, output, labels = (torch.empty_like(x) for x in (hidden, output, labels))
        loss = loss_sum(hidden.requires_grad_(), output.requires_grad_(), labels, 0.1)
        loss.backward()
    assert loss.shape == ()


def test_an_older_torch_is_unsupported(monkeypatch):
    monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    with pytest.raises(Unsupported, match=r"needs torch 2\.13 or newer: take one_pass"):
        loss_sum(*drawn(), 0.1)


def test_16_bits_are_refused():
    def broken(kind):
        training = {"loss": {"kind": "linear_cross_entropy"}, "precision": {"kind": kind}}
        spec = RunSpec(variant="v", training=training)
        return [(field, remedy) for field, _, _, remedy in violations(spec)]

    assert broken("fp32") == broken("bf16_matmul") == []
    remedy = "take loss: {kind: one_pass}, or precision: {kind: fp32}"
    for kind in ("bf16", "bf16_weights", "fp16"):
        assert broken(kind) == [("training.loss.kind", remedy)]
