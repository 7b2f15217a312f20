"""The results of a study; the only place that reads them from their folder."""

from collections.abc import Collection, Iterable
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Literal, TypeVar

import pandas as pd
from pydantic import ValidationError

from schemas.config.data import SPLITS
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem
from schemas.results import (
    COLLECTIVE_COLUMNS,
    Breakdown,
    Capture,
    Certificate,
    ClaimResult,
    CollectiveRun,
    Comparison,
    CorpusSplit,
    EvaluationResult,
    FamilyCurve,
    Hardware,
    Interval,
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
from transformer_core.common.endings import damaged, remake
from transformer_core.common.records import Record, read_as, read_record
from transformer_core.common.tables import read_table
from transformer_core.decide.intervals import range_of

Found = TypeVar("Found")


def _record(file: str, kind: type[Record]) -> cached_property[Record]:
    return cached_property(lambda self: self._read(file, kind))


def _asked(section: str, file: str, kind: type[Record]) -> cached_property[Record | None]:
    """Null unless the study has the section that asks for it."""

    def read(self: "StudyResults") -> Record | None:
        asked = getattr(self.study, section) is not None
        return self._read(file, kind) if asked else None

    return cached_property(read)


def _each(file: str, kind: type[Record]) -> cached_property[dict[str, Record]]:
    """One for each variant of the study."""
    return cached_property(lambda self: self._of(self.study.variants, file, kind))


def listed(file: str, kind: type[Found]) -> cached_property[list[Found]]:
    return cached_property(lambda self: self._read(file, list[kind]))  # type: ignore[valid-type]


class StudyResults:
    """The results below a folder, each read and checked on first use; ConfigError if one is
    missing or invalid. Mappings over variants follow the study's order."""

    extra: ClassVar[Literal["ignore"] | None] = None  # what to do with unknown fields; None refuses

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    study = _record("study.json", Study)
    specs = _each("runs/{}/spec.json", RunSpec)
    variants = _each("runs/{}/metrics.json", VariantResult)
    evaluations = _each("runs/{}/evaluation.json", EvaluationResult)
    certificates = _each("equivalence/{}.json", Certificate)
    claims = listed("claims.json", ClaimResult)
    curves = listed("families.json", FamilyCurve)  # families of variants that differ in one number
    quality = _asked("quality", "quality.json", QualityResult)
    projection = _asked("projection", "projection/projection.json", Projection)
    link_error = _asked("link_check", "links/error.json", LinkError)
    hardware = _record("machine/hardware.json", Hardware)
    roofline = _record("machine/roofline.json", Roofline)

    @property
    def devices(self) -> str:
        """The CPU by name if all runs used it, else the GPUs."""
        repeats = (repeat for result in self.ordered for repeat in result.repeats)
        used = {repeat.topology.device for repeat in repeats if repeat.topology}
        return self.hardware.cpu if used == {"cpu"} else self.hardware.devices

    def _of(self, names: Iterable[str], file: str, kind: type[Record]) -> dict[str, Record]:
        found = {name: self._read(file.format(name), kind) for name in names}
        for name, record in found.items():
            if (of := getattr(record, "variant", name)) != name:
                raise damaged(self.folder / file.format(name), f"is of {of}, not of {name}")
        return found

    def _read(self, file: str, kind: Any) -> Any:
        return read_as(self.folder / file, kind, self.extra)

    @cached_property
    def all_comparisons(self) -> list[Comparison]:
        """Comparisons with any reference, those with the baseline first."""
        found: list[Comparison] = self._read("comparisons.json", list[Comparison])
        self._require_known("comparisons.json", (name for one in found for name in one.pair))
        study, place = self.study, self.study.variants.index
        return sorted(found, key=lambda c: (c.reference != study.baseline, *map(place, c.pair)))

    @cached_property
    def utilisation(self) -> list[Utilisation]:
        found: list[Utilisation] = self._read("utilisation.json", list[Utilisation])
        self._require_known("utilisation.json", (one.variant for one in found))
        return found

    @cached_property
    def search(self) -> SearchResult:
        found: SearchResult = self._read("search.json", SearchResult)
        path, study = self.folder / "search.json", self.folder / "study.json"
        if found.baseline != self.study.baseline:
            message = f"has the baseline {found.baseline}, and {study} {self.study.baseline}"
            remedy = f"{remake(path)}; if {study} is the wrong one, {remake(study)}"
            raise ConfigError([ConfigProblem(str(path), WHOLE_FILE, None, message, remedy)])
        self._require_known("search.json", found.parts, self.definitions)
        return found

    @cached_property
    def predicted_memory(self) -> PredictedMemory | None:
        """Null unless the study asks for it."""
        if self.study.memory is None:
            return None
        file = "memory/predicted.json"
        found: PredictedMemory = self._read(file, PredictedMemory)
        self._require_known(file, (one.variant for one in found.predictions))
        return found

    def _require_known(
        self, file: str, names: Iterable[str], known: Collection[str] | None = None
    ) -> None:
        """Refuses ``names`` in a file that are not ``known``, by default as variants of the study."""
        for name in names:
            if name not in (self.study.variants if known is None else known):
                path = self.folder / file
                raise damaged(path, f"is of another study: this one has no variant {name}")

    @cached_property
    def definitions(self) -> dict[str, Variant]:
        """The defined variants, and their ancestors."""
        return read_as(self.folder / "variants.json", dict[str, Variant])

    @property
    def ordered(self) -> list[VariantResult]:
        return list(self.variants.values())

    @property
    def ended_otherwise(self) -> list[VariantResult]:
        return [result for result in self.ordered if result.status != "ok"]

    @property
    def not_evaluated(self) -> list[EvaluationResult]:
        """Evaluations that failed, of variants that were trained."""
        found = zip(self.ordered, self.evaluations.values(), strict=True)
        return [after for run, after in found if run.status == "ok" != after.status]

    def steps_file(self, variant: str) -> Path:
        """steps.parquet of the variant's first repeat."""
        first = self.variants[variant].repeats[0].repeat
        return self.folder / f"runs/{variant}/repeat-{first}/steps.parquet"

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
            run
            for comparison in self.comparisons.values()
            if (run := self.turns(comparison)) is not None
        ]

    @cached_property
    def foreign_share(self) -> float:
        """The largest share of the CPUs that other processes took in a session of turns with the baseline, or
        of the search's last comparison."""
        cpus = [
            (session, run.provenance[run.reference].hardware.logical_cpus)
            for run in self.paired_runs
            for session in run.sessions
        ]
        there = self.search.provenance.hardware.logical_cpus
        cpus += [(session, there) for session in self.search.sessions]
        return max((session.foreign_share(count) or 0.0 for session, count in cpus), default=0.0)

    def turns(self, comparison: Comparison) -> PairedRun | None:
        """The record of a comparison's turns, if it has one."""
        if comparison.record is None:
            return None
        found: PairedRun = self._read(comparison.record, PairedRun)
        if found.pair != comparison.pair:
            path = self.folder / comparison.record
            raise damaged(path, f"is of {found.pair}, not of {comparison.pair}")
        return found

    @cached_property
    def memory(self) -> dict[str, MemoryResult]:
        """Measured memory by variant, if the study asks for it."""
        asked = self.study.memory
        names = self.study.variants if asked is not None and asked.anatomy else []
        return self._of(names, "memory/{}.json", MemoryResult)

    @cached_property
    def largest_batches(self) -> dict[str, LargestBatchResult]:
        """Largest batches by variant, for those that the study searches."""
        asked = self.study.memory
        searched = asked.largest_batch.variants if asked is not None else []
        names = [name for name in self.study.variants if name in searched]
        return self._of(names, "memory/largest_batch/{}.json", LargestBatchResult)

    def profile_folder(self, variant: str) -> Path:
        return self.folder / "profiles" / variant

    @cached_property
    def breakdowns(self) -> dict[str, Breakdown]:
        """The breakdowns of the variants that have one, and of user-provided traces."""
        names = (*self.study.variants, *self.study.traces)
        there = [name for name in names if (self.profile_folder(name) / "breakdown.json").exists()]
        return self._of(there, "profiles/{}/breakdown.json", Breakdown)

    def capture(self, variant: str) -> Capture | None:
        """How a profile was recorded, if known."""
        path = self.profile_folder(variant) / "capture.json"
        return read_record(path, Capture) if path.exists() else None

    @cached_property
    def splits(self) -> dict[str, CorpusSplit]:
        return self._of(SPLITS, f"{self._corpus}/pairs/{{}}.json", CorpusSplit)

    @cached_property
    def manifests(self) -> dict[str, ShardManifest]:
        """The token ids of each split."""
        return self._of(SPLITS, f"{self._corpus}/shards/{{}}/manifest.json", ShardManifest)

    @cached_property
    def tokenizer(self) -> TokenizerReport:
        return read_record(self.folder / self._corpus / "tokenizer.report.json", TokenizerReport)

    @property
    def _corpus(self) -> str:
        return f"data/{self.study.corpus.name}"

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


def timed_otherwise(results: StudyResults, comparison: Comparison) -> bool:
    """Whether a side with a certificate took turns that computed differently than certified: the ratio
    is then that of another training."""
    if comparison.speedup is None:
        return False
    variant, reference = (results.certificates[name].status for name in comparison.pair)
    of_reference = variant == reference == "equivalent" and not comparison.counts
    return comparison.certificate == "inconclusive" != variant or of_reference


def session_rates(results: StudyResults) -> list[float]:
    """Non-padding tokens per second of the baseline in each of its sessions with any variant.

    Variants that took turns in the same sessions share them; each counts once.
    """
    baseline = results.study.baseline
    rates: dict[tuple[str, int], float] = {}
    for run in results.paired_runs:
        for session in run.sessions:
            windows = session.windows(baseline)
            seconds = sum(window.seconds for window in windows)
            if seconds:
                tokens = sum(window.tokens for window in windows)
                rates.setdefault((session.started, session.number), tokens / seconds)
    return list(rates.values())


def throughputs(results: StudyResults) -> dict[str, Interval]:
    """Tokens per second by variant, for the baseline and those that took turns with it.

    The machine drifts between consecutive runs, so their throughputs may contradict the ratios,
    which come from adjacent windows. Therefore that of the baseline is taken over all its sessions,
    with their range, and that of any other variant is its ratio times this.
    """
    rates = session_rates(results)
    if not rates:
        return {}
    middle = median(rates)
    return {results.study.baseline: range_of(rates)} | {
        name: comparison.speedup.mapped(lambda ratio: middle * ratio)
        for name, comparison in results.comparisons.items()
        if comparison.speedup is not None
    }


def epoch_seconds(result: VariantResult, throughput: Interval | None) -> float | None:
    """Seconds per epoch at this throughput; null without one."""
    if result.epoch_seconds is None or result.tokens_per_second is None or throughput is None:
        return None
    return result.epoch_seconds * result.tokens_per_second.median / throughput.median
