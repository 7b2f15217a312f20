"""What the search for the largest batch asks of the workers of a trial."""

from transformer_core.run.order import Order

RESULT = "trial.json"


class BatchTrialOrder(Order):
    """To take a few optimizer steps on batches of one size under a limit of memory."""

    kind = "batch_trial"
    work = "transformer_core.measure.memory.largest_batch.worker"

    vocabulary: int
    pairs: int
    """Of a global batch, which all devices and micro-batches share."""
    source_tokens: int
    """Of every sentence; likewise the target's."""
    target_tokens: int
    limit: int
    """Bytes that each process may take."""
