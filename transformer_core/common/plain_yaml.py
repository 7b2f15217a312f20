"""Plain YAML (and so JSON) written by users, read within limits, without surprising conversions.

The file is taken event by event: nothing is built before its limits are known to hold, and nothing
is recursive. Less of YAML is understood than the language has. There are no tags, so no objects;
dates are text; aliases count as what they stand for, so that a few lines cannot become millions;
keys are text and given once.
"""

import re
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem

LARGEST_FILE = 1 << 20
"""Bytes."""
DEEPEST = 20
"""Sections and lists within one another."""
MOST_NODES = 50_000
"""Values, sections and lists, those that aliases repeat included."""
MOST_ALIASES = 1_000
LONGEST_NUMBER = 60
"""Characters of a number."""
LONGEST_TIME = 10.0
"""Seconds for one file; a file within the other limits takes a fraction of a second."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER = yaml.SafeLoader("")
_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
_KINDS = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float")}
_OTHER_NUMBER = re.compile(r"[-+]?0\d|.*:")
"""Text that YAML 1.1 reads as octal or base-60 numbers: 010 is 8 there, and 1:30 is 90."""
_MISSING = object()


class _MergeKey(str):
    """The name << of the sections that are merged into one."""


@dataclass
class _Open:
    """A section or a list whose end has not come yet."""

    value: Any
    line: int
    anchor: str | None
    nodes: int = 1
    height: int = 1
    key: Any = _MISSING
    lines: dict[str, int] = field(default_factory=dict)
    """The line of each key."""
    merged: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class _Anchored:
    value: Any
    nodes: int
    height: int


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
    """The value that a text stands for; ConfigError, with the line, for what it may not hold."""
    if str(file).endswith(".json"):
        text = text.replace("\t", " ")  # JSON has tabs between values only, YAML has none there
    builder = _Builder(str(file))
    try:
        for event in yaml.parse(text, _LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}" if mark else WHOLE_FILE
        what = ", ".join(filter(None, (error.context, error.problem)))
        lines = text.splitlines()
        value = lines[mark.line].strip() if mark and mark.line < len(lines) else None
        _refuse(file, where, value, f"is not YAML: {what}", "correct the syntax, or quote the text")
    except yaml.reader.ReaderError as error:
        place = error.position if isinstance(error.position, int) else 0
        where = f"line {text.count(chr(10), 0, place) + 1}"
        message = f"holds a character that YAML does not allow ({error.reason})"
        value = text[place : place + 1] or None
        _refuse(file, where, value, message, "remove it")
    return builder.result


class _Builder:
    """Builds the value of a file from its events."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.result: Any = None
        self.open: list[_Open] = []
        self.anchors: dict[str, _Anchored | None] = {}
        self.nodes = 0
        self.aliases = 0
        self.documents = 0
        self.end = time.monotonic() + LONGEST_TIME

    def take(self, event: Any) -> None:
        """The next event."""
        line = event.start_mark.line + 1
        if time.monotonic() > self.end:
            self.refuse(line, None, f"takes longer than {LONGEST_TIME:g} s", "write less of it")
        match event:
            case yaml.DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    self.refuse(line, "---", "begins a second document", "keep one of them")
            case yaml.AliasEvent():
                self.alias(str(event.anchor), line)
            case yaml.ScalarEvent():
                value = self.scalar(event, line)
                self.remember(event.anchor, _Anchored(value, 1, 0))
                self.add(value, 1, 0, line)
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                self.start(event, line)
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                self.finish(line)

    def start(self, event: yaml.CollectionStartEvent, line: int) -> None:
        self.refuse_tag(event, line)
        if len(self.open) >= DEEPEST:
            self.refuse(line, None, f"is deeper than {DEEPEST} levels", "nest less")
        if event.anchor is not None:
            self.anchors[event.anchor] = None  # until it is whole
        value: Any = [] if isinstance(event, yaml.SequenceStartEvent) else {}
        self.open.append(_Open(value, line, event.anchor))
        self.count(1, line)

    def finish(self, line: int) -> None:
        whole = self.open.pop()
        if isinstance(whole.value, dict):
            whole.value = self.with_merged(whole)
        if whole.anchor is not None:
            self.anchors[whole.anchor] = _Anchored(whole.value, whole.nodes, whole.height)
        self.add(whole.value, whole.nodes, whole.height, whole.line, counted=True)

    def alias(self, anchor: str, line: int) -> None:
        self.aliases += 1
        found = self.anchors.get(anchor, _MISSING)
        if self.aliases > MOST_ALIASES:
            message = f"is more than the {MOST_ALIASES} aliases that a file may have"
            self.refuse(line, f"*{anchor}", message, "write the values out")
        if found is _MISSING:
            self.refuse(line, f"*{anchor}", "has no anchor above", f"write &{anchor} there")
        if found is None:
            self.refuse(line, f"*{anchor}", "stands within itself", "write the values out")
        assert isinstance(found, _Anchored)
        if len(self.open) + found.height > DEEPEST:
            self.refuse(line, f"*{anchor}", f"is deeper than {DEEPEST} levels", "nest less")
        self.add(found.value, found.nodes, found.height, line)

    def remember(self, anchor: str | None, what: _Anchored) -> None:
        if anchor is not None:
            self.anchors[anchor] = what

    def scalar(self, event: yaml.ScalarEvent, line: int) -> Any:
        """The value of a scalar: text, or a number, a switch or nothing as it looks."""
        text = event.value
        if event.tag not in (None, "!", _TEXT):
            self.refuse_tag(event, line)
        if event.tag is not None or not event.implicit[0]:
            return text
        tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))
        if tag == _MERGE:
            return _MergeKey(text)
        if tag not in _KINDS or _OTHER_NUMBER.match(text):
            return text
        if len(text) > LONGEST_NUMBER:
            message = f"is a number of more than {LONGEST_NUMBER} characters"
            self.refuse(line, text[:80], message, "write a shorter one, or quote the text")
        try:
            return _RESOLVER.yaml_constructors[tag](_RESOLVER, yaml.ScalarNode(tag, text))
        except (ValueError, OverflowError):
            return text  # it only looks like a number: 0b, 1__

    def add(self, value: Any, nodes: int, height: int, line: int, counted: bool = False) -> None:
        """Put a whole value where it belongs."""
        if not counted:
            self.count(nodes, line)
        if not self.open:
            self.result = value
            return
        above = self.open[-1]
        above.nodes += nodes
        above.height = max(above.height, height + 1)
        if isinstance(above.value, list):
            above.value.append(value)
        elif above.key is _MISSING:
            above.key = self.as_key(above, value, line)
        else:
            key, above.key = above.key, _MISSING
            if isinstance(key, _MergeKey):
                above.merged.append(self.as_merged(value, line))
            else:
                above.value[key] = value

    def as_key(self, above: _Open, key: Any, line: int) -> Any:
        if not isinstance(key, str):
            what = "a list or a section" if isinstance(key, list | dict) else "not text"
            remedy = "write a name" if isinstance(key, list | dict) else "put it in quotes"
            self.refuse(line, key, f"is {what}, but stands as a name", remedy)
        if key in above.lines:
            message = f"is given twice, in line {above.lines[key]} and in line {line}"
            above.key = key
            self.refuse(line, str(key), message, "remove one of them", field=self.path())
        above.lines[key] = line
        return key

    def as_merged(self, value: Any, line: int) -> list[dict[str, Any]]:
        sections = value if isinstance(value, list) else [value]
        if not all(isinstance(section, dict) for section in sections):
            self.refuse(line, value, "is merged (<<), but is not a section", "merge sections")
        return sections

    @staticmethod
    def with_merged(section: _Open) -> dict[str, Any]:
        """Adds merged mappings, the first of a list taking precedence, below the section's own
        keys."""
        result: dict[str, Any] = {}
        for sections in section.merged:
            for one in reversed(sections):
                result |= one
        return result | section.value

    def count(self, nodes: int, line: int) -> None:
        self.nodes += nodes
        if self.nodes > MOST_NODES:
            message = f"makes more than {MOST_NODES:,} values, with what aliases repeat"
            self.refuse(line, None, message, "write less of it, with fewer aliases")

    def refuse_tag(self, event: Any, line: int) -> None:
        if event.tag not in (None, "!"):
            shown = re.sub(r"^tag:yaml\.org,2002:", "!!", event.tag)
            self.refuse(line, shown, "is a tag, which settings do not have", "remove it")

    def path(self) -> str:
        """The path of fields to the reader's position."""
        text = ""
        for one in self.open:
            if isinstance(one.value, list):
                text += f"[{len(one.value)}]"
            elif one.key is not _MISSING:
                text += f".{one.key}"
        return text.removeprefix(".")

    def refuse(
        self, line: int, value: Any, message: str, remedy: str, field: str | None = None
    ) -> NoReturn:
        place = field or self.path()
        where = f"{place} (line {line})" if place else f"line {line}"
        _refuse(self.file, where, value, message, remedy)


def _refuse(file: str | Path, field: str, value: Any, message: str, remedy: str) -> NoReturn:
    raise ConfigError([ConfigProblem(str(file), field, value, message, remedy)]) from None
