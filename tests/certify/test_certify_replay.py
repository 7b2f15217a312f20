"""Dropout masks can be read from any variant; with the same masks, the plain model gives the same
gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from schemas.base import merge
from schemas.results import SeedTrajectory
from tests.attacks.planted.changes import (
    CHECKPOINT,
    DDP,
    FP16,
    FSDP,
    PACKED,
    TEXTS,
    TWO,
    UNPADDED,
    WIDE,
)
from tests.attacks.short_trainings import recorded, spec_of
from tests.distributed import run_ranks
from tests.measure.short_runs import this_rank
from tests.training.small_training import small_setup, small_store
from transformer_core.certify.bounds import determined
from transformer_core.certify.replay import (
    NotReplayed,
    OtherSentences,
    Replay,
    Step,
    obstacle,
    places_of,
)
from transformer_core.certify.short_run import WEIGHTS
from transformer_core.certify.short_run_worker import record
from transformer_core.data.sharding.shard_store import first_pairs
from transformer_core.data.tokenizing.special_tokens import BOS
from transformer_core.training.loop import optimizer_step
from transformer_core.training.precision import ScaledAutocast

SHORT: dict[str, Any] = {"training": {"steps": 3}}
OF_TORCH: dict[str, Any] = {"kind": "torch_nn", "dropout": 0.0}
TORCH: dict[str, Any] = {"model": {"dropout_method": {"kind": "torch"}}}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "torch's own dropout, normalized last": (merge(TORCH, {"model": {"norm": "post"}}), WIDE),
    "dropout in one compiled pass": ({"model": {"dropout_method": {"kind": "fused"}}}, WIDE),
    "dropout fused with the softmax": ({"model": {"attention": {"kind": "fused_softmax"}}}, WIDE),
    "without padding": (UNPADDED, WIDE),
    "several pairs in a row": (PACKED, WIDE),
    "recomputed layers in micro-batches": (merge(CHECKPOINT, TWO), WIDE),
    "more micro-batches than pairs in the last batch": (
        {"training": {"accumulation": {"micro_batches": 8}}},
        WIDE,
    ),
    "a language model": ({}, TEXTS),
}


def trained(*cases: tuple[dict[str, Any], dict[str, Any]]) -> list[SeedTrajectory]:
    """The short run of each variant with dropout, in this process or rank."""
    return [
        recorded(spec_of(merge(change, SHORT), study), dropout=0.2)[1][0] for change, study in cases
    ]


def assert_replayed(found: SeedTrajectory) -> None:
    assert found.not_replayed is None
    assert found.after_resuming is not None
    assert len(found.after_resuming.points) == 2
    compared = determined(found.after_resuming.gradients)
    assert max(g.error for g in compared) < 1e-4
    assert all(abs(p.loss / p.expected_loss - 1) < 1e-5 for p in found.after_resuming.points)
    assert not found.after_resuming.not_resumed


@pytest.mark.parametrize(("change", "study"), VARIANTS.values(), ids=list(VARIANTS))
def test_gradients_agree_with_dropout_on(change: dict[str, Any], study: dict[str, Any]) -> None:
    assert_replayed(*trained((change, study)))


@pytest.mark.slow
def test_gradients_of_two_ranks_agree_with_dropout_on() -> None:
    of_fp16 = [(merge(strategy, FP16), WIDE) for strategy in (DDP, FSDP)]
    (texts, *in_fp16), _ = run_ranks(trained, 2, (DDP, TEXTS), *of_fp16)
    assert_replayed(texts)
    # All ranks take the step that overflows; the main one would wait for the others forever.
    for found in in_fp16:
        assert found.after_resuming is not None
        assert found.after_resuming.not_resumed == []


def trained_with_a_constant_scale() -> SeedTrajectory:
    """The short run of FSDP with float16, whose loss scale stays after overflows in rank 1."""

    def stays(self: ScaledAutocast, optimizer: Any, norm: Any) -> None:
        self.scaler.step(optimizer)
        self.scaler.update(self.scaler.get_scale())

    if dist.get_rank() == 1:
        ScaledAutocast.update = stays  # type: ignore[method-assign]
    (found,) = trained((merge(FSDP, FP16), WIDE))
    return found


@pytest.mark.slow
def test_a_loss_scale_that_stays_in_any_rank_shows() -> None:
    """Only the main rank was asked."""
    found = run_ranks(trained_with_a_constant_scale, 2)[0].after_resuming
    assert found is not None
    assert found.not_resumed == ["a lower loss scale after a gradient that overflows"]


@pytest.mark.parametrize(
    ("change", "study"),
    [({}, {}), ({}, TEXTS), (TWO, {"model": merge(WIDE["model"], OF_TORCH)})],
    ids=["translation", "a language model", "a model of another library"],
)
def test_without_dropout_the_steps_after_resuming_are_compared(
    change: dict[str, Any], study: dict[str, Any]
) -> None:
    _, (found,), _ = recorded(spec_of(merge(change, SHORT), study))
    assert_replayed(found)
    assert found.dropout is None


def test_if_masks_cannot_be_read_resuming_validation_and_moments_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Replay, step: int) -> None:
        raise NotReplayed("a place has no mask")

    monkeypatch.setattr(Replay, "collect", fails)
    stores = small_store(), small_store(9, seed=1)
    given = (spec_of(SHORT, WIDE), this_rank(), stores, tmp_path)
    found = record(*given, save_weights=True, dropout=0.2).trajectory
    assert found.not_replayed == "a place has no mask"
    assert found.after_resuming is not None
    assert len(found.after_resuming.points) == 2
    assert found.after_resuming.validation is not None
    assert found.moments is not None
    assert {file.name for file in tmp_path.iterdir()} == set(WEIGHTS)


def test_masks_of_other_libraries_cannot_be_read_and_the_reason_says_so() -> None:
    spec = spec_of({}, merge(WIDE, {"model": {"kind": "torch_nn", "dropout": 0.2}}))
    assert obstacle(spec, torch.device("cpu")) == "the model is not the project's own"


Drawn = tuple[Any, Step]
"""A batch of a training, and the masks that it drew."""


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    setup = small_setup(spec_of({"model": {"dropout": 0.2}}, WIDE))
    replay = Replay(setup, Path("nowhere"))
    batch = next(setup.feed.batches())
    optimizer_step(setup, batch, 1e-3)
    step = replay.collect(1)
    assert step is not None
    return batch.micro_batches[0], step


def test_every_place_has_a_mask_that_follows_its_sentences(drawn: Drawn) -> None:
    micro, step = drawn
    drops = step.imposed(micro.source, micro.target_input, micro.target_output)
    assert set(drops.masks) == set(places_of(spec_of({}, WIDE).model))
    assert drops.factor("no such place") is None
    factor = drops.factor("encoder.0.feed_forward")
    assert isinstance(factor, torch.Tensor)
    assert factor.unique().tolist() == [0.0, pytest.approx(1.25)]
    order = torch.randperm(len(micro.source))
    other = step.imposed(
        *(rows[order] for rows in (micro.source, micro.target_input, micro.target_output))
    )
    for place, mask in drops.masks.items():
        assert torch.equal(mask[order], other.masks[place]), place


def test_masks_of_other_sentences_are_refused(drawn: Drawn) -> None:
    micro, step = drawn
    changed = micro.target_input.clone()
    changed[0, 1] += 1
    with pytest.raises(OtherSentences):
        step.imposed(micro.source, changed, micro.target_output)
    with pytest.raises(OtherSentences):
        step.imposed(micro.source[1:], micro.target_input[1:], micro.target_output[1:])


@pytest.mark.parametrize("last", [[7, 8], [8, 7]])
def test_texts_that_differ_in_their_last_label_keep_their_masks(last: list[int]) -> None:
    sentences = [
        (((), (BOS, 5), (5, label)), {"embedding": torch.full((2, 3), label == 7)})
        for label in (7, 8)
    ]
    step = Step(0.5, [[(sentences, {})]])
    labels = torch.tensor([[5, label] for label in last])
    drops = step.imposed(torch.empty(2, 0), torch.tensor([[BOS, 5]] * 2), labels)
    assert drops.masks["embedding"].any(2).any(1).tolist() == [label == 7 for label in last]


def test_the_first_pairs_of_a_store_form_a_store() -> None:
    store = small_store()
    few = first_pairs(store, 7)
    assert len(few) == 7
    assert few.source_rows([6])[0].tolist() == store.source_rows([6])[0].tolist()
    assert sum(few.manifest.lengths.source.values()) == 7
    assert len(first_pairs(store, 1_000)) == len(store)
