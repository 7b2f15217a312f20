"""Results of a search, for the report."""

from pathlib import Path

from hostile import EVIL, write

from schemas.config.run_spec import RunSpec
from schemas.results import (
    Certificate,
    Contender,
    Effect,
    Interval,
    QualityLook,
    QualityResult,
    QualitySide,
    SearchResult,
    Stage,
    Translation,
)
from tests.records import provenance, record


def write_search(folder: Path, baseline: RunSpec, certificate: Certificate) -> None:
    """A search that bfloat16 won; another combination ran out of memory."""
    won = Interval(median=1.62, low=1.59, high=1.65, samples=24)
    effect = Effect(quantity="throughput", ratio=won, verdict="FASTER")
    stage = Stage(parts=["amp_bf16"], changes=["amp_bf16"], effect=effect)
    contenders = [
        record(Contender, parts=["amp_bf16"], predicted=1.62, rounds=[1.6, 1.63], status="ok",
               certificate="equivalent"),
        record(Contender, parts=["amp_bf16", "ddp"], predicted=1.4, status="oom", reason=EVIL),
    ]  # fmt: skip
    result = record(
        SearchResult,
        status="found",
        reason="the fastest certified combination of the search",
        baseline=baseline.variant,
        considered=3,
        contenders=contenders,
        parts=["amp_bf16"],
        spec=baseline.model_copy(update={"variant": "recommended"}),
        certificate=certificate,
        waterfall=[stage],
        seconds=58.0,
        provenance=provenance(),
    )
    write(folder / "search.json", result)


def write_quality(folder: Path, baseline: str, raced: bool) -> None:
    """A race in which the recommendation arrives in half the time; no race unless ``raced``."""

    def side(name: str, parts: list[str], step_seconds: float) -> QualitySide:
        looks = [
            QualityLook(step=100 * k, seconds=100 * k * step_seconds, loss=4.0 - k, bleu=26.0 * k)
            for k in (1, 2)
        ]
        sample = Translation(source=EVIL, reference="Ein Hund.", hypothesis="Ein Hund.")
        ended = {"status": "ok", "reason": None, "arrived": looks[-1]}
        return QualitySide(name=name, parts=parts, looks=looks, samples=[sample], **ended)

    result = QualityResult(
        status="arrived" if raced else "not_run",
        reason="both reach 50 BLEU" if raced else "nothing beats the baseline",
        bleu=50.0,
        pairs=50,
        sides=[side("baseline", [baseline], 0.2), side("best", ["amp_bf16"], 0.1)][: 2 * raced],
        time_ratio=0.5 if raced else None,
        seconds=70.0,
        provenance={"baseline": provenance(), "best": provenance()},
    )
    write(folder / "quality.json", result)
