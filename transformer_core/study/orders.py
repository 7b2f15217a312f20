"""Parameters of the rules whose jobs run orders (see :mod:`transformer_core.run.job`)."""

import inspect
import json
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from schemas.base import Schema
from schemas.config.run_spec import RunSpec
from transformer_core.common.endings import failures
from transformer_core.study.users_files import own_models

CHANGES_NO_RESULT = True  # orders are parameters of rules


def order_params(
    kind: str,
    digest: str,
    /,
    of: Callable[..., Iterable[RunSpec]] | None = None,
    again: str | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """The parameters of a rule: the order of its job, and anything else that makes its results stale.

    Named inputs and outputs of the rule become fields of the order; the first output without a name
    becomes ``output``, and the input ``shards`` becomes ``data``, the folder of its corpus. Other
    ``fields`` are settings, or functions: of the wildcards for a setting, also of ``input``,
    ``output`` or ``threads`` for a file. None leaves a field out.

    ``digest`` is that of the rule's programs. ``of`` gives the run specs that the job trains, whose
    models may be the user's. ``again`` is the result whose failed attempts are repeated.
    """
    settings = {
        name: field
        for name, field in fields.items()
        if not callable(field) or [*inspect.signature(field).parameters] == ["wildcards"]
    }

    def order(wildcards: Any, input: Any, output: Any, threads: int) -> str:
        job = {"wildcards": wildcards, "input": input, "output": output, "threads": threads}
        found = {name: file for name, file in [*input.items(), *output.items()] if file}
        if "shards" in found:
            shards = found.pop("shards")
            found["data"] = Path(shards if isinstance(shards, str) else shards[0]).parents[2]
        if output[0] not in found.values():
            found["output"] = output[0]
        found |= {name: _given(field, job) for name, field in fields.items()}
        return as_json({"kind": kind} | {k: v for k, v in found.items() if v is not None})

    def asked(wildcards: Any) -> str:
        job = {"wildcards": wildcards}
        return as_json({name: _given(field, job) for name, field in settings.items()})

    params: dict[str, Any] = {"code": digest, "order": order}
    # Snakemake does not compare parameters made from inputs or outputs: without "asked", a changed
    # setting would rerun nothing.
    if settings:
        params["asked"] = asked
    if of is not None:
        params["own"] = lambda wildcards: own_models(of(wildcards))
    if again is not None:
        params["again"] = lambda wildcards: failures(again.format(**dict(wildcards.items())))
    return params


def shell_prefix(python: str = sys.executable) -> str:
    """The start of every command of a rule, which makes ``python`` the Python of its jobs. Braces are
    doubled, as in a format string: Snakemake formats it."""
    folder = shlex.quote(str(Path(python).parent))
    return f"set -euo pipefail; export PATH={folder}:$PATH; ".replace("{", "{{").replace("}", "}}")


def _given(field: Any, job: dict[str, Any]) -> Any:
    if not callable(field):
        return field
    return field(**{name: job[name] for name in inspect.signature(field).parameters})


def as_json(value: Any) -> str:
    def plain(value: Any) -> Any:
        return value.model_dump(mode="json") if isinstance(value, Schema) else str(value)

    return json.dumps(value, default=plain)
