"""What a program depends on among the sources of this project, and one digest of it all.

From the modules that a program is started with, names are followed to what they stand for: a
function that is used brings with it what it uses, and no other function of its file. Modules that
are named as strings count as programs of their own; files beside the sources, which are read
through ``__file__`` or a package's name, count with their contents. The digest does not say where
a definition stands: to move it changes nothing.

Not followed: modules that declare that they change no result, and type checking's imports. Not
seen: names that are put together when the program runs (``getattr(x, name)``, a registry filled by
other modules).
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from transformer_core.common.sources.bare_trees import PACKAGES, REASONS, digest
from transformer_core.common.sources.cache import Cache
from transformer_core.common.sources.definitions import Definitions, Item

CHANGES_NO_RESULT = True  # it says which results are made again, not what is in them

ROOT = Path(__file__).resolve().parents[3]
CONFIG_SCHEMAS = "schemas.config."
"""Fields of these count only for programs that fill in their defaults: to all others they come
complete, with a run spec."""

Place = tuple[str, int]
"""An item: its module, and its number there."""


@dataclass(frozen=True)
class Reached:
    """All that a program depends on."""

    items: set[Place] = field(default_factory=set)
    data: set[Path] = field(default_factory=set)
    """Files that are read and are no sources."""


def has_fields(module: str, fills_defaults: bool) -> bool:
    """Whether the fields of this module's classes count."""
    return fills_defaults or not module.startswith(CONFIG_SCHEMAS)


class Sources:
    """The sources below ``root``, as they are now."""

    def __init__(self, root: Path = ROOT, cache: Path | None = None) -> None:
        self.root = root
        self._cache = Cache(root, cache)
        # Programs have most of what they depend on in common.
        self._next: dict[Place, tuple[set[Place], set[Place]]] = {}
        self._lines: dict[tuple[Place, bool], str] = {}

    def fingerprint(self, programs: Sequence[str], fills_defaults: bool = False) -> str:
        """One digest of all that these modules depend on when they are started as programs.

        ``fills_defaults`` says that they make config schemas of incomplete data.
        Raises ModuleNotFoundError for an unknown module.
        """
        key = json.dumps([*programs, fills_defaults])
        known = self._cache.fingerprints
        if key not in known:
            known[key] = self._digest(self.reached(programs, fills_defaults), fills_defaults)
        return known[key]

    def keep(self) -> None:
        """Remember what was found, for the next call."""
        self._cache.write()

    def files(self, programs: Sequence[str], fills_defaults: bool = False) -> list[Path]:
        """The files that hold what these programs depend on, relative to the root, sorted."""
        reached = self.reached(programs, fills_defaults)
        found = {self.file(module) for module, _ in reached.items} | reached.data
        return sorted(path.relative_to(self.root) for path in found)

    def all_files(self) -> list[str]:
        """All files of the project's packages, relative to the root, sorted."""
        return self._cache.names

    def file(self, module: str) -> Path:
        """The source file of a module."""
        base = self.root.joinpath(*module.split("."))
        return base / "__init__.py" if self.modules[module].package else base.with_suffix(".py")

    def reached(self, programs: Sequence[str], fills_defaults: bool = False) -> Reached:
        """All that these programs depend on."""
        for program in programs:
            if program not in self.modules:
                raise ModuleNotFoundError(f"no module {program} below {self.root}")
        return _Walk(self, fills_defaults).to_the_end(programs)

    @cached_property
    def modules(self) -> dict[str, Definitions]:
        return self._cache.definitions

    @cached_property
    def names(self) -> dict[str, dict[str, list[int]]]:
        """Items by the names that they define, by module."""
        found: dict[str, dict[str, list[int]]] = {}
        for module, definitions in self.modules.items():
            names = found[module] = {}
            for number, item in enumerate(definitions.items):
                for name in item.names:
                    names.setdefault(name, []).append(number)
        return found

    def _digest(self, reached: Reached, fills_defaults: bool) -> str:
        for place in reached.items:
            if (place, fills_defaults) not in self._lines:
                self._lines[place, fills_defaults] = self._line(place, fills_defaults)
        lines = {self._lines[place, fills_defaults] for place in reached.items}
        for path in reached.data:
            name = path.relative_to(self.root).as_posix()
            lines.add(f"{name} {self._cache.contents(name)}")
        return digest("\n".join(sorted(lines)))

    def item(self, place: Place) -> Item:
        return self.modules[place[0]].items[place[1]]

    def counts(self, module: str) -> bool:
        """Whether this is a module of the project that can change a result."""
        return module in self.modules and not self.modules[module].changes_no_result

    def loads(self, imports: Iterable[tuple[str, str | None]]) -> set[str]:
        """The modules of this project that imports load, with the packages that they are in."""
        names = set()
        for module, attribute in imports:
            parts = f"{module}.{attribute}".split(".") if attribute else module.split(".")
            if parts[0] in PACKAGES:
                names |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
        return names & self.modules.keys()

    def data(self, path: Path) -> Iterator[Path]:
        """The file, or the files below a folder, all or those of a name, that are no sources."""
        inside = path.relative_to(self.root).parts[:1]
        if inside and inside[0] in PACKAGES:
            folder, name = (path, "*") if path.is_dir() else (path.parent.parent, path.name)
            several = path.is_dir() or path.parent.name == "**"
            for file in folder.rglob(name) if several else [path]:
                if file.suffix not in (".py", ".pyc") and file.is_file():
                    yield file

    def _line(self, place: Place, fills_defaults: bool) -> str:
        """What a fingerprint holds of an item: its digest, and what its names stand for."""
        module, item = place[0], self.item(place)
        fields = has_fields(module, fills_defaults)
        names = [*item.uses, *(item.annotations if fields else ())]
        links = {f"{name} {self._link(place, name, fills_defaults)}" for name in names}
        links |= {
            f"{name} {text}"
            for name, text in item.texts.items()
            if name in REASONS or not self._only_shows(self._origin(module, item, name))
        }
        return json.dumps([item.digest, item.fields if fields else None, sorted(links)])

    def _link(self, place: Place, name: str, fills_defaults: bool) -> str:
        """A text that changes if a name stands for something else."""
        found, outside = self._resolve(place, name)
        digests = (
            item.digest
            for target in found
            for item in [self.item(target)]
            if item.kind != "record" or has_fields(target[0], fills_defaults)
        )
        return ",".join(sorted(digests)) or outside

    def _origin(self, module: str, item: Item, name: str) -> tuple[str, str | None] | None:
        """Where a name is imported from."""
        return item.imports.get(name) or self.modules[module].imports.get(name)

    def _only_shows(self, origin: tuple[str, str | None] | None) -> bool:
        """Whether an import is of something that changes no result."""
        return origin is not None and origin[0] in self.modules and not self.counts(origin[0])

    def next(self, place: Place) -> tuple[set[Place], set[Place]]:
        """The items that an item uses, and those that only its fields mention."""
        if place not in self._next:
            item = self.item(place)
            uses, types = (
                set[Place]().union(*(self._resolve(place, name)[0] for name in names))
                for names in (item.uses, item.annotations)
            )
            self._next[place] = uses, types
        return self._next[place]

    def _resolve(self, place: Place, name: str) -> tuple[set[Place], str]:
        """The items that a dotted name stands for; what it stands for outside the project."""
        head, *rest = name.split(".")
        origin = self._origin(place[0], self.item(place), head)
        if origin is None:
            found = self._defined(place[0], head)
        elif origin[0].split(".")[0] in PACKAGES:
            found = self._look_up(origin[0], [*filter(None, origin[1:]), *rest])
        else:
            found = set()
        outside = "" if origin is None or found or self._only_shows(origin) else str(origin)
        return found, outside

    def _look_up(self, module: str, parts: list[str]) -> set[Place]:
        """The items that ``parts`` name, from a module on."""
        if not self.counts(module):
            return set()
        if not parts:
            # The module itself is handed on: all of it may be used.
            items = range(len(self.modules[module].items))
            return {(module, n) for n in items if n not in self.modules[module].program}
        if places := self._defined(module, parts[0]):
            return places
        origin = self.modules[module].imports.get(parts[0])
        if origin is not None and origin[0].split(".")[0] in PACKAGES:
            return self._look_up(origin[0], [*filter(None, origin[1:]), *parts[1:]])
        return self._look_up(f"{module}.{parts[0]}", parts[1:])

    def _defined(self, module: str, name: str) -> set[Place]:
        return {(module, number) for number in self.names[module].get(name, ())}


class _Walk:
    """The way from programs to all that they depend on."""

    def __init__(self, sources: Sources, fills_defaults: bool) -> None:
        self.sources, self.fills_defaults = sources, fills_defaults
        self.found = Reached()
        self.loaded: set[str] = set()
        self.started: set[str] = set()
        self.seen: set[tuple[Place, bool]] = set()
        self.waiting: list[tuple[Place, bool]] = []
        """Items to go on from, and whether only fields of config schemas mention them."""

    def to_the_end(self, programs: Sequence[str]) -> Reached:
        """All that is reached."""
        for program in programs:
            self._start(program)
        while self.waiting:
            place, only_type = self.waiting.pop()
            if (place, only_type) not in self.seen:
                self.seen.add((place, only_type))
                self._visit(place, only_type)
        return self.found

    def _visit(self, place: Place, only_type: bool) -> None:
        sources, item = self.sources, self.sources.item(place)
        fields = has_fields(place[0], self.fills_defaults)
        only_type = only_type and item.kind == "value"
        if not only_type and (fields or item.kind != "record"):
            self.found.items.add(place)
        self._load(sources.loads(item.imports.values()))
        for name in item.modules:
            self._start(name)
        for name in item.places:
            self.found.data.update(sources.data(sources.root / name))
        uses, types = sources.next(place)
        self.waiting += [(target, only_type) for target in uses]
        self.waiting += [(target, not fields) for target in types]

    def _start(self, name: str) -> None:
        """A module as a program, or what lies in a package."""
        sources = self.sources
        if name in self.started or name not in sources.modules:
            return
        self.started.add(name)
        module = sources.modules[name]
        self._load(sources.loads([(name, None), *module.imports.values()]))
        items: Sequence[int] = [
            *sources.names[name].get("main", []),
            *module.program,
            *module.effects,
        ]
        if module.package:
            self.found.data.update(sources.data(sources.file(name).parent))
            self._start(f"{name}.__main__")
        elif not items:
            items = range(len(module.items))
        self.waiting += [((name, number), False) for number in items]

    def _load(self, names: Iterable[str]) -> None:
        """An import: what the modules do at once, and what they import."""
        for name in names:
            if name not in self.loaded and self.sources.counts(name):
                self.loaded.add(name)
                module = self.sources.modules[name]
                self.waiting += [((name, number), False) for number in module.effects]
                self._load(self.sources.loads(module.imports.values()))
