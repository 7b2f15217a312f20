"""Stages of a study."""

from pathlib import Path

import pytest

from schemas.config.study import Study
from schemas.errors import ConfigError
from transformer_core.common.yaml_files import read_mapping
from transformer_core.study.plan import QUICK_VARIANTS, at_stage
from transformer_core.study.resolve import resolve_all
from transformer_core.study.variants import read_variants

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def study():
    return Study.model_validate(read_mapping(ROOT / "config/config.yaml"))


def test_the_quick_stage_is_a_part_of_the_study(study):
    quick = at_stage(study, "quick")
    assert quick.baseline in quick.variants
    assert len(quick.variants) == QUICK_VARIANTS + 1
    assert [name for name in study.variants if name in quick.variants] == quick.variants
    assert (quick.memory, quick.search, quick.projection) == (None, None, None)
    assert Study.model_validate(quick.model_dump()) == quick


def test_its_runs_are_those_of_the_whole_study(study):
    variants = read_variants(ROOT / "config/variants.yaml").variants
    quick, whole = (
        resolve_all(part, variants, "study") for part in (at_stage(study, "quick"), study)
    )
    assert quick == {name: whole[name] for name in quick}


def test_comparisons_of_others_are_left_out(study):
    first, second, *_, last = [name for name in study.variants if name != study.baseline]
    asked = study.model_copy(update={"comparisons": [(first, second), (last, first)]})
    assert at_stage(asked, "quick").comparisons == [(first, second)]


def test_the_other_stage_is_all_of_it(study):
    assert at_stage(study, "all") is study
    with pytest.raises(ConfigError, match="did you mean quick"):
        at_stage(study, "quik")
