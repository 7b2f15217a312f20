"""The command of a job, as a rule gives it."""

import json
import sys
from pathlib import Path
from typing import Any

from schemas.base import Schema


def job_command(kind: str, log_file: Path | None = None, **fields: Any) -> list[str]:
    """The command line of an order."""

    def plain(value: Any) -> Any:
        return value.model_dump(mode="json") if isinstance(value, Schema) else str(value)

    order = json.dumps({"kind": kind, **fields}, default=plain)
    command = [sys.executable, "-m", "transformer_core.run.job", "--order", order]
    return [*command, f"--log-file={log_file}"] if log_file else command
