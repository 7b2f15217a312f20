"""Orders and commands of jobs, as rules write them."""

import json
import sys
from pathlib import Path
from typing import Any

from schemas.base import Schema
from transformer_core.common.endings import program
from transformer_core.study.kinds import JOBS, parse


def order_text(kind: str, **fields: Any) -> str:
    """An order as JSON."""

    def plain(value: Any) -> Any:
        return value.model_dump(mode="json") if isinstance(value, Schema) else str(value)

    return json.dumps({"kind": kind, **fields}, default=plain)


@program
def run_order(text: str) -> int:
    """Runs an order in this process: its exit code. Refusals go to standard error."""
    return parse(text, JOBS, "--order").run(None) or 0


def run_job(kind: str, **fields: Any) -> int:
    """Runs the order with these fields in this process: its exit code."""
    return run_order(order_text(kind, **fields))


def job_command(kind: str, log_file: Path | None = None, **fields: Any) -> list[str]:
    """The command line of an order."""
    order = order_text(kind, **fields)
    command = [sys.executable, "-m", "transformer_core.run.job", "--order", order]
    return [*command, f"--log-file={log_file}"] if log_file else command


def combining(results: Path, folder: Path) -> dict[str, Any]:
    """The order that combines the repeats of the variant in ``folder``."""
    (manifest,) = results.glob("data/*/shards/train/manifest.json")
    return {
        "variant": folder.name,
        "spec": folder / "spec.json",
        "repeats": sorted(folder.glob("repeat-*/metrics.json")),
        "manifest": manifest,
    }


def comparing(results: Path) -> dict[str, Any]:
    """The order that compares all variants; digests of results are hidden files beside them."""
    return {
        "margin": 0.02,
        "pairs": sorted(results.glob("turns/*/*/*/[!.]*.json")),
        "results": sorted(results.glob("runs/*/metrics.json")),
        "certificates": sorted(results.glob("equivalence/[!.]*.json")),
    }
