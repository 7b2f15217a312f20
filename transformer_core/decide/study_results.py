"""The results of a study; the only place that reads them from their folder."""

from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pandas as pd
from pydantic import ValidationError

from schemas.config.data import SPLITS
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.results import (
    COLLECTIVE_COLUMNS,
    Breakdown,
    Capture,
    Certificate,
    ClaimResult,
    CollectiveRun,
    Comparison,
    CorpusSplit,
    FamilyCurve,
    Hardware,
    LargestBatchResult,
    LinkError,
    MemoryResult,
    Pair,
    PairedRun,
    PredictedMemory,
    Projection,
    QualityResult,
    Roofline,
    SearchResult,
    ShardManifest,
    TokenizerReport,
    Utilisation,
    VariantResult,
)
from transformer_core.common.endings import damaged
from transformer_core.common.records import read_as, read_record
from transformer_core.common.tables import read_table

Found = TypeVar("Found")


class StudyResults:
    """The results below a folder, each read and checked on first use; ConfigError if one is
    missing or invalid. Mappings over variants follow the study's order."""

    def __init__(
        self, folder: Path, study: Path | None = None, comparisons: Path | None = None
    ) -> None:
        """``study`` and ``comparisons`` may be outside the folder."""
        self.folder = folder
        self._study = study or folder / "study.json"
        self._comparisons = comparisons or folder / "comparisons.json"

    # The study and its runs

    @cached_property
    def study(self) -> Study:
        return read_record(self._study, Study)

    @cached_property
    def definitions(self) -> dict[str, Variant]:
        """The defined variants, and their ancestors."""
        return read_as(self.folder / "variants.json", dict[str, Variant])

    @cached_property
    def specs(self) -> dict[str, RunSpec]:
        return {
            name: read_record(self._run(name) / "spec.json", RunSpec)
            for name in self.study.variants
        }

    @cached_property
    def variants(self) -> dict[str, VariantResult]:
        """Results of each variant's runs."""
        return {
            name: read_record(self._run(name) / "metrics.json", VariantResult)
            for name in self.study.variants
        }

    @property
    def ordered(self) -> list[VariantResult]:
        return list(self.variants.values())

    @property
    def ended_otherwise(self) -> list[VariantResult]:
        """The variants that are not ok."""
        return [result for result in self.ordered if result.status != "ok"]

    def steps_file(self, variant: str) -> Path:
        """steps.parquet of the variant's first repeat."""
        first = self.variants[variant].repeats[0].repeat
        return self._run(variant) / f"repeat-{first}" / "steps.parquet"

    def _run(self, variant: str) -> Path:
        return self.folder / "runs" / variant

    # Comparisons, certificates, and what follows from them

    @cached_property
    def all_comparisons(self) -> list[Comparison]:
        """Every comparison, including those with references other than the baseline."""
        return read_as(self._comparisons, list[Comparison])

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        """Comparisons with the baseline, by variant; the baseline has none."""
        baseline = self.study.baseline
        return {item.variant: item for item in self.all_comparisons if item.reference == baseline}

    @cached_property
    def by_pair(self) -> dict[Pair, Comparison]:
        return {item.pair: item for item in self.all_comparisons}

    @cached_property
    def paired_runs(self) -> list[PairedRun]:
        """The turns with the baseline, in the order of the study."""
        return [
            read_record(self.folder / comparison.record, PairedRun)
            for comparison in self.comparisons.values()
            if comparison.record is not None
        ]

    @cached_property
    def certificates(self) -> dict[str, Certificate]:
        folder = self.folder / "equivalence"
        return {
            name: read_record(folder / f"{name}.json", Certificate) for name in self.study.variants
        }

    @cached_property
    def claims(self) -> list[ClaimResult]:
        return read_as(self.folder / "claims.json", list[ClaimResult])

    @cached_property
    def curves(self) -> list[FamilyCurve]:
        """The families of variants that differ in one number."""
        return read_as(self.folder / "families.json", list[FamilyCurve])

    @cached_property
    def search(self) -> SearchResult:
        """Result of the search for the best combination."""
        return read_record(self.folder / "search.json", SearchResult)

    @cached_property
    def quality(self) -> QualityResult | None:
        """How long two trainings take to translate well; null unless the study asks."""
        asked = self.study.quality is not None
        return read_record(self.folder / "quality.json", QualityResult) if asked else None

    # Links and more devices

    @cached_property
    def projection(self) -> Projection | None:
        """The projection; null unless the study asks."""
        path = self.folder / "projection" / "projection.json"
        return None if self.study.projection is None else read_record(path, Projection)

    @cached_property
    def link_error(self) -> LinkError | None:
        """The error of the emulated link; null unless the study checks it."""
        path = self.folder / "links" / "error.json"
        return None if self.study.link_check is None else read_record(path, LinkError)

    # Memory

    @cached_property
    def predicted_memory(self) -> PredictedMemory | None:
        """Predictions; null unless the study asks for memory."""
        path = self.folder / "memory" / "predicted.json"
        return None if self.study.memory is None else read_record(path, PredictedMemory)

    @cached_property
    def memory(self) -> dict[str, MemoryResult]:
        """Measured memory by variant, if the study asks for it."""
        asked, folder = self.study.memory, self.folder / "memory"
        names = self.study.variants if asked is not None and asked.anatomy else []
        return {name: read_record(folder / f"{name}.json", MemoryResult) for name in names}

    @cached_property
    def largest_batches(self) -> dict[str, LargestBatchResult]:
        """Largest batches by variant, for those that the study searches."""
        asked, folder = self.study.memory, self.folder / "memory" / "largest_batch"
        searched = asked.largest_batch.variants if asked is not None else []
        return {
            name: read_record(folder / f"{name}.json", LargestBatchResult)
            for name in self.study.variants
            if name in searched
        }

    # Profiles

    def profile_folder(self, variant: str) -> Path:
        return self.folder / "profiles" / variant

    @cached_property
    def breakdowns(self) -> dict[str, Breakdown]:
        """The breakdowns of the variants that have one, and of user-provided traces."""
        names = (*self.study.variants, *self.study.traces)
        paths = {name: self.profile_folder(name) / "breakdown.json" for name in names}
        return {name: read_record(path, Breakdown) for name, path in paths.items() if path.exists()}

    def capture(self, variant: str) -> Capture | None:
        """How a profile was recorded, if known."""
        path = self.profile_folder(variant) / "capture.json"
        return read_record(path, Capture) if path.exists() else None

    # The corpus

    @cached_property
    def splits(self) -> dict[str, CorpusSplit]:
        folder = self._corpus / "pairs"
        return {split: read_record(folder / f"{split}.json", CorpusSplit) for split in SPLITS}

    @cached_property
    def manifests(self) -> dict[str, ShardManifest]:
        """The token ids of each split."""
        folder = self._corpus / "shards"
        return {
            split: read_record(folder / split / "manifest.json", ShardManifest) for split in SPLITS
        }

    @cached_property
    def tokenizer(self) -> TokenizerReport:
        return read_record(self._corpus / "tokenizer.report.json", TokenizerReport)

    @property
    def _corpus(self) -> Path:
        return self.folder / "data" / self.study.corpus.name

    # The machine

    @cached_property
    def hardware(self) -> Hardware:
        return read_record(self.folder / "machine" / "hardware.json", Hardware)

    @cached_property
    def roofline(self) -> Roofline:
        """Measured limits of the device."""
        return read_record(self.folder / "machine" / "roofline.json", Roofline)

    @cached_property
    def utilisation(self) -> list[Utilisation]:
        """Utilisation of these limits by each variant."""
        return read_as(self.folder / "utilisation.json", list[Utilisation])

    @cached_property
    def collectives(self) -> tuple[CollectiveRun, pd.DataFrame] | None:
        """Collective operations, a row per operation and size, and how they were measured; null
        if they were not, since no variant has several processes."""
        path = self.folder / "machine" / "collectives.parquet"
        if not path.exists() and all(spec.world_size == 1 for spec in self.specs.values()):
            return None
        try:
            table = read_table(path, columns=list(COLLECTIVE_COLUMNS))
            run = CollectiveRun.model_validate_json((table.schema.metadata or {})[b"study"])
        except (KeyError, ValidationError) as error:
            raise damaged(path, error, "(metadata)") from None
        return run, table.to_pandas()
