"""Records of runs with exactly known throughputs."""

from collections.abc import Sequence
from typing import Any

from schemas.config.measurement import Tolerance
from schemas.config.run_spec import RunSpec
from schemas.results import (
    Certificate,
    LengthHistogram,
    RankMemory,
    Repeat,
    SeedTrajectory,
    ShardManifest,
    Trajectory,
    VariantResult,
    Window,
)
from tests import records
from tests.records import SHA, provenance, record, topology
from transformer_core.decide.combine import combine


def spec(variant: str = "single") -> RunSpec:
    return RunSpec(variant=variant)


def memory(rank: int = 0, device: str = "cpu", **changes: Any) -> RankMemory:
    return record(RankMemory, **({"rank": rank, "device": device, "rss_bytes": 1000} | changes))


def window(rate: float, index: int = 0, wait: float = 0.0) -> Window:
    """A window of two seconds with ``rate`` tokens per second, a tenth of that in pairs."""
    return Window(
        first_step=21 + 10 * index,
        last_step=30 + 10 * index,
        seconds=2.0,
        pairs=int(rate / 5),
        tokens=int(2 * rate),
        padded_tokens=int(2.5 * rate),
        input_wait_seconds=wait,
    )


def repeat(number: int, rates: list[float], variant: str = "single", **changes: Any) -> Repeat:
    values: dict[str, Any] = {
        "variant": variant,
        "repeat": number,
        "status": "ok",
        "topology": topology(),
        "parameters": 10,
        "steps": 100,
        "startup_seconds": 1.0,
        "warmup_seconds": 1.0,
        "total_seconds": 9.0,
        "windows": [window(rate, index) for index, rate in enumerate(rates)],
        "memory": [memory()],
        "provenance": provenance(spec_sha256=spec(variant).digest()),
    }
    return record(Repeat, **(values | changes))


def manifest(pairs: int = 100, source: int = 700, target: int = 900) -> ShardManifest:
    lengths = LengthHistogram(unit="tokens", source={7: pairs}, target={9: pairs})
    return records.manifest(
        corpus="grammar",
        pairs=pairs,
        source_tokens=source,
        target_tokens=target,
        vocabulary=300,
        lengths=lengths,
    )


def result(variant: str, *rates: list[float], **changes: Any) -> VariantResult:
    """A variant with one repeat per list of throughputs."""
    repeats = [
        repeat(number, values, variant, **changes) for number, values in enumerate(rates, start=1)
    ]
    return combine(variant, repeats, manifest())


def certificate(variant: str, status: Any = "equivalent") -> Certificate:
    """A certificate with nothing but a verdict."""
    return record(
        Certificate, variant=variant, equivalence=Tolerance(kind="tolerance"), status=status,
        reason="", reference="reference", seeds=[1],
    )  # fmt: skip


def seed_trajectory(
    number: int = 1, losses: Sequence[float] = (1.0,), **changes: Any
) -> SeedTrajectory:
    """A seed of a short run with these losses and no checks."""
    values: dict[str, Any] = {
        "seed": number,
        "initial_sha256": SHA,
        "losses": losses,
        "grad_norms": [1.0] * len(losses),
    }
    return record(SeedTrajectory, **(values | changes))


def trajectory(name: str, seeds: Sequence[SeedTrajectory], **changes: Any) -> Trajectory:
    """A successful short run."""
    values = {"name": name, "status": "ok", "seeds": seeds, "provenance": provenance()}
    return record(Trajectory, **(values | changes))
