import pytest
import torch
import torch.nn.functional as F
from torch import nn

from schemas.config.model import Transformer
from schemas.config.training import ChunkedLoss, WholeLoss
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.objective import Objective
from transformer_core.models.registry import build_model

VOCABULARY = 7


class Bigram(nn.Module):
    """Logits from the target input and the mean of the source."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.source = nn.Embedding(VOCABULARY, VOCABULARY)
        self.target = nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, source, target_input):
        return self.target(target_input) + self.source(source).mean(1, keepdim=True)


def batch():
    torch.manual_seed(1)
    source = torch.randint(3, VOCABULARY, (4, 5))
    target_input = torch.randint(1, VOCABULARY, (4, 6))
    target_output = torch.randint(1, VOCABULARY, (4, 6))
    target_output[1, 4:] = PAD
    target_output[3, 2:] = PAD
    return source, target_input, target_output


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_summed_cross_entropy_of_the_models_logits(smoothing):
    model = Bigram()
    source, target_input, target_output = batch()
    loss = Objective(model, smoothing)(source, target_input, target_output)
    expected = F.cross_entropy(
        model(source, target_input).flatten(0, 1),
        target_output.flatten(),
        ignore_index=PAD,
        reduction="sum",
        label_smoothing=smoothing,
    )
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected)


def test_losses_and_gradients_of_parts_add_up():
    source, target_input, target_output = batch()
    whole, parts = Objective(Bigram(), 0.1), Objective(Bigram(), 0.1)
    loss = whole(source, target_input, target_output)
    loss.backward()
    total = torch.zeros(())
    for part in (slice(0, 1), slice(1, 4)):
        piece = parts(source[part], target_input[part], target_output[part])
        piece.backward()
        total += piece.detach()
    torch.testing.assert_close(total, loss.detach())
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_part_without_labels_has_no_loss_and_no_gradient():
    objective = Objective(Bigram(), 0.1)
    loss = objective(torch.tensor([[2]]), torch.tensor([[1]]), torch.tensor([[PAD]]))
    loss.backward()
    assert loss.item() == 0.0
    assert all(not parameter.grad.any() for parameter in objective.parameters())


def test_the_objective_adds_no_parameter_and_no_buffer():
    model = Bigram()
    objective = Objective(model, 0.1)
    assert list(map(id, objective.parameters())) == list(map(id, model.parameters()))
    assert not list(objective.buffers())


def test_a_chunked_loss_is_the_loss_of_the_whole():
    source, target_input, target_output = batch()
    results = []
    for loss in (WholeLoss(), ChunkedLoss(kind="chunked", rows=5)):
        torch.manual_seed(0)
        spec = Transformer(d_model=8, d_ff=16, heads=2, dropout=0.0, tied_embeddings=False)
        objective = Objective(build_model(spec, VOCABULARY), 0.1, loss)
        value = objective(source, target_input, target_output)
        value.backward()
        results.append([value.detach(), *(p.grad for p in objective.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
