"""Several pairs in a row against each pair in a row of its own."""

import numpy as np
import pytest
import torch

from schemas.config.model import ImportedModel, TorchTransformer, Transformer
from transformer_core.data.arrays import Ragged
from transformer_core.data.batching.collate import collate, collate_packed
from transformer_core.data.batching.window_rows import pack
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.loss import token_loss_sum
from transformer_core.models.registry import build_model

V = 40
KINDS = [
    {"attention": {"kind": attention}, "qkv": {"kind": qkv}, "norm": norm}
    for attention, qkv, norm in [
        ("sdpa", "fused", "pre"),
        ("reference", "separate", "post"),
        ("sdpa", "separate", "post"),
    ]
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def build(packed, device="cpu", **changes):
    torch.manual_seed(0)
    spec = {"d_model": 16, "d_ff": 32, "heads": 4, "dropout": 0.0} | changes
    model = build_model(Transformer.model_validate(spec), V, packed).to(device)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((torch.randn(parameter.shape, generator=generator) * 0.2).to(device))
    return model


def pairs(count=9, seed=0):
    random = np.random.default_rng(seed)
    return [[random.integers(4, V, random.integers(1, 9)) for _ in range(count)] for _ in "st"]


def ragged(rows):
    return Ragged.join(rows, np.array([len(row) for row in rows], np.int32))


def padded_and_packed(sources, targets, tokens=20):
    """The same pairs in two batches, and where each stands in the second: row, columns."""
    source, target = ragged(sources), ragged(targets)
    lengths = [side.lengths.astype(np.int64) + 1 for side in (source, target)]
    packing = pack(*lengths, np.array([0, len(sources)]), tokens)
    shape = (int(packing.rows[0]), int(packing.source_width[0]), int(packing.target_width[0]))
    columns = packing.source_column, packing.target_column
    assert shape[0] < len(sources)
    packed = collate_packed(source, target, packing.row, columns, shape)
    return collate(source, target), packed, list(zip(packing.row, *columns, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS, ids=["sdpa", "reference", "post"])
def test_logits_of_every_pair_are_those_of_the_pair_alone(kind, device):
    sources, targets = pairs()
    padded, packed, places = padded_and_packed(sources, targets)
    padded, packed = padded.to(device), packed.to(device)
    expected = build(False, device, **kind)(padded.source, padded.target_input)
    found = build(True, device, **kind)(packed.source, packed.target_input)
    for pair, (row, _, column) in enumerate(places):
        length = len(targets[pair]) + 1
        mine = found[row, column : column + length]
        torch.testing.assert_close(mine, expected[pair, :length], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("checkpoint", ["none", "layers"])
def test_loss_and_gradients_are_those_of_padded_rows(checkpoint):
    padded, packed, _ = padded_and_packed(*pairs())
    results = []
    for batch, is_packed in ((padded, False), (packed, True)):
        model = build(is_packed, checkpoint=checkpoint)
        logits = model(batch.source, batch.target_input)
        loss = token_loss_sum(logits, batch.target_output, 0.1)
        loss.backward()
        results.append((float(loss.detach()), [p.grad for p in model.parameters()]))
    (loss, gradients), (packed_loss, packed_gradients) = results
    assert packed_loss == pytest.approx(loss, rel=1e-6)
    for found, expected in zip(packed_gradients, gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_pair_sees_nothing_of_the_others_in_its_row():
    """Cross-contamination: other ids in one pair change not a bit of another's logits."""
    sources, targets = pairs()
    model = build(True)
    _, batch, places = padded_and_packed(sources, targets)
    before = model(batch.source, batch.target_input)
    for changed in range(len(sources)):
        for side in (sources, targets):
            others = [list(rows) for rows in (sources, targets)]
            index = 0 if side is sources else 1
            others[index][changed] = (side[changed] - 4 + 7) % (V - 4) + 4
            _, other, same_places = padded_and_packed(*others)
            assert [tuple(place) for place in same_places] == [tuple(place) for place in places]
            after = model(other.source, other.target_input)
            for pair, (row, _, column) in enumerate(places):
                part = slice(column, column + len(targets[pair]) + 1)
                same = torch.equal(after[row, part], before[row, part])
                assert same == (pair != changed)


def test_rows_of_one_pair_are_a_special_case():
    """As in validation: a packed model takes padded rows, and rows that stand in for nothing."""
    padded, _, _ = padded_and_packed(*pairs())
    nothing = collate(ragged([]), ragged([]))
    for batch in (padded, nothing):
        expected = build(False)(batch.source, batch.target_input)
        found = build(True)(batch.source, batch.target_input)
        real = batch.target_output != PAD
        torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-5)
        assert found.isfinite().all()


@pytest.mark.parametrize(
    "spec",
    [
        TorchTransformer(kind="torch_nn", d_model=16, heads=2),
        ImportedModel(kind="import", factory="docs.examples.own_model:build"),
    ],
    ids=lambda spec: spec.kind,
)
def test_other_models_are_refused(spec):
    with pytest.raises(ValueError, match=f"kind {spec.kind} cannot tell the pairs of a row apart"):
        build_model(spec, V, packed=True)
