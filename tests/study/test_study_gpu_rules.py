"""The project's studies on GPUs: families, reservations, batches, the search."""

from pathlib import Path

import pytest

from schemas.config.study import Study
from transformer_core.common.yaml_files import read_mapping
from transformer_core.decide.search import pads
from transformer_core.study.compared_pairs import compared_pairs, members_in, turn_groups
from transformer_core.study.reservations import largest, on_one_device, reservation
from transformer_core.study.resolve import check_study, resolve_all
from transformer_core.study.variants import read_variants

ROOT = Path(__file__).parents[2]
VARIANTS, FAMILIES = read_variants(ROOT / "config/variants.yaml")


@pytest.fixture(scope="module")
def original():
    return study_of("original")


def study_of(name: str) -> Study:
    """A study of the project."""
    return check_study(read_mapping(ROOT / f"config/studies/{name}.yaml"), name)


def test_plain_ddp_is_a_member_only_if_the_study_has_one_micro_batch(original):
    family = FAMILIES["accumulation"]
    assert "ddp" not in {member.variant for member in members_in(family, original)}
    one = original.training.accumulation.model_copy(update={"micro_batches": 1})
    training = original.training.model_copy(update={"accumulation": one})
    whole = original.model_copy(update={"training": training})
    assert "ddp" in {member.variant for member in members_in(family, whole)}


def test_a_prediction_for_gpus_reserves_one(original):
    specs = resolve_all(original, VARIANTS)
    found = reservation([on_one_device(largest(specs.values()))], 30_000)
    assert (found.hosts, found.gpus_per_host) == (1, 1)
    # The checker of a step takes up to 8 GB of main memory in addition to the model's.
    assert found.memory_mb >= 8_000
    rule = (ROOT / "workflow/rules/memory.smk").read_text().split("rule memory:")[0]
    assert "needs(lambda wildcards: [on_one_device(largest(SPECS.values()))])" in rule
    assert "GPU_JOB" in rule, "otherwise memory of other jobs would count as context"


def test_the_turns_of_one_large_gpu_start_the_reference_a_few_times():
    study = study_of("h200")
    groups = turn_groups(compared_pairs(study), study.comparison.together)
    assert len(groups) <= len(study.variants) / 5


AS_PUBLISHED = {"original", "published"}
"""Studies whose batches are those of the original study."""


def test_only_the_published_studies_batch_pairs_of_any_lengths():
    """Such batches are mostly padding."""
    assert Study.model_fields["batching"].default.kind == "token_budget"
    for file in (ROOT / "config/studies").glob("*.yaml"):
        study = study_of(file.stem)
        if study.task.kind == "translation":  # rows of texts are all as long as their context
            assert (study.batching.kind == "fixed_size") == (study.name in AS_PUBLISHED), file.name


def test_the_search_of_the_original_study_can_avoid_padding(original):
    specs = resolve_all(original, VARIANTS)
    assert pads(specs[original.baseline])
    without = [name for name in original.variants if not pads(specs[name])]
    assert without == ["as_published_with_tokens_unpadded"]
