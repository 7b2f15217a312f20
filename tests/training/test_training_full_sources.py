"""Batches without padding in their sources get no mask on a GPU: masks rule out the fastest kernel."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.small_training import VOCABULARY, small_setup, small_spec
from transformer_core.data.arrays import Ragged
from transformer_core.data.batching.collate import NOTHING, Batch, Known, collate
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models import attention
from transformer_core.models.device_kind import laid_out_for
from transformer_core.parallel.central import DataParallelObjective


def batch(*lengths: int) -> Batch:
    """Pairs of random ids; sources have these lengths, targets other ones."""
    random = np.random.default_rng(0)

    def side(counts: list[int]) -> Ragged:
        rows = [random.integers(3, VOCABULARY, count) for count in counts]
        return Ragged.join(rows, np.array(counts, np.int32))

    return collate(side([*lengths]), side([1 + n % 3 for n in range(len(lengths))]))


@pytest.fixture
def masks(monkeypatch):
    """The masks of all calls of torch's attention that are not causal."""
    seen: list[Tensor | None] = []
    real = attention.F.scaled_dot_product_attention

    def watched(*args: Any, **kwargs: Any) -> Tensor:
        if not kwargs["is_causal"]:
            seen.append(kwargs["attn_mask"])
        return real(*args, **kwargs)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", watched)
    return seen


def loss(setup: Any, given: Batch, known: Known) -> float:
    return float(setup.module(given.source, given.target_input, given.target_output, known))


def test_the_host_knows_which_batches_are_full():
    feed = small_setup(small_spec(batching={"kind": "token_budget", "tokens": 40})).feed
    found = [micro for one in islice(feed.batches(), 60) for micro in one.micro_batches]
    told = [micro.known.source_full for micro in found]
    assert told == [bool((micro.source != PAD).all()) for micro in found]
    assert {*told} == {True, False}
    full = batch(4, 4)
    assert full.to(torch.device("meta")).known.source_full
    assert full.widened(len(full.source), 5, 9).known.source_full
    assert not full.widened(len(full.source), 6, 9).known.source_full


@pytest.mark.parametrize("kind", ["whole", "one_pass"])
def test_nothing_is_masked_on_a_gpu_where_nothing_is_padded(masks, kind):
    setup = small_setup(small_spec(model={"dropout": 0.0}, training={"loss": {"kind": kind}}))
    full, padded = batch(4, 4, 4), batch(4, 3, 4)
    with laid_out_for("cuda"):
        unmasked, masked = loss(setup, full, full.known), loss(setup, full, NOTHING)
        loss(setup, padded, padded.known)
    loss(setup, full, full.known)  # on a CPU the mask is kept: it costs next to nothing
    assert [mask is None for mask in masks] == [True] * 4 + [False] * 12
    assert unmasked == pytest.approx(masked, rel=1e-6)


@pytest.mark.parametrize("local_loss", [False, True])
def test_replicas_know_which_batches_are_full(masks, local_loss):
    setup = small_setup(small_spec(model={"dropout": 0.0}))
    wrapped = DataParallelObjective(setup.module, [], local_loss)
    wrapped.replicas.device_ids = []
    given = batch(4, 4)
    with laid_out_for("cuda"):
        wrapped(given.source, given.target_input, given.target_output, given.known)
    assert masks == [None] * 4


@pytest.mark.parametrize(
    "sections",
    [{"batching": {"rows": {"kind": "packed"}}}, {"model": {"attention": {"kind": "published"}}}],
    ids=["packed", "published"],
)
def test_masks_against_more_than_padding_remain(sections):
    setup = small_setup(small_spec(**sections))
    assert setup.model.needs_mask


def test_models_of_other_libraries_get_no_facts():
    setup = small_setup(small_spec(model={"kind": "torch_nn"}))
    given = batch(4, 4)
    with laid_out_for("cuda"):
        assert np.isfinite(loss(setup, given, True))
