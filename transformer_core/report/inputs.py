"""Everything the report reads, checked and in one place."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from schemas.data import SPLITS
from schemas.results import (
    Certificate,
    Comparison,
    CorpusSplit,
    Hardware,
    PairedRun,
    ShardManifest,
    TokenizerReport,
    VariantResult,
)
from schemas.study import RunSpec, Study
from transformer_core.analysis.files import read_as, read_record


@dataclass(frozen=True)
class Results:
    """The results of a study. Mappings over variants are in the order of the study."""

    folder: Path
    study: Study
    specs: dict[str, RunSpec]
    variants: dict[str, VariantResult]
    comparisons: dict[str, Comparison]
    """Those with the baseline, by variant; the baseline has none."""
    all_comparisons: list[Comparison]
    """Every comparison, those with other references too."""
    certificates: dict[str, Certificate]
    splits: dict[str, CorpusSplit]
    manifests: dict[str, ShardManifest]
    tokenizer: TokenizerReport
    hardware: Hardware

    @property
    def ordered(self) -> list[VariantResult]:
        """The results of the variants, in the order of the study."""
        return list(self.variants.values())

    @property
    def ended_otherwise(self) -> list[VariantResult]:
        """The variants that are not ok."""
        return [result for result in self.ordered if result.status != "ok"]

    def paired_runs(self) -> list[PairedRun]:
        """The timed comparisons with the baseline, in the order of the study."""
        folder = self.folder / "pairs" / self.study.baseline
        return [
            read_record(folder / f"{name}.json", PairedRun)
            for name in self.variants
            if name != self.study.baseline
        ]

    def steps_file(self, variant: str) -> Path:
        """steps.parquet of the variant's first repeat."""
        first = self.variants[variant].repeats[0].repeat
        return self.folder / "runs" / variant / f"repeat-{first}" / "steps.parquet"


def load(folder: Path, study_file: Path, comparisons_file: Path) -> Results:
    """The results below ``folder``; ConfigError that names the file if one is missing or wrong."""
    study = read_record(study_file, Study)
    runs = {name: folder / "runs" / name for name in study.variants}
    corpus = folder / "data" / study.corpus.name
    comparisons: list[Comparison] = read_as(comparisons_file, list[Comparison])
    return Results(
        folder=folder,
        study=study,
        specs={name: read_record(run / "spec.json", RunSpec) for name, run in runs.items()},
        variants={
            name: read_record(run / "metrics.json", VariantResult) for name, run in runs.items()
        },
        comparisons={
            comparison.variant: comparison
            for comparison in comparisons
            if comparison.reference == study.baseline
        },
        all_comparisons=comparisons,
        certificates={
            name: read_record(folder / "equivalence" / f"{name}.json", Certificate) for name in runs
        },
        splits={
            split: read_record(corpus / "pairs" / f"{split}.json", CorpusSplit) for split in SPLITS
        },
        manifests={
            split: read_record(corpus / "shards" / split / "manifest.json", ShardManifest)
            for split in SPLITS
        },
        tokenizer=read_record(corpus / "tokenizer.report.json", TokenizerReport),
        hardware=read_record(folder / "machine" / "hardware.json", Hardware),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say where the results are, the same for every job of this room."""
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="folder of the results (default: %(default)s)",
    )
    parser.add_argument(
        "--study", type=Path, help="the study as JSON (default: study.json in the results)"
    )
    parser.add_argument(
        "--comparisons",
        type=Path,
        help="comparisons with the baseline (default: comparisons.json in the results)",
    )


def from_arguments(options: argparse.Namespace) -> Results:
    """The results that the options of :func:`add_arguments` name."""
    folder: Path = options.results
    return load(
        folder,
        options.study or folder / "study.json",
        options.comparisons or folder / "comparisons.json",
    )
