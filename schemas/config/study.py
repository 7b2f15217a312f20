"""Studies: settings shared by all variants, and the variants to run."""

from pydantic import Field

from schemas.base import Count, Duration, Line, Name, PathText, seconds_of
from schemas.config.measurement import (
    Certification,
    Comparing,
    Limits,
    LinkCheck,
    MemoryUse,
    Profiling,
    Projecting,
    Quality,
    Search,
    SelfTest,
)
from schemas.config.run_spec import Sections
from schemas.config.training import Evaluation
from schemas.config.variants import VariantName


class Study(Sections):
    """One study file: settings shared by all variants, and the variants to run."""

    name: Name = Field(examples=["my_study"])
    """Name of the study. Results of a different study are never overwritten silently."""
    title: Line = "Transformer training, measured"  # heading of the report
    time: Duration | None = Field(default=None, examples=["10 min"])
    """Total time for the study, as a number with s, min or h. Required jobs always run; then
    undecided comparisons continue, most important first, until the time is up. Null: each
    comparison has its own budget, and nothing more. With a script or training step of your own,
    techniques are tried until the time is up; null is 5 minutes."""
    repeats: Count = 1
    """Runs of each variant, each in fresh processes: for quality, memory and throughput."""
    evaluation: Evaluation = Evaluation()  # how trained models are evaluated
    comparison: Comparing = Comparing()  # how variants are timed against their reference
    comparisons: list[tuple[Name, Name]] = Field(default_factory=list, max_length=10_000)
    """Additional comparisons, each as [variant, reference]. Every variant is compared with the
    baseline anyway."""
    self_test: SelfTest = SelfTest()  # how the comparison protocol is tested
    profiling: Profiling = Profiling()  # how variants are profiled
    limits: Limits = Limits()  # how the limits of the machine are measured
    certificate: Certification = Certification()  # how variants are shown to train the same model
    search: Search | None = Search()
    """The search for the best combination of techniques; null for none."""
    quality: Quality | None = None
    """Measures how long the baseline and the recommendation take to reach the same quality; null to
    skip."""
    link_check: LinkCheck | None = None
    """How the emulated link is checked against a real one; null to skip."""
    projection: Projecting | None = Projecting()
    """How step times are projected to more devices; null to skip."""
    variants: list[VariantName] = Field(min_length=1, max_length=1_000)
    """Names from config/variants.yaml, and compositions: {with: [as_published, qkv_fused]} takes
    the first one whole and only the own changes of the others; elsewhere the study calls it
    as_published_with_qkv_fused."""
    baseline: VariantName = "single"
    """The variant that the others are compared with; must be one of variants."""
    memory: MemoryUse | None = MemoryUse()  # memory measurements; null for none
    traces: dict[Name, list[PathText]] = Field(default_factory=dict)
    """Your own profiles, by name: SQLite exports of Nsight Systems or Kineto traces of
    torch.profiler (.json, .json.gz), one file per rank. They are only read."""
    replace_results: bool = False  # allow results/ to be overwritten if it holds another study

    @property
    def tuning_seconds(self) -> float:
        """Seconds for trying techniques on a training of the user's."""
        return 300.0 if self.time is None else seconds_of(self.time)
