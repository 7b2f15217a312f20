"""Reading config/claims.yaml, and what its claims need of a study."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from schemas.config.claims import Claim, Claims, ComparisonTest, TrendTest, numbers_of, variants_of
from schemas.config.families import Family
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.errors import ConfigError, ConfigProblem, nearest
from transformer_core.common.yaml_files import check_entries, read_mapping
from transformer_core.study.declarations.compositions import unknown_variant, with_compositions
from transformer_core.study.resolve import VARIANTS_FILE

CLAIMS_FILE = "config/claims.yaml"


def read_claims(
    path: str | Path,
    variants: Mapping[str, Variant],
    families: Mapping[str, Family],
    variants_file: str = VARIANTS_FILE,
) -> dict[str, Claim]:
    """All claims by id; ConfigError if one names a variant or a family that there is not."""
    claims: dict[str, Claim] = check_entries(read_mapping(path), Claims, str(path))
    problems = list(_unknown(str(path), claims, variants, families, variants_file))
    if problems:
        raise ConfigError(problems)
    return claims


def claim_pairs(claims: Mapping[str, Claim], study: Study) -> list[tuple[str, str]]:
    """The pairs (variant, reference) of the study that a claim compares, each once."""
    runs = set(study.variants)
    pairs = [
        (test.variant, test.reference)
        for claim in claims.values()
        for test in claim.tests
        if isinstance(test, ComparisonTest) and {test.variant, test.reference} <= runs
    ]
    return list(dict.fromkeys(pairs))


def claim_files(claims: Mapping[str, Claim]) -> list[str]:
    """The results that claims take numbers from, as targets, each once."""
    targets = [
        number.target
        for claim in claims.values()
        for test in claim.tests
        for number in numbers_of(test)
    ]
    return list(dict.fromkeys(targets))


def _unknown(
    file: str,
    claims: Mapping[str, Claim],
    variants: Mapping[str, Variant],
    families: Mapping[str, Family],
    variants_file: str,
) -> Iterator[ConfigProblem]:
    tests = [test for claim in claims.values() for test in claim.tests]
    named = {name for test in tests for name in variants_of(test).values()}
    variants = with_compositions(variants, named, file)
    for name, claim in claims.items():
        for position, test in enumerate(claim.tests):
            place = f"{name}.tests[{position}]"
            for field, variant in variants_of(test).items():
                if variant not in variants:
                    message, remedy = unknown_variant(variant, variants)
                    yield ConfigProblem(file, f"{place}.{field}", variant, message, remedy)
            if isinstance(test, TrendTest) and test.family not in families:
                message = f"is no curve of {variants_file}"
                remedy = nearest(test.family, families)
                yield ConfigProblem(file, f"{place}.family", test.family, message, remedy)
            if isinstance(test, ComparisonTest) and test.variant == test.reference:
                message, remedy = "is compared with itself", "name another reference"
                yield ConfigProblem(file, f"{place}.reference", test.reference, message, remedy)
