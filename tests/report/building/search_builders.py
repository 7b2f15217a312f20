"""What the search found, for the report."""

from pathlib import Path

from schemas.config.run_spec import RunSpec
from schemas.results import (
    Certificate,
    Contender,
    Effect,
    Interval,
    Provenance,
    SearchResult,
    Stage,
)


def write_search(
    folder: Path, baseline: RunSpec, certificate: Certificate, provenance: Provenance, text: str
) -> None:
    """A search in which bfloat16 won, and another combination ran out of memory with ``text``."""
    won = Interval(median=1.62, low=1.59, high=1.65, samples=24)
    stage = Stage(
        parts=["amp_bf16"],
        change="amp_bf16",
        effect=Effect(quantity="throughput", ratio=won, verdict="FASTER"),
    )
    result = SearchResult(
        status="found",
        reason="the fastest certified combination of the search",
        baseline=baseline.variant,
        eligible=["amp_bf16", "ddp"],
        considered=3,
        contenders=[
            Contender(parts=["amp_bf16"], predicted=1.62, rounds=[1.6, 1.63], status="ok",
                      reason=None, certificate="equivalent"),
            Contender(parts=["amp_bf16", "ddp"], predicted=1.4, rounds=[], status="oom",
                      reason=text, certificate=None),
        ],
        parts=["amp_bf16"],
        spec=baseline.model_copy(update={"variant": "recommended"}),
        certificate=certificate,
        waterfall=[stage],
        left_out=[],
        sessions=[],
        seconds=58.0,
        provenance=provenance,
    )  # fmt: skip
    (folder / "search.json").write_text(result.model_dump_json(), encoding="utf-8")
