"""Claims and families of the small study of report_builders; their texts try to escape, too."""

import json
from pathlib import Path
from typing import Any

from transformer_core.decide import claims as judge
from transformer_core.decide import family_curves


def _test(variant: str, direction: str = "more", **more: Any) -> dict[str, Any]:
    return {
        "kind": "comparison",
        "variant": variant,
        "reference": "single",
        "direction": direction,
    } | more


def _claim(statement: str, *tests: dict[str, Any]) -> dict[str, Any]:
    return {"statement": statement, "source": "A book, page 3", "tests": list(tests)}


def write_claims(folder: Path, evil: str) -> None:
    """claims.json and family_curves.json, made by the jobs of the analysis."""
    stated = {
        "true": _claim("Fewer bits are faster.", _test("amp_bf16", at_most=3), _test("ddp")),
        "large": _claim("Fewer bits are twice as fast.", _test("amp_bf16", at_least=2)),
        "false": _claim("Synchronising often is faster.", _test("accum4_sync")),
        "open": _claim("It trains something else.", _test("forgetful")),
        "elsewhere": _claim(f"Two devices are faster. {evil}", _test("ddp")),
    }
    members = [
        {"value": 1, "variant": "single"},
        {"value": 4, "variant": "accum4_sync"},
        {"value": 16, "variant": "amp_bf16"},
        {"value": 64, "variant": "forgetful"},
        {"value": 256, "variant": "ddp"},
    ]
    grouped = {
        "bits": {
            "title": f"Bits {evil}",
            "unit": "MiB",
            "summary": f"How many? {evil}",
            "reference": "single",
            "members": members,
        },
        "alone": {
            "title": "Nothing",
            "summary": "Is there any?",
            "reference": "single",
            "members": [members[0], {"value": 2, "variant": "not_run"}],
        },
    }
    common = ["--study", str(folder / "study.json"), "--results", str(folder), "--output"]
    curves = [*common, str(folder / "families.json")]
    assert family_curves.main(["--families", json.dumps(grouped), *curves]) == 0
    verdicts = [*common, str(folder / "claims.json")]
    assert judge.main(["--claims", json.dumps(stated), *verdicts]) == 0
