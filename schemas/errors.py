"""Errors of configuration files: each names file, field, value and remedy."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from schemas.base import FACTORY_PATTERN, LINE_PATTERN, NAME_PATTERN, SHA256_PATTERN, URL_PATTERN

CHANGES_NO_RESULT = True  # it only reports errors


WHOLE_FILE = "(file)"  # the field of a problem that concerns the whole file


@dataclass(frozen=True)
class ConfigProblem:
    """One problem in a configuration file."""

    file: str
    field: str
    value: Any
    message: str
    remedy: str

    def __str__(self) -> str:
        value = self.value.model_dump() if isinstance(self.value, BaseModel) else self.value
        said = f": {_cut(self.field)} = {_cut(repr(value), 120)}"
        return (
            f"{_cut(self.file)}{'' if self.field == WHOLE_FILE and self.value is None else said}\n"
            f"    problem: {_cut(self.message, 1_000)}\n"
            f"    remedy:  {_cut(self.remedy, 1_000)}"
        )


class Refusal(ValueError):
    """Unusable input; the message names the input, the reason and the remedy."""


class ConfigError(Refusal):
    """One or more :class:`ConfigProblem`; raised before any work starts."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes the error picklable by keeping its constructor arguments."""
        return type(self), (self.problems,)


class Unsupported(RuntimeError):
    """This machine cannot do what a run spec asks for; the message says why."""


class PeerLost(RuntimeError):
    """A process of a distributed run has exited or hangs; the message names rank and host."""


class Diverged(RuntimeError):
    """The loss of a training is no longer finite."""


_LONGEST_NAME = 100  # maximum characters compared with known names; the time is quadratic in them


def nearest(name: str, known: Iterable[str]) -> str:
    """A remedy for a mistyped name: the nearest known names, or all of them."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name[:_LONGEST_NAME], names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"choose from {', '.join(names)}" if names else "there are none to choose from"


_MOST_PROBLEMS = 50
"""Maximum mistakes explained per file; nobody reads thousands, and near names take time."""


def from_validation(error: ValidationError, model: Any, file: str) -> ConfigError:
    """Pydantic's errors on ``model`` (a schema, or a mapping of them) as errors of ``file``."""
    schema = _json_schema(model)
    problems: list[ConfigProblem] = []
    for item in error.errors(include_url=False)[:_MOST_PROBLEMS]:
        parts, siblings, kinds, null, alternative = _locate(schema, item["loc"])
        no_json = item["type"] == "json_invalid"
        value = None if no_json or item["type"] == "missing" else item["input"]
        remedy = _remedy(item, parts, siblings, kinds, null)
        field, message = WHOLE_FILE if no_json else _dotted(parts), _message(item)
        if alternative and problems and problems[-1].field == field:
            message, remedy = (
                "fits none of the allowed types",
                f"{problems.pop().remedy}, or {remedy}",
            )
        problems.append(ConfigProblem(file, field, value, message, remedy))
    if (more := error.error_count() - _MOST_PROBLEMS) > 0:
        message, remedy = "more mistakes are not listed", "correct these first"
        problems.append(ConfigProblem(file, "(others)", more, message, remedy))
    return ConfigError(problems)


@cache
def _json_schema(model: Any) -> dict[str, Any]:
    return TypeAdapter(model).json_schema()


def _locate(
    schema: dict[str, Any], location: tuple[int | str, ...]
) -> tuple[list[int | str], list[str], list[str], bool, bool]:
    """The path as seen in the file, the known fields at its last step, the kinds that the section may
    have, whether it may be null, and whether the error is that of one of several types that the value
    may have.

    Pydantic's locations also contain union tags, types and key markers, which the file does not.
    """
    definitions = schema.get("$defs", {})

    def follow(node: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in node:
            node = definitions[node["$ref"].rsplit("/", 1)[-1]]
        # A section that may also be null or just a name: take the section itself.
        sections = [part for part in node.get("anyOf", []) if {"discriminator", "$ref"} & {*part}]
        sections.sort(key=lambda part: "discriminator" not in part)
        return follow(sections[0]) if sections else node

    node = follow(schema)
    seen: list[int | str] = []
    siblings: list[str] = []
    null = alternative = False
    for part in location:
        types = [one.get("type", "section") for one in node.get("anyOf", [])]
        if alternative := "section" not in types and len({*types} - {"null"}) > 1:
            node = {}
            continue
        kinds = node.get("discriminator", {}).get("mapping", {})
        if part in kinds:
            node = follow({"$ref": kinds[part]})
            continue
        if part == "[key]":
            continue
        fields = node.get("properties", {})
        entries = [*node.get("patternProperties", {}).values()]
        entries += [node.get("additionalProperties"), node.get("items")]
        siblings = sorted(fields)
        seen.append(part)
        node = next((n for n in [fields.get(part), *entries] if isinstance(n, dict)), {})
        null = {"type": "null"} in node.get("anyOf", [])
        node = follow(node)
    return seen, siblings, [*node.get("discriminator", {}).get("mapping", {})], null, alternative


def _dotted(parts: list[int | str]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".") or "(top level)"


def _message(item: Any) -> str:
    """Pydantic's message, with a few internal ones reworded."""
    match item["type"]:
        case "extra_forbidden":
            return "is not a field of this section"
        case "missing":
            return "is missing"
        case "union_tag_not_found":
            return "has no kind"
        case "union_tag_invalid":
            return f"is of unknown kind {item['ctx']['tag']}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "is not a section with fields"
        case "json_invalid":
            return f"is not JSON: {item['ctx']['error']}"
        case "string_pattern_mismatch":
            return "has a character or form that is not allowed here"
        case _:
            message = str(item["msg"]).replace(" after validation", "")
            return message[:1].lower() + message[1:]


def _remedy(
    item: Any, parts: list[int | str], siblings: list[str], kinds: list[str], null: bool
) -> str:
    context, kind = item.get("ctx", {}), item["type"]
    match kind:
        case _ if "remedy" in context:
            return str(context["remedy"])
        case "extra_forbidden":
            return nearest(str(parts[-1]), siblings)
        case "missing":
            return "add a value" if isinstance(parts[-1], int) else f"add {parts[-1]}"
        case "union_tag_invalid":
            known = re.findall(r"'([^']*)'", context["expected_tags"])
            return f"kind: {nearest(str(context['tag']), known)}"
        case "union_tag_not_found":
            return f"add kind: {nearest('', kinds)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            if item["input"] in kinds:
                return f"write {{kind: {item['input']}}}"
            none = "null for none" if null else "leave it out" if item["input"] is None else ""
            return f"give fields, each as name: value{', or ' * bool(none)}{none}"
        case "literal_error":
            known = re.findall(r"'([^']*)'", context["expected"])
            # The nearest of a few words may mean the opposite: cpu for gpu.
            few = 1 < len(known) <= 4
            return f"choose from {', '.join(known)}" if few else nearest(str(item["input"]), known)
        case "json_invalid":
            return "correct the syntax"
        case "string_pattern_mismatch":
            return _PATTERNS.get(context["pattern"], f"match {context['pattern']}")
        case _ if kind in _REMEDIES:
            return _REMEDIES[kind].format(**context)
        case _:
            return f"give a value that meets this condition: {item['msg'].lower()}"


_PATTERNS = {
    FACTORY_PATTERN: "write package.module:function, which names the function that builds it",
    LINE_PATTERN: "leave out control characters, such as NUL and ends of lines",
    NAME_PATTERN: "use lower-case letters, digits and underscores, a letter first",
    SHA256_PATTERN: "give the 64 lower-case hexadecimal digits that sha256sum prints",
    URL_PATTERN: "give an address that begins with https:// or http://",
}
_REMEDIES = {
    "greater_than_equal": "give a number of at least {ge}",
    "greater_than": "give a number above {gt}",
    "less_than_equal": "give a number of at most {le}",
    "less_than": "give a number below {lt}",
    "finite_number": "give a finite number",
    "string_type": "give text, in quotes if it looks like a number or a date",
    "string_too_short": "give at least {min_length} character(s)",
    "string_too_long": "give at most {max_length} characters",
    "too_short": "give at least {min_length} of them",
    "too_long": "give at most {max_length} of them",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "give a whole number"),
    "int_parsing_size": "give a smaller number",
    **dict.fromkeys(("float_type", "float_parsing"), "give a number, in digits"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "give true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "give a list: [first, second]"),
}


def _cut(text: str, limit: int = 300) -> str:
    """Text of limited length, with control characters escaped."""
    text = "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)
    return text if len(text) <= limit else text[: limit - 3] + "..."
