"""The validation loss."""

import torch

from transformer_core.data.feeding import evaluation_batches
from transformer_core.model.loss import token_loss_sum
from transformer_core.train.assemble import Setup


@torch.no_grad()
def validation_loss(setup: Setup) -> float:
    """Mean cross-entropy per target token in nats, without label smoothing or dropout.

    Ranks take turns with the batches, so the sum over ranks is that of a single process.
    """
    model, process = setup.model, setup.process
    total = torch.zeros(2, dtype=torch.float64)
    training = model.training
    model.eval()
    for number, (_, batch) in enumerate(evaluation_batches(setup.validation_store)):
        if number % process.world_size != process.rank:
            continue
        batch = batch.to(setup.device)
        with setup.precision.autocast():
            logits = model(batch.source, batch.target_input)
        loss = token_loss_sum(logits, batch.target_output, 0.0)
        total += torch.tensor([float(loss), int((batch.target_output != 0).sum())])
    model.train(training)
    loss_sum, tokens = setup.strategy.sum(total).tolist()
    return loss_sum / tokens
