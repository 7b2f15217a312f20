"""Bad study files: each must be refused clearly, or be read correctly.

Each is made from a good file by a kind of damage and a random number. If a file is accepted, its
study must be the one that PyYAML finds in it.
"""

import itertools
import json
import os
import random
import re
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from schemas.base import paths_of
from schemas.config.claims import Claim
from schemas.config.study import Study
from schemas.errors import ConfigError
from tests.attacks.tally import Tally, Verdict
from transformer_core.common.files import write_text
from transformer_core.common.yaml_files import read_yaml
from transformer_core.study.compared_pairs import known_targets, turn_groups
from transformer_core.study.plan import PlannedStudy, plan_study
from transformer_core.study.reservations import reservation
from transformer_core.study.study_files import read_claims, study_settings
from transformer_core.study.variants import Declared, read_variants

LONGEST = 10.0
"""Most seconds that a file may take."""
_LONGEST_MESSAGE = 3_000


class _OutOfTimeError(BaseException):
    """Not an Exception, so that no handler of those catches it."""


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Reference(_Loader):
    """PyYAML, but without dates and numbers to the bases 8 and 60."""


_INT, _FLOAT, _DATE = (f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
_Reference.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in (_INT, _FLOAT, _DATE)]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in (
    (_INT, r"^[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)$"),
    (_FLOAT, r"^[-+]?(\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]\d+)?$"),
    (_FLOAT, r"^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
):
    _Reference.add_implicit_resolver(_tag, re.compile(_pattern), list("-+.0123456789"))


def judge(
    file: Path, entries: list[str], declared: Declared, claims: Mapping[str, Claim]
) -> tuple[Verdict, str]:
    """How the project reads a study file and entries of the command line, with its message."""
    try:
        with _time_limit(LONGEST):
            settings = study_settings([file], entries)
            planned = plan_study(settings, str(file), declared, claims)
            _use(planned)
    except ConfigError as error:
        return _clear(error, str(file))
    except _OutOfTimeError:
        return "hung", f"not done after {LONGEST:g} s"
    except Exception:
        return "traceback", traceback.format_exc()[-1_500:]
    return _same(file, entries, planned.study)


def _use(planned: PlannedStudy) -> None:
    """Does everything that the rules do with a study before the first job starts."""
    study = planned.study
    known_targets(study, planned.extra_pairs)
    turn_groups(planned.pairs, study.comparison.together)
    for spec in planned.specs.values():
        reservation([spec], study.tokenizer.vocabulary)
        spec.digest()


def _clear(error: ConfigError, file: str) -> tuple[Verdict, str]:
    """Whether an error has all its parts, in a few lines."""
    for problem in error.problems:
        parts = (problem.file, problem.field, problem.message, problem.remedy)
        if not all(part.strip() for part in parts) or len(str(problem)) > _LONGEST_MESSAGE:
            return "unclear", str(problem)
    return ("refused", str(error)) if error.problems else ("unclear", "no problem is named")


def _same(file: Path, entries: list[str], study: Study) -> tuple[Verdict, str]:
    """Whether a study is the one that another reader finds in the same file."""
    if entries:
        return "same", ""
    try:
        with _time_limit(LONGEST):
            other = Study.model_validate(yaml.load(file.read_text("utf-8-sig"), _Reference))
    except Exception as error:
        return "silent", f"accepted, but another reader says {error!r:.500}"
    if other.canonical_json() != study.canonical_json():
        return "silent", f"{study.canonical_json()} instead of {other.canonical_json()}"
    if Study.model_validate_json(study.canonical_json()) != study:
        return "silent", "the study changes when it is written and read back"
    return "same", ""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Interrupts a block that takes longer; on the main thread only."""

    def stop(*_: Any) -> None:
        raise _OutOfTimeError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


FieldPath = tuple[str, ...]

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
"""Values as text of a file, in flow style."""


@cache
def numbers() -> dict[FieldPath, dict[str, Any]]:
    """The numbers of a study by their path, each with its JSON Schema."""
    schema = TypeAdapter(Study).json_schema()
    found: dict[FieldPath, dict[str, Any]] = {}

    def walk(node: Any, path: FieldPath, depth: int) -> None:
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


def _bounds(schema: dict[str, Any]) -> tuple[float, float]:
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    return low, schema.get("maximum", schema.get("exclusiveMaximum", 1))


def around_bounds(schema: dict[str, Any], chance: random.Random) -> float:
    """A number at the bounds of ``schema``, or a little or far beyond them."""
    whole = schema["type"] == "integer"
    low, high = _bounds(schema)
    step = 1 if whole else max(abs(high - low) * 1e-9, 1e-12)
    near = (low - step, low, low + step, high - step, high, high + step)
    far = (-high, high * 10, high * 2**70, low - 2**40, 0)
    return chance.choice((*near, *far))


def within_bounds(schema: dict[str, Any], chance: random.Random) -> float:
    """A number that ``schema`` allows, of any size."""
    low, high = _bounds(schema)
    share = chance.random() ** chance.choice((1, 4, 16, 64))
    value = low + (high - low) * share
    return round(value) if schema["type"] == "integer" else value


@cache
def fields() -> tuple[FieldPath, ...]:
    return tuple(sorted(set(paths_of(Study))))


Settings = dict[str, Any]
_MARK = "HERE_STANDS_THE_VALUE"


def hostile_values(study: Settings, chance: random.Random) -> bytes:
    """A hostile value in a field, or in a few."""
    paths = chance.sample(fields(), chance.choice((1, 1, 1, 2, 3, 5)))
    for number, path in enumerate(paths):
        study = _set(study, path, f"{_MARK}{number}")
    text = _dumped(study).decode()
    for number in range(len(paths)):
        text = text.replace(f"{_MARK}{number}", chance.choice(FRAGMENTS))
    return text.encode("utf-8", "surrogatepass")


def number_at_its_bounds(study: Settings, chance: random.Random) -> bytes:
    path, schema = chance.choice(sorted(numbers().items()))
    return _dumped(_set(study, path, around_bounds(schema, chance)))


def numbers_together(study: Settings, chance: random.Random) -> bytes:
    """Numbers that are allowed alone, but may contradict each other."""
    for path, schema in chance.sample(sorted(numbers().items()), chance.randint(2, 8)):
        study = _set(study, path, within_bounds(schema, chance))
    return _dumped(study)


def another_kind(study: Settings, chance: random.Random) -> bytes:
    """A section with another kind, but the same fields."""
    kinds = ("grammar", "text", "tsv", "url", "file", "ddp", "transformer", "import", "sgd", "noam")
    places = [path for path in fields() if path[-1] == "kind"]
    return _dumped(_set(study, chance.choice(places), chance.choice((*kinds, "", "x", 1, None))))


def lost_or_mistyped_name(study: Settings, chance: random.Random) -> bytes:
    """A field that is lost, or has another name."""
    path = chance.choice(_paths(study))
    above = study = json.loads(json.dumps(study))
    for part in path[:-1]:
        above = above[part]
    value = above.pop(path[-1])
    if chance.random() < 0.7:
        above[_mistyped(path[-1], chance)] = value
    return _dumped(study)


def name_given_twice(study: Settings, chance: random.Random) -> bytes:
    """A field that is repeated with another value."""
    lines = yaml.safe_dump(study, sort_keys=False).splitlines()
    at = chance.randrange(len(lines))
    line = lines[at].split(":")[0] + ": " + chance.choice(("1", "{}", "x", "[a]"))
    return "\n".join([*lines[: at + 1], line, *lines[at + 1 :]]).encode()


def damaged_bytes(study: Settings, chance: random.Random) -> bytes:
    """A file that is truncated, has changed or inserted bytes, or another encoding."""
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


def bomb(study: Settings, chance: random.Random) -> bytes:
    """A small file that becomes a large or deep value, or takes long to read."""
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


def something_else(study: Settings, chance: random.Random) -> bytes:
    """A file that is not a study."""
    digits = chance.choice((10, 5_000, 100_000))
    texts = (
        *("", "\n", "# nothing", "5", "text", "[]", "[name]", "~", "---", "--- a\n--- b"),
        "%YAML 9.9",
        *("{}", "{", "}", ":", "- a", "? a", "!!set {a}", "!<x> {}", "\ufeff", "{}\n{}", "a: b: c"),
        json.dumps(study | {"repeats": 1})[:-1] + f', "repeats": {"9" * digits}}}',
        json.dumps(study, indent="\t"),
        json.dumps(study)[:-1] + ', "name": "other"}',
        yaml.safe_dump(study | {"__use_yte__": True}),
        "__use_yte__: true\n__definitions__: ['import os']\n" + yaml.safe_dump(study),
    )
    return chance.choice(texts).encode()


_MAKERS = (
    *(hostile_values, number_at_its_bounds, numbers_together, another_kind, damaged_bytes, bomb),
    *(lost_or_mistyped_name, name_given_twice, something_else),
)
KINDS: dict[str, Callable[[Settings, random.Random], bytes]] = {
    make.__name__: make for make in _MAKERS
}


def _dumped(study: Settings) -> bytes:
    return yaml.safe_dump(study, sort_keys=False, allow_unicode=True, width=10**6).encode()


def _set(study: Settings, path: FieldPath, value: Any) -> Settings:
    """The study with another value at a path; sections on the way are made."""
    name, *below = path
    inner = study.get(name)
    if below:
        value = _set(inner if isinstance(inner, dict) else {}, tuple(below), value)
    return study | {name: value}


def _paths(study: Settings, path: FieldPath = ()) -> list[FieldPath]:
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


_ENTRY, _FILE = "setting_on_the_command_line", "no_regular_file"
_MOST_VARIANTS = 3


def run(count: int, seed: int, config: Path) -> Tally:
    """The verdicts on ``count`` bad files, made from the studies in the folder ``config``."""
    declared = read_variants(config / "variants.yaml")
    claims = read_claims(config / "claims.yaml", *declared)
    studies = [_short(read_yaml(path)) for path in (config / "config.yaml", *_studies(config))]
    tally = Tally("studies", seed)
    kinds = (*KINDS, _ENTRY, _FILE)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            chance = random.Random(f"{seed}/{number}")
            kind, study = kinds[number % len(kinds)], chance.choice(studies)
            file, entries = Path(folder, "study.yaml"), []
            if kind == _FILE:
                file = _no_file(Path(folder), chance)
            elif kind == _ENTRY:
                write_text(file, json.dumps(study))
                entries = [_entry(chance) for _ in range(chance.randint(1, 3))]
            else:
                file.write_bytes(KINDS[kind](study, chance))
            tally.add(kind, number, *judge(file, entries, declared, claims))
    return tally


def _studies(config: Path) -> list[Path]:
    return sorted((config / "studies").glob("*.yaml"))


def _short(study: dict[str, Any]) -> dict[str, Any]:
    """A study with few of its variants, which are all resolved alike."""
    baseline = study.get("baseline", "single")
    others = [name for name in study["variants"] if name != baseline]
    short = {name: value for name, value in study.items() if name not in ("comparisons", "memory")}
    return short | {"variants": [baseline, *others[: _MOST_VARIANTS - 1]]}


def _entry(chance: random.Random) -> str:
    """A KEY=VALUE of the command line."""
    path, value = chance.choice(fields()), chance.choice(FRAGMENTS)[:100_000]
    for name in reversed(path[1:]):
        value = f"{{{name}: {value}}}"
    return chance.choice((f"{path[0]}={value}", f"{path[0]}={value}", f"{path[0]}", f"={value}"))


def _no_file(folder: Path, chance: random.Random) -> Path:
    """A path where no readable regular file is."""
    pipe, loop = folder / "pipe", folder / "loop"
    if not pipe.exists():
        os.mkfifo(pipe)
        loop.symlink_to(loop)
    names = ("nowhere.yaml", ".", "x" * 5_000, "a\0b", "pipe", "loop", "pipe/x", "\udcff.yaml")
    return chance.choice((*(folder / name for name in names), Path("/dev/zero"), Path("/dev/null")))
