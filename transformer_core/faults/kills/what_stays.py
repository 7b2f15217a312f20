"""What must be the same in every study, however often it was killed, and what must not be left."""

import hashlib
import json
from pathlib import Path

from transformer_core.common.tables import read_table

_SAME = (
    "data/*/pairs/*.arrow",
    "data/*/tokenizer.json",
    "data/*/shards/*/*.arrow",
    "runs/*/repeat-*/model.safetensors",
    "equivalence/trajectories/*/final.safetensors",
)
"""Files that are the same to the last bit."""


def what_must_be_the_same(results: Path) -> dict[str, str]:
    """Digests of what does not depend on the clock, by file."""
    found = {
        str(path.relative_to(results)): hashlib.sha256(path.read_bytes()).hexdigest()
        for pattern in _SAME
        for path in sorted(results.glob(pattern))
    }
    for path in sorted(results.glob("runs/*/repeat-*/steps.parquet")):
        table = read_table(path).drop_columns(["input_wait_seconds"])
        found[str(path.relative_to(results))] = _digest(table.to_pydict())
    for path in sorted(results.glob("runs/*/repeat-*/metrics.json")):
        record = json.loads(path.read_text())
        found[str(path.relative_to(results))] = _digest([record["status"], record["validations"]])
    for path in sorted(results.glob("runs/*/evaluation.json")):
        record = json.loads(path.read_text())
        found[str(path.relative_to(results))] = _digest([record["bleu"], record["samples"]])
    for path in sorted(results.glob("equivalence/*.json")):
        record = json.loads(path.read_text())
        found[str(path.relative_to(results))] = _digest([record["status"], record["deviations"]])
    return found


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
