"""Claims and families of the study in report_builders."""

from pathlib import Path
from typing import Any

from hostile import EVIL

from tests.orders import run_job


def _test(variant: str, direction: str = "more", **more: Any) -> dict[str, Any]:
    compared = {"variant": variant, "reference": "single", "direction": direction}
    return {"kind": "comparison"} | compared | more


def _claim(statement: str, *tests: dict[str, Any]) -> dict[str, Any]:
    return {"statement": statement, "source": "A book, page 3", "tests": list(tests)}


def write_claims(folder: Path) -> None:
    """claims.json and family_curves.json, made by the jobs of the analysis."""
    stated = {
        "true": _claim("Fewer bits are faster.", _test("amp_bf16", at_most=3), _test("ddp")),
        "large": _claim("Fewer bits are twice as fast.", _test("amp_bf16", at_least=2)),
        "false": _claim("Synchronising often is faster.", _test("accum4_sync")),
        "open": _claim("It trains something else.", _test("forgetful")),
        "elsewhere": _claim(f"Two devices are faster. {EVIL}", _test("ddp")),
    }
    names = ("single", "accum4_sync", "amp_bf16", "forgetful", "ddp")
    members = [{"value": 4**power, "variant": name} for power, name in enumerate(names)]
    few = [members[0], {"value": 2, "variant": "not_run"}]
    bits = {"title": f"Bits {EVIL}", "unit": "MiB", "summary": f"How many? {EVIL}"}
    grouped = {
        "bits": bits | {"reference": "single", "members": members},
        "alone": {"title": "A", "summary": "B?", "reference": "single", "members": few},
    }
    to = {name: folder / f"{name}.json" for name in ("families", "claims")}
    assert run_job("families", families=grouped, results=folder, output=to["families"]) == 0
    assert run_job("claims", claims=stated, results=folder, output=to["claims"]) == 0
