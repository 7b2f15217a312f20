"""Parts of the plan of a study: trials of the emulated link, projections, and its quick stage."""

import re
from pathlib import Path
from typing import Any

import pytest

from schemas.config.study import Study
from schemas.errors import ConfigError
from transformer_core.common.yaml_files import read_mapping
from transformer_core.study.compared_pairs import known_targets
from transformer_core.study.plan import LINK_CHECKS, QUICK_VARIANTS, at_stage, link_trials
from transformer_core.study.resolve import resolve_all
from transformer_core.study.variants import read_variants

MINE = {"name": "s", "variants": ["ddp"], "baseline": "ddp"}


def study(**sections: Any) -> Study:
    return Study.model_validate(MINE | sections)


def test_a_study_may_ask_for_link_trials_and_projections():
    assert link_trials(study()) == {}
    assert "results/links/error.json" not in known_targets(study())
    found = link_trials(study(link_check={}))
    assert len(found) >= 12
    assert len({(t.change, t.bandwidth) for t in found.values()}) == len(found)
    assert "results/links/error.json" in known_targets(study(link_check={}))
    assert "results/projection/projection.json" in known_targets(study())
    assert "results/projection/projection.json" not in known_targets(study(projection=None))


def test_a_claim_may_read_the_audit_and_the_report_of_the_tokenizer():
    """A claim waits for the files that it reads only if they are known."""
    made = {"results/audit.json", "results/data/grammar/tokenizer.report.json"}
    assert made <= {*known_targets(study())}


def test_the_sides_of_a_trial_differ_only_in_their_link():
    for name, trial in link_trials(study(link_check={"bandwidths": ["1Gbit/s"]})).items():
        assert name == f"{trial.change}_1000mbit"
        assert not trial.real.machine.link.emulate
        assert trial.emulated.machine.link.emulate
        assert trial.real.machine.link.bandwidth == trial.bandwidth == 1e9
        assert trial.real.world_size == 2
        real, emulated = (
            spec.model_dump(exclude={"variant": True, "machine": {"link"}})
            for spec in (trial.real, trial.emulated)
        )
        assert real == emulated


def test_every_bandwidth_has_a_name_of_its_own_without_regular_expressions():
    """Names are the pattern of a wildcard, in which 1e+06 would not match itself."""
    found = link_trials(study(link_check={"bandwidths": [1e3, 1.000001e8, 1.000002e8, 1e12, 1e15]}))
    assert len(found) == 5 * len(LINK_CHECKS)
    assert {"ddp_0.001mbit", "ddp_100.0001mbit", "ddp_1000000mbit"} <= {*found}
    assert all(re.fullmatch("|".join(found), name) for name in found)


def test_a_trial_is_the_study_with_one_change():
    found = link_trials(study(link_check={}, training={"steps": 7}))
    assert {trial.real.training.steps for trial in found.values()} == {7}
    made = found["accumulation_no_sync_100mbit"].real.training.accumulation
    assert (made.micro_batches, made.synchronise) == (4, "last")
    assert set(LINK_CHECKS) == {trial.change for trial in found.values()}


ROOT = Path(__file__).resolve().parents[2]


def test_the_quick_stage_is_a_part_of_the_study():
    default = Study.model_validate(read_mapping(ROOT / "config/config.yaml"))
    quick = at_stage(default, "quick")
    assert quick.baseline in quick.variants
    assert len(quick.variants) == QUICK_VARIANTS + 1
    assert [name for name in default.variants if name in quick.variants] == quick.variants
    assert (quick.memory, quick.search, quick.projection) == (None, None, None)
    assert Study.model_validate(quick.model_dump()) == quick
    variants = read_variants(ROOT / "config/variants.yaml").variants
    specs, whole = (resolve_all(part, variants, "study") for part in (quick, default))
    assert specs == {name: whole[name] for name in specs}
    # Comparisons with other variants are left out.
    first, second, *_, last = [name for name in default.variants if name != default.baseline]
    asked = default.model_copy(update={"comparisons": [(first, second), (last, first)]})
    assert at_stage(asked, "quick").comparisons == [(first, second)]
    assert at_stage(default, "all") is default
    with pytest.raises(ConfigError, match="did you mean quick"):
        at_stage(default, "quik")
