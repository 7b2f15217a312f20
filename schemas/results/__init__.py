"""The contract between the rooms: every file that one job writes and another reads.

Times are seconds, sizes bytes. A value that was not measured is null, never 0. One module per
folder of results/; all names can be imported from here.
"""

from schemas.results.common import Interval, Status
from schemas.results.comparisons import (
    Comparison,
    Effect,
    GpuState,
    MachineState,
    PairedRun,
    Probe,
    Quantity,
    Round,
    Session,
    Side,
    TurnWindow,
    Verdict,
)
from schemas.results.data import (
    CorpusSplit,
    LengthHistogram,
    Shard,
    ShardManifest,
    SkippedPair,
    TokenizerReport,
)
from schemas.results.equivalence import (
    Certificate,
    CertificateStatus,
    CertificateStep,
    Deviation,
    SeedTrajectory,
    Trajectory,
)
from schemas.results.machine import Gpu, Hardware
from schemas.results.runs import (
    STEP_COLUMNS,
    EvaluationResult,
    Provenance,
    RankMemory,
    Repeat,
    Topology,
    Translation,
    Validation,
    VariantResult,
    Window,
)

__all__ = [
    "STEP_COLUMNS",
    "Certificate",
    "CertificateStatus",
    "CertificateStep",
    "Comparison",
    "CorpusSplit",
    "Deviation",
    "Effect",
    "EvaluationResult",
    "Gpu",
    "GpuState",
    "Hardware",
    "Interval",
    "LengthHistogram",
    "MachineState",
    "PairedRun",
    "Probe",
    "Provenance",
    "Quantity",
    "RankMemory",
    "Repeat",
    "Round",
    "SeedTrajectory",
    "Session",
    "Shard",
    "ShardManifest",
    "Side",
    "SkippedPair",
    "Status",
    "TokenizerReport",
    "Topology",
    "Trajectory",
    "Translation",
    "TurnWindow",
    "Validation",
    "VariantResult",
    "Verdict",
    "Window",
]
