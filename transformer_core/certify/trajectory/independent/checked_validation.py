"""The validation loss beside that of the plain function, and what a validation leaves behind."""

from schemas.results.checks import CheckedValidation
from transformer_core.certify.trajectory.independent.number_formats import (
    EXACT,
    SINGLE,
    format_of,
)
from transformer_core.certify.trajectory.independent.own_model import OwnModel
from transformer_core.certify.trajectory.independent.plain_model import Plain, Weights
from transformer_core.data.batching.feeding import evaluation_batches
from transformer_core.training import evaluation
from transformer_core.training.assemble import Setup

PAIRS, TOGETHER = 4, 2
"""Pairs of the validation split, and of a batch: several, which ranks share."""


def checked_validation(
    setup: Setup, plain: Plain | OwnModel, weights: Weights
) -> CheckedValidation | None:
    """A validation of ``setup``, whose weights these are; ``plain`` smooths no labels. Every rank
    must call it; null on those without ``weights``."""
    store = setup.validation_store
    before = {name: part.training for name, part in setup.module.named_modules()}
    few = list(evaluation_batches(store, PAIRS, pairs_per_batch=TOGETHER))
    loss = evaluation.validation_loss(setup, few)
    changed = [name for name, part in setup.module.named_modules() if part.training != before[name]]
    if not weights:
        return None
    tokens = [(batch.source, batch.target_input, batch.target_output) for _, batch in few]
    expected, _ = plain.loss_and_gradients(weights, tokens, EXACT)
    form, rounding = format_of(setup.spec), 0.0
    if form is not SINGLE:
        # Of so few pairs the mean may be lucky: the batch that suffers most.
        for part in tokens:
            exact, rounded = (
                plain.loss_and_gradients(weights, [part], each)[0] for each in (EXACT, form)
            )
            rounding = max(rounding, abs(rounded / exact - 1))
    return CheckedValidation(
        loss=loss,
        expected_loss=expected,
        rounding=rounding,
        modes_changed=len(changed),
    )
