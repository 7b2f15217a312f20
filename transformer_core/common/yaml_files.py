"""Reads plain YAML (and so JSON) written by users, within limits, without surprising conversions.

It refuses tags, so there are no objects; dates are text; keys are text and unique. An alias counts
as much as the value it repeats, so that a few lines cannot become millions.
"""

import json
import re
import stat
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import TypeAdapter, ValidationError

from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem, from_validation

LARGEST_FILE = 1 << 20  # bytes
DEEPEST = 20  # sections and lists within one another
MOST_NODES = 50_000  # values, sections and lists, those that aliases repeat included
MOST_ALIASES = 1_000
LONGEST_NUMBER = 60  # characters of a number
_TOO_MANY = f"makes more than {MOST_NODES:,} values, with what aliases repeat"
_FEWER = "shorten it, and use fewer aliases"

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CONSTRUCTOR = yaml.SafeLoader("")
_MERGE = "tag:yaml.org,2002:merge"
_KINDS = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float")}
_HALVES = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_OTHER_NUMBER = re.compile(r"[-+]?0\d|.*:")
"""Text that YAML 1.1 reads as octal or base-60 numbers: 010 is 8 there, and 1:30 is 90."""
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""Numbers that YAML 1.1 reads as text, unlike YAML 1.2 and JSON: 1e-4."""


class _Dumper(yaml.SafeDumper):
    """Quotes text that would be read as a number."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, [*"-+.0123456789"])


def as_yaml(value: Any) -> str:
    """YAML that :func:`parse` reads as the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_yaml(path: str | Path) -> Any:
    """The contents of a YAML or JSON file; ConfigError if it is missing, is neither, or exceeds the
    limits."""
    return parse(read_text(path), path)


def read_mapping(path: str | Path) -> dict[Any, Any]:
    """The names and entries of a YAML file; ConfigError if it holds no mapping."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        _refuse(path, "(top level)", data, "is not a mapping", "write name: {...}")
    return data


def check_entries(data: dict[Any, Any], entries: Any, file: str) -> Any:
    """The ``entries``, a mapping of names to schemas, that ``data`` holds; else ConfigError."""
    try:
        return TypeAdapter(entries).validate_python(data)
    except ValidationError as error:
        raise from_validation(error, entries, file) from None


def read_text(path: str | Path) -> str:
    """Reads a user-written file; ConfigError unless it is a regular UTF-8 file within the
    limits."""
    file = Path(path)
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
            _refuse(path, WHOLE_FILE, None, f"is {kind}, not a file", "give the path of a file")
        with file.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        _refuse(path, WHOLE_FILE, None, f"cannot be read: {reason.lower()}", "check the path")
    if len(content) > LARGEST_FILE:
        message = f"is larger than {LARGEST_FILE:,} bytes"
        _refuse(path, WHOLE_FILE, max(found.st_size, len(content)), message, "keep settings only")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        value = content[error.start : error.start + 8]
        message = f"is not UTF-8 from byte {error.start} on"
        _refuse(path, f"line {line}", value, message, "save the file as UTF-8")


def parse(text: str, file: str | Path) -> Any:
    """The value of a text; ConfigError, with the line, if it is not allowed."""
    if str(file).endswith(".json"):
        text = text.replace("\t", " ")  # JSON has tabs between values only, YAML has none there
        # JSON escapes a character in two halves, which YAML refuses.
        text = _HALVES.sub(lambda found: json.loads(f'"{found[0]}"'), text)
    try:
        _check_events(text, file)
        root = yaml.compose(text, _LOADER)
        return None if root is None else _Values(file).of(root, "")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}" if mark else WHOLE_FILE
        what = ", ".join(filter(None, (error.context, error.problem)))
        lines = text.splitlines()
        line = lines[mark.line] if mark and mark.line < len(lines) else ""
        remedy = "correct the syntax, or quote the text"
        if mark and line.startswith("\t", mark.column):
            remedy = "replace tabs by spaces"
        _refuse(file, where, line.strip() or None, f"is not YAML: {what}", remedy)
    except yaml.reader.ReaderError as error:
        place = error.position if isinstance(error.position, int) else 0
        where = f"line {text.count(chr(10), 0, place) + 1}"
        message = f"holds a character that YAML does not allow ({error.reason})"
        _refuse(file, where, text[place : place + 1] or None, message, "remove it")


def _check_events(text: str, file: str | Path) -> None:
    """Refuses text that is too deep or too long for the recursive composer, and what nodes no longer
    show."""
    nodes = depth = aliases = documents = 0
    for event in yaml.parse(text, _LOADER):
        assert event.start_mark is not None
        where = f"line {event.start_mark.line + 1}"
        documents += isinstance(event, yaml.DocumentStartEvent)
        aliases += isinstance(event, yaml.AliasEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        nodes += isinstance(event, yaml.NodeEvent)
        tag = getattr(event, "tag", None)
        if nodes > MOST_NODES:
            _refuse(file, where, None, _TOO_MANY, _FEWER)
        if documents > 1:
            _refuse(file, where, "---", "begins a second document", "keep one of them")
        if depth > DEEPEST:
            _refuse(file, where, None, f"is deeper than {DEEPEST} levels", "nest less")
        if aliases > MOST_ALIASES:
            message = f"is more than the {MOST_ALIASES} aliases that a file may have"
            _refuse(file, where, None, message, "write the values out")
        if tag is not None:
            message, remedy = "is a tag, which settings do not have", "remove it, and quote text"
            _refuse(file, where, tag.replace("tag:yaml.org,2002:", "!!"), message, remedy)


class _Values:
    def __init__(self, file: str | Path) -> None:
        self.file = file
        self.nodes = 0
        self.above: list[yaml.Node] = []  # the sections and lists around the current one

    def of(self, node: yaml.Node, path: str) -> Any:
        self.nodes += 1
        if self.nodes > MOST_NODES:
            self.refuse(node, path, None, _TOO_MANY, _FEWER)
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path)
        if node in self.above:
            self.refuse(node, path, None, "contains itself", "write the values out")
        if len(self.above) >= DEEPEST:
            self.refuse(node, path, None, f"is deeper than {DEEPEST} levels", "nest less")
        self.above.append(node)
        if isinstance(node, yaml.SequenceNode):
            value: Any = [self.of(one, f"{path}[{n}]") for n, one in enumerate(node.value)]
        else:
            assert isinstance(node, yaml.MappingNode)
            value = self.section(node, path)
        self.above.pop()
        return value

    def section(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        """The fields of a section, which override those merged into it (<<)."""
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE and not key.style:
                merged = self.merged(value, path) | merged
                continue
            name = self.of(key, path)
            if not isinstance(name, str):
                scalar = isinstance(key, yaml.ScalarNode)
                what = "not text" if scalar else "a list or a section"
                remedy = "put it in quotes" if scalar else "write a name"
                self.refuse(key, path, name, f"is {what}, but is used as a name", remedy)
            place, line = f"{path}.{name}".removeprefix("."), key.start_mark.line + 1
            if name in lines:
                message = f"is given twice, in line {lines[name]} and in line {line}"
                self.refuse(key, place, name, message, "remove one of them")
            lines[name] = line
            own[name] = self.of(value, place)
        return merged | own

    def merged(self, node: yaml.Node, path: str) -> dict[str, Any]:
        """The fields of a section, or of a list of them in which the first takes precedence."""
        value = self.of(node, path)
        result: dict[str, Any] = {}
        for one in reversed(value if isinstance(value, list) else [value]):
            if not isinstance(one, dict):
                message = "is merged (<<), but is not a section"
                self.refuse(node, path, value, message, "merge sections")
            result |= one
        return result

    def scalar(self, node: yaml.ScalarNode, path: str) -> Any:
        """Text, or a number, true, false or null if it looks like one."""
        text = node.value
        if path and not text and not node.style:
            remedy = "write null for none, or leave it out for the usual value"
            self.refuse(node, path, None, "has no value", remedy)
        if node.style or _OTHER_NUMBER.match(text):
            return text
        if len(text) <= LONGEST_NUMBER and _EXPONENT.fullmatch(text):
            return float(text)
        if node.tag not in _KINDS:
            return text
        if len(text) > LONGEST_NUMBER:
            message = f"is a number of more than {LONGEST_NUMBER} characters"
            remedy = "write a shorter one, or quote the text"
            self.refuse(node, path, text[:80], message, remedy)
        try:
            return _CONSTRUCTOR.yaml_constructors[node.tag](_CONSTRUCTOR, node)
        except (ValueError, OverflowError):
            return text  # it only looks like a number: 0b, 1__

    def refuse(self, node: yaml.Node, path: str, value: Any, message: str, remedy: str) -> NoReturn:
        line = f"line {node.start_mark.line + 1}"
        _refuse(self.file, f"{path} ({line})" if path else line, value, message, remedy)


def _refuse(file: str | Path, field: str, value: Any, message: str, remedy: str) -> NoReturn:
    raise ConfigError([ConfigProblem(str(file), field, value, message, remedy)]) from None
