"""Write the JSON Schemas for editors and the settings reference: ``python -m schemas.generate
[--check]``."""

import argparse
import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from schemas.base import Schema
from schemas.config.claims import Claims
from schemas.config.study import Study
from schemas.config.variants import Variants
from schemas.reference import pages

ROOT = Path(__file__).parents[1]
REPAIR = "python -m schemas.generate"


def generated() -> dict[str, str]:
    """Path in the project and text of each file."""
    describe_fields()
    types: dict[str, Any] = {"study.json": Study, "variants.json": Variants, "claims.json": Claims}
    schemas = {
        f"schemas/json/{name}": json.dumps(
            TypeAdapter(kind).json_schema(), indent=2, ensure_ascii=False
        )
        + "\n"
        for name, kind in types.items()
    }
    return schemas | {f"docs/reference/{name}": text for name, text in pages().items()}


def describe_fields() -> None:
    every = list(_descendants(Schema))
    for schema in every:
        for name, text in field_texts(schema).items():
            schema.model_fields[name].description = text
    # Twice, because a schema embeds the other schemas as they were when it was rebuilt.
    for schema in every * 2:
        schema.model_rebuild(force=True)


def field_texts(schema: type[Schema]) -> dict[str, str]:
    """The text of each field, including inherited ones: the docstring below it, or the comment after
    it, as a sentence."""
    found: dict[str, str] = {}
    for parent in reversed(schema.__mro__):
        if issubclass(parent, Schema):
            found |= _texts_in(parent)
    return {name: found[name] for name in schema.model_fields if name in found}


@cache  # every schema that inherits from this one needs them
def _texts_in(schema: type[Schema]) -> dict[str, str]:
    """The text of each field that ``schema`` itself declares."""
    found: dict[str, str] = {}
    source = textwrap.dedent(inspect.getsource(schema))
    (statement,) = ast.parse(source).body
    assert isinstance(statement, ast.ClassDef)
    for field, below in pairwise([*statement.body, None]):
        match field, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                found[name] = inspect.cleandoc(text)
            case ast.AnnAssign(target=ast.Name(name)), _:
                line = source.splitlines()[(field.end_lineno or field.lineno) - 1]
                text = line.partition("  # ")[2]
                if text:
                    found[name] = _sentence(text)
    return found


def _sentence(text: str) -> str:
    """``text`` with a capital and a full stop; a file's name at its beginning stays as it is."""
    first = text.split()[0]
    start = text[0] if "/" in first or "." in first else text[0].upper()
    return start + text[1:].removesuffix(".") + "."


def _descendants(schema: type[Schema]) -> Iterator[type[Schema]]:
    """All subclasses of ``schema``, in order of definition, each once."""
    waiting, seen = list(schema.__subclasses__()), set()
    while waiting:
        child = waiting.pop(0)
        if child not in seen:
            seen.add(child)
            waiting += child.__subclasses__()
            yield child


def drifted() -> list[str]:
    return [
        name
        for name, text in generated().items()
        if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != text
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Write schemas/json and docs/reference.")
    parser.add_argument("--check", action="store_true", help="only list stale files")
    if parser.parse_args().check:
        stale = drifted()
        if stale:
            print(f"stale: {', '.join(stale)}; repair with: {REPAIR}", file=sys.stderr)
        return 1 if stale else 0
    for name, text in generated().items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
