"""What the runs and comparisons of a study say, in one place, for what is concluded from them."""

from dataclasses import dataclass
from pathlib import Path

from schemas.results import Certificate, Comparison, VariantResult
from schemas.study import Study
from transformer_core.analysis.files import read_as, read_record


@dataclass(frozen=True)
class StudyResults:
    """The results of a study. Mappings over variants are in the order of the study."""

    study: Study
    variants: dict[str, VariantResult]
    certificates: dict[str, Certificate]
    comparisons: dict[tuple[str, str], Comparison]
    """By variant and reference."""


def load(folder: Path, study_file: Path) -> StudyResults:
    """The results below ``folder``; ConfigError that names the file if one is missing or wrong."""
    study = read_record(study_file, Study)
    comparisons: list[Comparison] = read_as(folder / "comparisons.json", list[Comparison])
    return StudyResults(
        study=study,
        variants={
            name: read_record(folder / "runs" / name / "metrics.json", VariantResult)
            for name in study.variants
        },
        certificates={
            name: read_record(folder / "equivalence" / f"{name}.json", Certificate)
            for name in study.variants
        },
        comparisons={(item.variant, item.reference): item for item in comparisons},
    )
