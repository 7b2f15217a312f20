"""Values that fields of a study should not have, as YAML writes them."""

import random
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from schemas.base import paths_of
from schemas.config.study import Study

Path = tuple[str, ...]

FRAGMENTS = (
    *("0", "-1", "-0", "1", "3.0", "0.1", "1e3", "1e400", "-1e400", "1e-320", ".inf", "-.inf"),
    *(".nan", "010", "0o17", "1:30", "1_0", "0b", "0x", "2147483648", "9223372036854775808"),
    *(str(2**70), str(-(2**70)), "9" * 50, "9" * 100_000, "0x" + "f" * 50_000, "1" * 400 + ".5"),
    *("~", "null", "true", "yes", "off", "''", "' '", "[]", "{}", "[[]]", "[~]", "{a: 1}"),
    *("{? [a] : 1}", "{1: 2}", "{on: 1}", "{kind: x}", "{kind: [x]}", "{kind: {a: 1}}"),
    *("{kind: ~}", "2020-01-01", "2020-01-01T00:00:00Z", "2020-13-45"),
    *("!!int abc", "!!float x", "!!bool maybe", "!!null x", "!!binary '*'", "!!set {a}"),
    *("!!omap [a]", "!!timestamp x", "!!str 5", "!x y", "!!python/name:os.system"),
    *("!!python/object/apply:os.abort []", "&a [*a]", "&a {b: *a}", "*nowhere", "<<", "{<<: 5}"),
    *("{<<: [1]}", "{<<: {a: 1}, <<: {a: 2}}", "{a: 1, a: 2}", "{a: {b: 1}, a: 2}"),
    *('"\\0"', '"a\\nb"', '"\\ud800"', '"\\x7f"', '"\\u202e"', "'{x}'", "'{variant}'", "'{'"),
    *("'{0}'", "'%s'", "'$(touch x)'", "'`touch x`'", "'; touch x'", "'../../x'", "/dev/zero"),
    *("/", ".", "''''", "'" + "x" * 100_000 + "'", "'" + "ab " * 5_000 + "'", "\U0001f642"),
    *("[" * 200 + "]" * 200, "{a: " * 100 + "1" + "}" * 100, "[1, 2, 3]", "[a, a]"),
    *("99999Gbit/s", "1e9bit/s", "9" * 30 + "GiB", "-1GiB", "100 Mbit/s", "1.GiB", "\u0663GiB"),
)
"""As they stand in a file, in flow style."""


@cache
def numbers() -> dict[Path, dict[str, Any]]:
    """The numbers of a study by their path, each with its JSON Schema."""
    schema = TypeAdapter(Study).json_schema()
    found: dict[Path, dict[str, Any]] = {}

    def walk(node: Any, path: Path, depth: int) -> None:
        if not isinstance(node, dict) or depth > 12:
            return
        if "$ref" in node:
            walk(schema["$defs"][node["$ref"].rsplit("/", 1)[-1]], path, depth + 1)
        if node.get("type") in ("integer", "number"):
            found[path] = node
        for name, field in node.get("properties", {}).items():
            walk(field, (*path, name), depth + 1)
        for way in (*node.get("anyOf", ()), *node.get("oneOf", ())):
            walk(way, path, depth + 1)

    walk(schema, (), 0)
    return found


def around_bounds(schema: dict[str, Any], chance: random.Random) -> float:
    """A number at the bounds of ``schema``, a little or far beyond them."""
    whole = schema["type"] == "integer"
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    high = schema.get("maximum", schema.get("exclusiveMaximum", 1))
    step = 1 if whole else max(abs(high - low) * 1e-9, 1e-12)
    near = (low - step, low, low + step, high - step, high, high + step)
    far = (-high, high * 10, high * 2**70, low - 2**40, 0)
    return chance.choice((*near, *far))


def within_bounds(schema: dict[str, Any], chance: random.Random) -> float:
    """A number that ``schema`` allows, of any size."""
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    high = schema.get("maximum", schema.get("exclusiveMaximum", 1))
    share = chance.random() ** chance.choice((1, 4, 16, 64))
    value = low + (high - low) * share
    return round(value) if schema["type"] == "integer" else value


@cache
def fields() -> tuple[Path, ...]:
    """The paths of all fields of a study."""
    return tuple(sorted(set(paths_of(Study))))
