"""Compositions: own changes of several variants at once, in the file or in a study."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.errors import ConfigError
from tests.refusals import problem_of, problems_of
from transformer_core.study.resolve import check_study, resolve, resolve_all
from transformer_core.study.variants import VARIANTS_FILE, read_variants, with_compositions

ENTRIES: dict[str, dict[str, Any]] = {
    # Parts may come after their composition.
    "both": {"with": ["ddp", "bf16"], "tests": ["A6"], "summary": "Both."},
    "three": {"with": ["both", "clipped"], "change": {"training": {"log_every": 7}}},
    "single": {"change": {"parallel": {"kind": "single"}}, "tests": ["A1"]},
    "ddp": {"change": {"parallel": {"kind": "ddp"}}, "tests": ["A4"]},
    "bf16": {
        "parent": "single",
        "change": {"training": {"precision": {"kind": "bf16"}}},
        "equivalence": {"kind": "statistical", "reason": "Fewer bits."},
    },
    "fp16": {
        "parent": "single",
        "change": {"training": {"precision": {"kind": "fp16"}}},
        "equivalence": {"kind": "statistical", "reason": "Few bits."},
    },
    "clipped": {"parent": "single", "change": {"training": {"clipping": "folded"}}},
    "kept": {
        "parent": "single",
        "change": {"machine": {"allocator": "kept"}},
        "equivalence": {"kind": "bitwise", "reason": "Memory only."},
    },
}
HOOKS: dict[str, Any] = {
    "ring": {"parent": "ddp", "change": {"parallel": {"hook": {"kind": "ring"}}}},
    "no_hook": {"parent": "ddp", "change": {"parallel": {"hook": None}}},
}
DEFAULTS = {"equivalence": "tolerance", "summary": "For a test."}


def read(folder: Path, **entries: Any) -> dict[str, Variant]:
    path = folder / "variants.yaml"
    every = {
        name: entry if "with" in entry else DEFAULTS | entry
        for name, entry in (ENTRIES | entries).items()
    }
    path.write_text(yaml.safe_dump(every, sort_keys=False))
    return read_variants(path).variants


def test_a_composition_is_its_first_part_with_the_own_changes_of_the_others(tmp_path):
    variants = read(tmp_path)
    spec = resolve(Study(name="s", variants=["ddp"]), "three", variants)
    assert spec.parallel.kind == "ddp", "the parent of bf16 is not part of its own change"
    training = spec.training
    assert (training.precision.kind, training.clipping, training.log_every) == ("bf16", "folded", 7)
    both, three = variants["both"], variants["three"]
    assert (both.tests, three.tests) == (["A6"], ["A6"])
    assert (both.equivalence.kind, both.equivalence.reason) == ("statistical", "Fewer bits.")
    assert three.summary == "both, with clipped: For a test."
    assert set(both.model_dump()) == set(Variant.model_fields), "written like any other"


def test_the_order_of_parts_loses_no_change(tmp_path):
    """The kind of a section does not undo fields that an earlier part sets there."""
    bucket = {"parent": "ddp", "change": {"parallel": {"bucket_mb": 50}}}
    fsdp = {"change": {"parallel": {"kind": "fsdp"}}}
    variants = read(
        tmp_path,
        bucket=bucket,
        fsdp=fsdp,
        late={"with": ["single", "bucket", "ddp"]},
        never={"with": ["single", "bucket", "fsdp"]},
    )
    study = Study(name="s", variants=["single"])
    assert resolve(study, "late", variants).parallel.bucket_mb == 50
    problem = problem_of(resolve, study, "never", variants)
    assert (problem.field, problem.message) == ("never.with[1]", "is not a field of this section")


def test_a_study_composes_variants_of_the_file(tmp_path):
    variants = read(tmp_path)
    names = ["single", {"with": ["bf16", "clipped"]}, "bf16_with_kept"]
    study = check_study({"name": "s", "variants": names}, "study.yaml")
    assert study.variants == ["single", "bf16_with_clipped", "bf16_with_kept"]
    specs = resolve_all(study, variants)
    assert specs["bf16_with_clipped"].training.clipping == "folded"
    composed = with_compositions(variants, study.variants)
    assert composed["bf16_with_clipped"].equivalence.kind == "statistical"
    # Its later parts change no number.
    kept = composed["bf16_with_kept"].equivalence.model_dump()
    assert kept == {"kind": "bitwise", "against": "bf16", "reason": "Memory only."}


@pytest.mark.parametrize(
    ("entry", "place", "words"),
    [
        ({"with": ["ddp", "bf61"]}, "wrong.with[1] = 'bf61'", "did you mean bf16"),
        ({"with": []}, "wrong.with = []", "at least 1"),
        ({"with": ["ddp", "ddp"]}, "wrong.with[1] = 'ddp'", "named twice"),
        ({"with": ["ddp", "wrong"]}, "wrong.with[1] = 'wrong'", "circular: wrong -> wrong"),
        (
            ENTRIES["ddp"] | {"equivalence": {"kind": "bitwise", "against": "wrong"}},
            "wrong.equivalence.against = 'wrong'",
            "circular: wrong -> wrong",
        ),
        ({"with": ["ddp"], "chnage": {}}, "wrong.chnage", "did you mean change"),
        (
            {"with": ["ddp", "bf16", "fp16"]},
            "wrong.with = 'bf16, fp16'",
            "set training.precision.kind differently: bf16 to bf16, fp16 to fp16",
        ),
        (
            {"with": ["ddp", "ring", "no_hook"]},
            "wrong.with = 'ring, no_hook'",
            "set parallel.hook differently: ring to {'kind': 'ring'}, no_hook to None",
        ),
        (ENTRIES["ddp"], "ddp_with_bf16", "joins the names of a composition"),
    ],
)
def test_mistakes_are_named(tmp_path, entry, place, words):
    name = "wrong" if place.startswith("wrong") else place
    found = problems_of(read, tmp_path, **HOOKS, **{name: entry})
    assert any(place in str(one) and words in str(one) for one in found), found


def test_a_value_that_no_run_can_have_names_its_part(tmp_path):
    part = {"parent": "single", "change": {"training": {"steps": -1}}}
    variants = read(tmp_path, never=part, wrong={"with": ["ddp", "bf16", "never"]})
    with pytest.raises(ConfigError) as caught:
        resolve(Study(name="s", variants=["ddp"]), "wrong", variants)
    assert str(caught.value).startswith("config/variants.yaml: wrong.with[2] = -1")


def test_the_name_of_a_swept_variant_may_hold_the_word_that_joins_a_composition():
    name = "as_published_with_batch_half_with_rate"
    variants = read_variants(VARIANTS_FILE).variants
    composed = with_compositions(variants, [name])[name]
    assert composed.parent == "as_published"
    assert composed.change == variants["batch_half_with_rate"].change


@pytest.mark.parametrize(
    ("name", "message", "remedy"),
    [
        (
            "published_update_folded",
            "is now a composition",
            "write {with: [as_published, adamw, clipping_folded]}, whose name is "
            "as_published_with_adamw_with_clipping_folded",
        ),
        ("ddp_with_bf61", "is composed with bf61, which is not a variant", "did you mean bf16"),
        ("bf16_with_clipped_with_fp16", "set training", "leave clipped or fp16 out"),
        ("clippd", "is not a variant", "did you mean clipped"),
    ],
)
def test_names_in_a_study_that_are_no_variants(tmp_path, name, message, remedy):
    variants = read(tmp_path, clipped={"change": {"training": {"precision": {"kind": "tf32"}}}})
    study = Study(name="s", variants=["single", name])
    problem = problem_of(resolve_all, study, variants, "study.yaml")
    assert problem.file == "study.yaml"
    assert message in problem.message
    assert remedy in problem.remedy
