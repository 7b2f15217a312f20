"""Gradients that a model's own code gives in 64 bits, beside those that its training has."""

import math

import pytest
import torch

from schemas.config.model import HuggingFace, HuggingFaceCausal
from schemas.config.run_spec import LanguageModel
from tests.measure.short_runs import recorded
from tests.training.small_training import small_spec
from transformer_core.certify.number_formats import EXACT
from transformer_core.certify.plain_models import OwnModel
from transformer_core.data.tokenizing.special_tokens import BOS
from transformer_core.models.qkv_projection import canonical_state_dict
from transformer_core.models.registry import build_model

pytest.importorskip("transformers")

VOCABULARY = 30
SIZES = {"d_model": 16, "d_ff": 32, "heads": 2, "dropout": 0.0}


def language_model(architecture: str, tied: bool) -> HuggingFaceCausal:
    fields = SIZES | {"layers": 1, "architecture": architecture, "tied_embeddings": tied}
    return HuggingFaceCausal.model_validate({"kind": "huggingface_causal"} | fields)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_norm_of_all_gradients_is_that_of_the_model(architecture, tied):
    spec = language_model(architecture, tied)
    torch.manual_seed(1)
    model = build_model(spec, VOCABULARY)
    weights = {name: w.clone() for name, w in canonical_state_dict(model).items()}
    inputs, labels = torch.randint(4, VOCABULARY, (2, 3, 10)).unbind()
    inputs[:, 0] = BOS
    (model(inputs, labels) / labels.numel()).backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    task = LanguageModel(kind="language_model", context=12, prompt=2, continuation=4)
    batch = torch.empty((3, 0), dtype=torch.int64), inputs, labels
    own = OwnModel(spec, VOCABULARY, 0.0, task)
    _, found = own.loss_and_gradients(weights, [batch], EXACT)
    assert len(found) == len(list(model.parameters()))
    assert math.sqrt(sum(float(g.square().sum()) for g in found.values())) == pytest.approx(norm)


@pytest.mark.parametrize("tied", [True, False])
def test_a_translation_model_has_its_tied_matrix_once(tied, tmp_path):
    fields = SIZES | {"kind": "huggingface", "tied_embeddings": tied}
    spec = HuggingFace.model_validate(fields)
    model = build_model(spec, VOCABULARY)
    pointers = [p.data_ptr() for p in canonical_state_dict(model).values()]
    assert len(pointers) == len(set(pointers))
    checks = recorded(small_spec(model=fields), tmp_path).trajectory.checks
    for point in checks.points:
        assert point.norm == pytest.approx(point.expected_norm, rel=1e-4)
