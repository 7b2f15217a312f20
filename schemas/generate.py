"""Write the JSON Schemas for editors and the settings reference, docs/reference/*.md, from the schemas:
``python -m schemas.generate [--check]``."""

import argparse
import ast
import inspect
import json
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import yaml
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from schemas.base import NAME_PATTERN, Schema, exactly, schemas_in
from schemas.config.claims import Claims
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variants

ROOT = Path(__file__).parents[1]
REPAIR = "python -m schemas.generate"
MADE = "<!-- Made from the schemas by `python -m schemas.generate`. Do not edit. -->"
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
PLAIN = {bool: "`true` or `false`", int: "whole number", float: "number", str: "text", Any: "any"}


def generated() -> dict[str, str]:
    """Path in the project and text of each file."""
    describe_fields()
    kinds: dict[str, Any] = {"study.json": Study, "variants.json": Variants, "claims.json": Claims}
    schemas = {
        f"schemas/json/{name}": json.dumps(
            TypeAdapter(kind).json_schema(), indent=2, ensure_ascii=False
        )
        + "\n"
        for name, kind in kinds.items()
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


def pages() -> dict[str, str]:
    """File name and text of each page. Fields must already have their descriptions."""
    of_runs_only = {
        name: field
        for name, field in RunSpec.model_fields.items()
        if name not in Study.model_fields and list(schemas_in(field.annotation))
    }
    texts = {
        "study.md": (STUDY, [*table(Study), *sections(Study.model_fields)]),
        "variants.md": (VARIANTS, [*by_name(Variants), *sections(of_runs_only)]),
        "claims.md": (CLAIMS, by_name(Claims)),
    }
    return {
        name: "\n\n".join([MADE, intro.strip(), *blocks]) + "\n"
        for name, (intro, blocks) in texts.items()
    }


def by_name(file: Any) -> list[str]:
    """The settings in a file of records by name."""
    blocks = []
    records = list(schemas_in(file))
    for record in records:
        blocks += [f"## {record.__name__}"] if len(records) > 1 else []
        blocks += [prose(record.__doc__), *table(record)]
        level = 3 if len(records) > 1 else 2
        blocks += sections(record.model_fields, "", level, lambda value: {"my_name": value})
    return blocks


Put = Callable[[dict[str, Any]], dict[str, Any]]
"""Puts the settings of a section into their place in the file."""


def sections(
    fields: dict[str, FieldInfo], path: str = "", level: int = 2, put: Put = dict
) -> list[str]:
    """The sections in fields, each with its kinds and the sections below it."""
    blocks: list[str] = []
    for name, field in fields.items():
        kinds = list(schemas_in(field.annotation))
        if not kinds:
            continue
        place = f"{path}.{name}".lstrip(".")
        blocks.append(f"{'#' * min(level, 4)} {place}")
        if len(kinds) > 1:  # a single kind describes itself, and the table above has the field
            blocks.append(prose(field.description))
        for kind in kinds:
            if len(kinds) > 1:
                blocks.append(f"{'#' * min(level + 1, 5)} {place}: {kind_of(kind)}")
            example = in_yaml(within(name, field, put)(settings_of(kind)))
            blocks += [prose(kind.__doc__), *table(kind, place), f"```yaml\n{example}```"]
        done: set[str] = set()
        for kind in kinds:
            # A setting may be a word in one kind and a section in another.
            below = {k: v for k, v in kind.model_fields.items() if any(schemas_in(v.annotation))}
            beside = {"kind": kind_of(kind)} if len(kinds) > 1 else {}
            new = {key: value for key, value in below.items() if key not in done}
            blocks += sections(new, place, level + 1, within(name, field, put, beside))
            done |= set(below)
    return blocks


def within(name: str, field: FieldInfo, put: Put, beside: dict[str, Any] | None = None) -> Put:
    """Puts settings into a section with its other settings ``beside`` them: as they are, in a list, or
    under a name."""
    origins = {get_origin(part) for part in (field.annotation, *get_args(field.annotation))}

    def place(settings: dict[str, Any]) -> dict[str, Any]:
        value: Any = (beside or {}) | settings
        value = {"my_name": value} if dict in origins else value
        return put({name: [value] if list in origins else value})

    return place


def table(schema: type[Schema], path: str = "") -> list[str]:
    """All settings of a schema; empty if it has none."""
    fields = {name: field for name, field in schema.model_fields.items() if name != "kind"}
    head = ["| setting | value | unit | default | meaning |", "|---|---|---|---|---|"]
    rows = [row(name, field, path) for name, field in fields.items()]
    return ["\n".join(head + rows)] if rows else []


def row(name: str, field: FieldInfo, path: str) -> str:
    value = value_text(field.annotation, field.metadata)
    if list(schemas_in(field.annotation)):
        # Markdown heading anchors contain no full stops.
        value = f"[{value}](#{path.replace('.', '')}{name})"
    cells = [
        f"`{field.alias or name}`",
        value,
        unit_of(field),
        default_text(field),
        prose(field.description),
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def value_text(annotation: Any, metadata: list[Any] | tuple[Any, ...] = ()) -> str:
    """The allowed values: the type and its bounds, in words."""
    arguments, origin = get_args(annotation), get_origin(annotation)
    if origin is Annotated:
        return value_text(arguments[0], [*metadata, *arguments[1:]])
    if list(schemas_in(annotation)):
        text = "sections by name" if origin is dict else "section"
        text = "list of sections" if origin is list else text
    elif origin in (Union, types.UnionType):
        text = " or ".join(value_text(part) for part in arguments if part is not type(None))
    elif origin is Literal:
        text = " or ".join(f"`{value}`" for value in arguments)
    elif origin is list or (origin is tuple and Ellipsis in arguments):
        text = f"list of: {value_text(arguments[0])}"
    elif origin is tuple:
        text = f"[{', '.join(value_text(part) for part in arguments)}]"
    elif origin is dict:
        text = f"{value_text(arguments[1])}, by name"
    else:
        text = PLAIN[annotation]
    limits = [part for item in metadata for part in parts_of(item)]
    if any(getattr(limit, "pattern", None) == NAME_PATTERN for limit in limits):
        text = "name"
    bounds = [
        f"{SIGNS[key]} {exactly(getattr(limit, key))}"
        for limit in limits
        for key in SIGNS
        if isinstance(getattr(limit, key, None), int | float)
    ]
    text = " ".join([text, *([" and ".join(bounds)] if bounds else [])])
    if any(str in get_args(getattr(limit, "json_schema_input_type", None)) for limit in limits):
        text += ", or text with a unit"
    return f"{text} or `null`" if type(None) in arguments else text


def parts_of(item: Any) -> Iterator[Any]:
    """All parts of an annotation, or of the metadata of a field."""
    yield item
    inside = item.metadata if isinstance(item, FieldInfo) else ()
    for part in (*get_args(item), *inside):
        yield from parts_of(part)


def unit_of(field: FieldInfo) -> str:
    """The unit of a number, or a dash for counts, fractions, factors and text."""
    parts = [part for item in (field.annotation, *field.metadata) for part in parts_of(item)]
    return next((part.unit for part in parts if isinstance(part, annotated_types.Unit)), "–")


def default_text(field: FieldInfo) -> str:
    """The default as written in a file, or a note that there is none."""
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "**required**"
    if isinstance(value, Schema):
        return f"kind `{value.kind}`" if hasattr(value, "kind") else "as below"
    if isinstance(value, dict) and any(isinstance(item, Schema) for item in value.values()):
        return ", ".join(f"`{name}`" for name in value)
    return f"`{in_yaml(value).removesuffix('...' + chr(10)).strip()}`"


def settings_of(schema: type[Schema]) -> dict[str, Any]:
    """An example of every setting of a section: its field's example, or its default."""
    found: dict[str, Any] = {"kind": kind_of(schema)} if "kind" in schema.model_fields else {}
    for name, field in schema.model_fields.items():
        default = field.get_default(call_default_factory=True)
        required, section = default is PydanticUndefined, next(schemas_in(field.annotation), None)
        if name == "kind":
            continue
        if field.examples:
            found[field.alias or name] = field.examples[0]
        elif section is not None:
            found |= {name: settings_of(section)} if required else {}
        elif not required:
            found[name] = default
        elif get_origin(field.annotation) is Literal:
            found[name] = get_args(field.annotation)[0]
        else:
            place = f"{schema.__name__}.{name}"
            raise ValueError(f"{place} has no default: add an example, Field(examples=[...])")
    return found


def kind_of(schema: type[Schema]) -> str:
    (kind,) = get_args(schema.model_fields["kind"].annotation)
    return str(kind)


def in_yaml(value: Any) -> str:
    flow = None if isinstance(value, list | tuple) else False
    text = yaml.safe_dump(
        value, default_flow_style=flow, sort_keys=False, allow_unicode=True, width=100
    )
    return str(text)


def prose(text: str | None) -> str:
    """A docstring as a paragraph of Markdown."""
    return " ".join((text or "").replace("``", "`").split())


STUDY = """
# The study file

All settings of a study. [config/config.yaml](../../config/config.yaml) is one, and
[config/studies/](../../config/studies/full.yaml) has others. A setting that is left out has its
default. Only `name` and `variants` are required:

```yaml
name: my_study
variants: [single, amp_bf16]
```

The examples below show every setting, not a recommended choice. An editor with a YAML language server
shows all of this while you type.
"""

VARIANTS = """
# Variants

[config/variants.yaml](../../config/variants.yaml) defines them by name; a study lists those that it
runs. A variant may change every section of a [study](study.md) that affects how a run trains, and the
sections below, which only runs have.
"""

CLAIMS = """
# Claims

[config/claims.yaml](../../config/claims.yaml) defines them by name; [adding a
claim](../adding-a-claim.md) explains how each gets its verdict.
"""


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
