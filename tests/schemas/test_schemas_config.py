"""The files in config/: each names its JSON Schema, satisfies it, and resolves."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from transformer_core.common.yaml_files import read_yaml
from transformer_core.study.resolve import check_study, resolve_all, spec_of
from transformer_core.study.variants import read_variants

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = read_variants(ROOT / "config/variants.yaml").variants
FILES = sorted((ROOT / "config").rglob("*.y*ml"))
LINE = re.compile(r"# yaml-language-server: \$schema=(\S+)")


def schema_of(path: Path) -> Path | None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    match = LINE.fullmatch(first)
    return (path.parent / match[1]).resolve() if match else None


STUDIES = [path for path in FILES if (schema_of(path) or path).name == "study.json"]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_the_first_line_names_a_schema_that_the_file_satisfies(path):
    schema = schema_of(path)
    assert schema is not None, f"{name(path)}: begin with '# yaml-language-server: $schema=PATH'"
    assert schema.is_file(), f"{name(path)}: {schema} does not exist"
    validator = jsonschema.Draft202012Validator(json.loads(schema.read_text(encoding="utf-8")))
    problems = [
        f"{name(path)}: {error.json_path}: {error.message}"
        for error in validator.iter_errors(yaml.safe_load(path.read_text(encoding="utf-8")))
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("path", STUDIES, ids=name)
def test_every_study_resolves(path):
    study = check_study(read_yaml(path), name(path))
    specs = resolve_all(study, VARIANTS, name(path))
    assert list(specs) == study.variants
    assert [spec.variant for spec in specs.values()] == study.variants


def test_studies_have_different_names_and_variants_different_specs():
    names = [read_yaml(path)["name"] for path in STUDIES]
    assert len(names) == len(set(names)) > 1
    # Batches of the full study can be divided by any variant.
    study = check_study(read_yaml(ROOT / "config/studies/full.yaml"), "config/studies/full.yaml")
    digests = {spec_of(study, variant, VARIANTS).digest() for variant in VARIANTS}
    assert len(digests) == len(VARIANTS)


def test_the_full_study_has_every_variant_but_those_over_a_slow_link():
    """Those would take hours. Variants that only name a default exist for compositions."""
    full, links = (
        check_study(read_yaml(ROOT / f"config/studies/{name}.yaml"), name)
        for name in ("full", "links")
    )
    specs = {name: spec_of(full, name, VARIANTS) for name in VARIANTS}
    over_a_link = {name for name, spec in specs.items() if spec.machine.link is not None}
    single = specs["single"]
    defaults = {n for n, s in specs.items() if s.model_copy(update={"variant": "single"}) == single}
    assert set(full.variants) | defaults == VARIANTS.keys() - over_a_link
    assert over_a_link == set(links.variants)
