"""Write the JSON Schemas that editors use: ``python -m schemas.generate [--check]``."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from schemas.claims import Claims
from schemas.families import Families
from schemas.study import RunSpec, Study, Variants

FOLDER = Path(__file__).parent / "json"
REPAIR = "python -m schemas.generate"


def generated() -> dict[str, str]:
    """File name and text of each JSON Schema."""
    types: dict[str, Any] = {
        "study.json": Study,
        "variants.json": Variants,
        "run_spec.json": RunSpec,
        "claims.json": Claims,
        "families.json": Families,
    }
    return {
        name: json.dumps(TypeAdapter(kind).json_schema(), indent=2, ensure_ascii=False) + "\n"
        for name, kind in types.items()
    }


def drifted() -> list[str]:
    """Names of the schema files that differ from the models."""
    return [
        name
        for name, text in generated().items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text(encoding="utf-8") != text
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Write schemas/json from the pydantic models.")
    parser.add_argument("--check", action="store_true", help="only say which files are stale")
    if parser.parse_args().check:
        stale = drifted()
        if stale:
            print(f"stale: {', '.join(stale)}; repair with: {REPAIR}", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name, text in generated().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
