"""Study files of all kinds of wrong, each made from a good one, a kind and a random number."""

import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import yaml

from transformer_core.faults.configs.hostile_values import (
    FRAGMENTS,
    Path,
    around_bounds,
    fields,
    numbers,
    within_bounds,
)

Study = dict[str, Any]
_MARK = "HERE_STANDS_THE_VALUE"


def hostile_value(study: Study, chance: random.Random) -> bytes:
    """A field with a value that it should not have."""
    return _with_fragments(study, [chance.choice(fields())], chance)


def several_values(study: Study, chance: random.Random) -> bytes:
    """Several of them at once."""
    return _with_fragments(study, chance.sample(fields(), chance.randint(2, 5)), chance)


def number_at_its_bounds(study: Study, chance: random.Random) -> bytes:
    """A number at its bounds, or beyond."""
    path, schema = chance.choice(sorted(numbers().items()))
    return _dumped(_set(study, path, around_bounds(schema, chance)))


def numbers_together(study: Study, chance: random.Random) -> bytes:
    """Numbers that are allowed alone, and may contradict each other."""
    for path, schema in chance.sample(sorted(numbers().items()), chance.randint(2, 8)):
        study = _set(study, path, within_bounds(schema, chance))
    return _dumped(study)


def another_kind(study: Study, chance: random.Random) -> bytes:
    """The kind of a section changed under its fields."""
    kinds = ("grammar", "text", "tsv", "url", "file", "ddp", "transformer", "import", "sgd", "noam")
    places = [path for path in fields() if path[-1] == "kind"]
    return _dumped(_set(study, chance.choice(places), chance.choice((*kinds, "", "x", 1, None))))


def lost_or_mistyped_name(study: Study, chance: random.Random) -> bytes:
    """A field without its name, or with another."""
    path = chance.choice(_paths(study))
    above = study = json.loads(json.dumps(study))
    for part in path[:-1]:
        above = above[part]
    value = above.pop(path[-1])
    if chance.random() < 0.7:
        above[_mistyped(path[-1], chance)] = value
    return _dumped(study)


def name_given_twice(study: Study, chance: random.Random) -> bytes:
    """A field that comes a second time, with another value."""
    lines = yaml.safe_dump(study, sort_keys=False).splitlines()
    at = chance.randrange(len(lines))
    line = lines[at].split(":")[0] + ": " + chance.choice(("1", "{}", "x", "[a]"))
    return "\n".join([*lines[: at + 1], line, *lines[at + 1 :]]).encode()


def damaged_bytes(study: Study, chance: random.Random) -> bytes:
    """A file cut off, with bytes flipped, put in, or in another encoding."""
    content = bytearray(_dumped(study))
    at = chance.randrange(len(content))
    match chance.randrange(8):
        case 0:
            del content[at:]
        case 1:
            content[at] ^= 1 << chance.randrange(8)
        case 2:
            for place in chance.sample(range(len(content)), 20):
                content[place] = chance.randrange(256)
        case 3:
            content[at:at] = chance.choice(
                (b"\0", b"\t", b"\xe4", b"\xff\xfe", b"\r", b"\x1b", b"%")
            )
        case 4:
            return content.decode().encode(chance.choice(("utf-16", "utf-32", "utf-8-sig")))
        case 5:
            content[at:at] = chance.choice((b"\n---\n", b"\n...\n", b"\n# \xc3\xa9\n", b"\n- a\n"))
        case 6:
            del content[at : at + chance.randint(1, 30)]
        case _:
            return bytes(content).replace(b"\n", chance.choice((b"\r", b"\r\n", b"\n\t", b"\n ")))
    return bytes(content)


def bomb(study: Study, chance: random.Random) -> bytes:
    """A small file that would become a large value, or a deep one, or takes long."""
    width, levels = chance.randint(2, 30), chance.randint(2, 40)
    names = [f"x{level}" for level in range(levels)]
    lines = [f"{names[0]}: &{names[0]} [{', '.join(['x'] * width)}]"]
    for above, name in itertools.pairwise(names):
        lines.append(f"{name}: &{name} [{', '.join([f'*{above}'] * width)}]")
    merged = [
        f"{n}: &{n} {{<<: [{', '.join(['*' + a] * width)}]}}" for a, n in itertools.pairwise(names)
    ]
    texts = (
        "\n".join(lines),
        "\n".join(["x0: &x0 {a: 1}", *merged]),
        "title: " + "[" * chance.randint(20, 100_000),
        "\n".join("  " * level + "a:" for level in range(chance.randint(20, 400))),
        "title: &a [*a, *a]",
        "\n".join(f"k{number}: 1" for number in range(chance.randint(1_000, 10_000))),
        "title: '" + "x" * chance.randint(1_000, 1_500_000) + "'",
        "variants: [" + "single, " * chance.randint(1_001, 30_000) + "]",
        "? " * chance.randint(20, 5_000) + "a",
        "- " * chance.randint(20, 5_000) + "a",
        '{"a":' * chance.randint(20, 20_000),
        "title: " + "&a " * chance.randint(2, 100) + "x",
        "#" * 1_100_000,
    )
    text = chance.choice(texts)
    return (yaml.safe_dump(study) + text).encode() if chance.random() < 0.5 else text.encode()


def something_else(study: Study, chance: random.Random) -> bytes:
    """A file that is no study at all."""
    digits = chance.choice((10, 5_000, 100_000))
    texts = (
        *(
            "",
            "\n",
            "# nothing",
            "5",
            "text",
            "[]",
            "[name]",
            "~",
            "---",
            "--- a\n--- b",
            "%YAML 9.9",
        ),
        *("{}", "{", "}", ":", "- a", "? a", "!!set {a}", "!<x> {}", "\ufeff", "{}\n{}", "a: b: c"),
        json.dumps(study | {"repeats": 1})[:-1] + f', "repeats": {"9" * digits}}}',
        json.dumps(study, indent="\t"),
        json.dumps(study)[:-1] + ', "name": "other"}',
        yaml.safe_dump(study | {"__use_yte__": True}),
        "__use_yte__: true\n__definitions__: ['import os']\n" + yaml.safe_dump(study),
    )
    return chance.choice(texts).encode()


KINDS: dict[str, Callable[[Study, random.Random], bytes]] = {
    make.__name__: make
    for make in (
        hostile_value,
        several_values,
        number_at_its_bounds,
        numbers_together,
        another_kind,
        lost_or_mistyped_name,
        name_given_twice,
        damaged_bytes,
        bomb,
        something_else,
    )
}
"""What is done, by name."""


def _with_fragments(study: Study, paths: list[Path], chance: random.Random) -> bytes:
    for number, path in enumerate(paths):
        study = _set(study, path, f"{_MARK}{number}")
    text = _dumped(study).decode()
    for number in range(len(paths)):
        text = text.replace(f"{_MARK}{number}", chance.choice(FRAGMENTS))
    return text.encode("utf-8", "surrogatepass")


def _dumped(study: Study) -> bytes:
    return yaml.safe_dump(study, sort_keys=False, allow_unicode=True, width=10**6).encode()


def _set(study: Study, path: Path, value: Any) -> Study:
    """The study with another value at a path; sections on the way are made."""
    name, *below = path
    inner = study.get(name)
    if below:
        value = _set(inner if isinstance(inner, dict) else {}, tuple(below), value)
    return study | {name: value}


def _paths(study: Study, path: Path = ()) -> list[Path]:
    found = []
    for name, value in study.items():
        found.append((*path, name))
        if isinstance(value, dict):
            found += _paths(value, (*path, name))
    return found


def _mistyped(name: str, chance: random.Random) -> str:
    at = chance.randrange(len(name))
    return chance.choice(
        (name[:at] + name[at + 1 :], name + "s", name.upper(), name[::-1], "x" * 5_000)
    )
