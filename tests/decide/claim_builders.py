"""Results of a small study on disk with exactly known effects, and claims about them."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from analysis_builders import certificate, memory, result
from pydantic import TypeAdapter

from schemas.config.claims import Claim
from schemas.config.study import Study
from schemas.config.variants import Family
from schemas.results import (
    CertificateStatus,
    ClaimResult,
    Comparison,
    Effect,
    FamilyCurve,
    Interval,
    VariantResult,
)
from tests.orders import run_job
from tests.records import topology, write_tree
from transformer_core.decide.verdicts import not_measured, verdict_of

RATES = [100.0, 101.0, 102.0]


def interval(low: float, high: float) -> Interval:
    return Interval(median=(low + high) / 2, low=low, high=high, samples=12)


def comparison(variant: str, reference: str, low: float, high: float, **more: Any) -> Comparison:
    """A comparison of throughputs; ``more`` holds other effects by quantity as (low, high)."""
    known, effects = {"throughput": (low, high)} | more, []
    for quantity in ("throughput", "peak_memory", "traffic"):
        if quantity in known:
            ratio = interval(*known[quantity])
            verdict = verdict_of(quantity, ratio, margin=0.02)
            effects.append(Effect(quantity=quantity, ratio=ratio, verdict=verdict))
        else:
            effects.append(not_measured(quantity, "was not measured"))
    return Comparison(
        variant=variant, reference=reference, effects=effects, certificate="equivalent", counts=True
    )


@cache
def run(
    variant: str, world_size: int = 1, device: str = "cpu", all_reduces: int | None = None
) -> VariantResult:
    ranks = [memory(rank) for rank in range(world_size)]
    return result(
        variant,
        RATES,
        topology=topology(world_size, device=device),
        memory=ranks,
        communication=None if all_reduces is None else {"all_reduces": all_reduces},
    )


def ended(variant: str, status: Any, reason: str) -> VariantResult:
    return result(variant, [], status=status, reason=reason, topology=None, memory=[])


def write_study(
    folder: Path,
    runs: Sequence[VariantResult],
    comparisons: Sequence[Comparison] = (),
    certificates: Mapping[str, CertificateStatus] | None = None,
    files: Mapping[str, Any] | None = None,
) -> Path:
    """The results of a study with these runs; certificates are equivalent unless given."""
    names = [item.variant for item in runs]
    study = Study(name="small", variants=names, baseline=names[0])
    written: dict[str, Any] = {"study.json": study.model_dump(mode="json")}
    written["comparisons.json"] = [item.model_dump(mode="json") for item in comparisons]
    for item in runs:
        status = (certificates or {}).get(item.variant, "equivalent")
        written[f"runs/{item.variant}/metrics.json"] = item.model_dump(mode="json")
        record = certificate(item.variant, status).model_copy(update={"reason": f"is {status}"})
        written[f"equivalence/{item.variant}.json"] = record.model_dump(mode="json")
    contents = written | dict(files or {})
    return write_tree(folder, {name: json.dumps(content) for name, content in contents.items()})


def claim(*tests: dict[str, Any], **more: Any) -> Claim:
    values: dict[str, Any] = {"statement": "It holds.", "source": "A book", "tests": list(tests)}
    return Claim.model_validate(values | more)


def family(reference: str | None, members: Mapping[float, Any], **more: Any) -> Family:
    """A family with members as value: variant, or value: (variant, reference)."""
    listed = [
        {"value": value, "variant": member}
        if isinstance(member, str)
        else {"value": value, "variant": member[0], "reference": member[1]}
        for value, member in members.items()
    ]
    values = {"title": "Size", "summary": "How large?", "reference": reference, "members": listed}
    return Family.model_validate(values | more)


def curves(folder: Path, families: Mapping[str, Family]) -> dict[str, FamilyCurve]:
    """The curves that the job writes."""
    output = folder / "families.json"
    assert run_job("families", families=dict(families), results=folder, output=output) == 0
    found = TypeAdapter(list[FamilyCurve]).validate_json(output.read_text())
    return {curve.family: curve for curve in found}


def judge(
    folder: Path, claims: Mapping[str, Claim], families: Mapping[str, Family] | None = None
) -> dict[str, ClaimResult]:
    """The jobs' judgement of the claims."""
    curves(folder, families or {})
    output = folder / "claims.json"
    assert run_job("claims", claims=dict(claims), results=folder, output=output) == 0
    found = TypeAdapter(list[ClaimResult]).validate_json(output.read_text())
    return {item.claim: item for item in found}
