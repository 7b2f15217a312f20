"""Errors of configuration files: each names file, field, value and remedy."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError


@dataclass(frozen=True)
class ConfigProblem:
    """One thing that is wrong in a configuration file."""

    file: str
    field: str
    value: Any
    message: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.field} = {_shorten(self.value)}\n"
            f"    problem: {self.message}\n"
            f"    remedy:  {self.remedy}"
        )


class ConfigError(ValueError):
    """One or more :class:`ConfigProblem`; raised before any work starts."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def nearest(name: str, known: Iterable[str]) -> str:
    """A remedy for a mistyped name: the nearest known ones, else all of them."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"choose from {', '.join(names)}" if names else "there is none to choose from"


def from_validation(
    error: ValidationError, model: type[BaseModel], file: str, prefix: str = ""
) -> ConfigError:
    """Turn pydantic's errors on ``model`` into problems of ``file``.

    ``prefix`` is the field below which the model stands in the file.
    """
    problems = []
    for item in error.errors(include_url=False):
        path = [str(part) for part in item["loc"]]
        field = ".".join([part for part in [prefix, *path] if part]) or "(top level)"
        value = None if item["type"] == "missing" else item["input"]
        problems.append(ConfigProblem(file, field, value, item["msg"], _remedy(item, model, path)))
    return ConfigError(problems)


def _remedy(item: Any, model: type[BaseModel], path: list[str]) -> str:
    context = item.get("ctx", {})
    match item["type"]:
        case "extra_forbidden":
            return nearest(path[-1], _fields_at(model, path[:-1]))
        case "missing":
            return f"add {path[-1]}"
        case "union_tag_invalid":
            known = [tag.strip(" '") for tag in str(context["expected_tags"]).split(",")]
            return f"kind: {nearest(str(context['tag']), known)}"
        case "union_tag_not_found":
            return "add kind, which says which fields the section has"
        case "literal_error" | "enum":
            return f"choose from {context['expected']}"
        case _:
            return f"give a value that satisfies: {item['msg'].lower()}"


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """Names of the fields that the schema has at ``path`` (union tags are part of the path)."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})

    def follow(node: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in node:
            node = definitions[node["$ref"].rsplit("/", 1)[-1]]
        return node

    node = follow(schema)
    for part in path:
        mapping = node.get("discriminator", {}).get("mapping", {})
        if part in mapping:
            node = definitions[mapping[part].rsplit("/", 1)[-1]]
        elif part in node.get("properties", {}):
            node = follow(node["properties"][part])
        else:
            return []
    return sorted(node.get("properties", {}))


def _shorten(value: Any, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
