"""What a program depends on among the sources, and what changes its fingerprint."""

import json
import os
import shutil
from pathlib import Path

import pytest

from transformer_core.common.sources import cache
from transformer_core.common.sources.definitions import Definitions, read_definitions
from transformer_core.common.sources.fingerprint import Sources

FILES = {
    "transformer_core/__init__.py": '"""A project."""\n',
    "transformer_core/shown.py": '''"""Shows."""
import logging
CHANGES_NO_RESULT = True  # it shows
log = logging.getLogger("x")
class Progress:
    def __init__(self, text): print(text)
''',
    "transformer_core/numbers.py": '''"""Numbers."""
import math as m
RATE = 0.1
UNUSED = 7

def helper(x, power=2):
    """x to a power."""
    return m.sqrt(x) ** power * RATE

def other(x):
    return x + 1
''',
    "transformer_core/worker.py": '''"""Works."""
import transformer_core.effect
THREADS = 4
def main():
    import os
    os.environ["T"] = str(THREADS)
def not_used():
    return 3
if __name__ == "__main__":
    main()
''',
    "transformer_core/effect.py": '''"""Acts when imported."""
import os
os.environ.setdefault("A", "1")
VALUE = 3
''',
    "transformer_core/page/__init__.py": '"""A page."""\n',
    "transformer_core/page/text.html": "<p>hello</p>\n",
    "transformer_core/page/words.yaml": "# words\na: {b: 1}\n",
    "transformer_core/page/ko.po": '#: page.py:3\nmsgid "a"\nmsgstr "b"\n',
    "transformer_core/page/make.py": '''"""Makes the page."""
from pathlib import Path
WORDS = Path(__file__).parent / "words.yaml"
def main():
    return WORDS.read_text(), loader("transformer_core.page")
''',
    "transformer_core/reads.py": '''"""Reads one file beside it."""
from pathlib import Path
def main():
    return (Path(__file__).parent / "page" / "words.yaml").read_text()
''',
    "transformer_core/catalogs.py": '''"""Reads the files of a name."""
from pathlib import Path
def main():
    return sorted(Path(__file__).parent.rglob("ko.po"))
''',
    "transformer_core/job.py": '''"""A job."""
import argparse
import sys
from transformer_core import numbers
from transformer_core.shown import Progress, log
from schemas.config.study import Study
from schemas.results.record import Record

WORKER = "transformer_core.worker"

def main():
    """Do it."""
    parser = argparse.ArgumentParser(description="a job")
    parser.add_argument("--steps", type=int, default=3, help="how many")
    steps = parser.parse_args().steps
    log.info("starting %d", steps)  # a comment
    with Progress("bar"):
        pass
    print("failed", file=sys.stderr)
    if steps < 0:
        raise ValueError(f"{steps}: below zero")
    if steps > 9:
        raise Unsupported("too many steps")
    return numbers.helper(steps), start(WORKER), Study(), Record(status="ok")

if __name__ == "__main__":
    main()
''',
    "schemas/__init__.py": '"""Schemas."""\n',
    "schemas/config/__init__.py": '"""Config."""\n',
    "schemas/config/study.py": '''"""Study."""
class Part(Schema):
    """A part."""
    size: int = 3
    """Its size."""
    @property
    def double(self): return 2 * self.size
class Study(Schema):
    part: Part = Part()
    name: str = Field(default="a", description="a name")
''',
    "schemas/results/__init__.py": '''"""Results."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from schemas.results.record import Record
def __getattr__(name):
    return getattr(later(), name)
''',
    "schemas/results/record.py": '''"""A record."""
class Record(Schema):
    status: str = "ok"
    """How it ended."""
    seconds: float | None = Field(default=None, ge=0)
''',
}
JOB = ["transformer_core.job"]
PAGE = ["transformer_core.page.make"]
READS = ["transformer_core.reads"]

# File, text, what it becomes: of JOB, unless the file belongs to the page.
MATTERS = [
    ("numbers.py", "RATE = 0.1", "RATE = 0.2"),
    ("numbers.py", "** power", "* power"),
    ("numbers.py", "power=2", "power=3"),
    ("numbers.py", "import math as m", "import cmath as m"),
    ("job.py", "default=3", "default=4"),
    ("job.py", "type=int", "type=float"),
    ("job.py", "steps > 9", "steps > 8"),
    ("job.py", '"too many steps"', '"more than nine steps"'),  # the reason of a status
    ("job.py", 'status="ok"', 'status="failed"'),
    ("worker.py", "THREADS = 4", "THREADS = 2"),  # started by its name
    ("effect.py", '"1"', '"2"'),
    ("../schemas/config/study.py", "2 * self", "3 * self"),
    ("../schemas/results/record.py", 'str = "ok"', 'str = "failed"'),
]
MATTERS_NOT = [
    ("numbers.py", "UNUSED = 7", "UNUSED = 8"),
    ("numbers.py", "x + 1", "x + 2"),
    ("numbers.py", '"""x to a power."""', '"""The power of x."""'),
    ("numbers.py", "power=2", "power = 2,\n"),
    ("job.py", "starting %d", "beginning with %d"),
    ("job.py", '    log.info("starting %d", steps)  # a comment\n', ""),
    ("job.py", "# a comment", "# another"),
    ("job.py", '"bar"', '"steps"'),
    ("job.py", '"failed", file', '"did not work", file'),
    ("job.py", "below zero", "is negative"),
    ("job.py", "how many", "number of steps"),
    ("job.py", '"a job"', '"a good job"'),
    ("worker.py", "return 3", "return 4"),
    ("effect.py", "VALUE = 3", "VALUE = 4"),
    ("shown.py", "print(text)", "print(text, text)"),
    # A study comes with every default written out: as a parameter of the rule.
    ("../schemas/config/study.py", "int = 3", "int = 4"),
    ("../schemas/config/study.py", '"a name"', '"its name"'),
    ("../schemas/results/record.py", '"""How it ended."""', '"""Its end."""'),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def fingerprint(root: Path, programs: list[str], fills_defaults: bool = False) -> str:
    sources = Sources(root, root / "cache")
    found = sources.fingerprint(programs, fills_defaults)
    sources.keep()
    return found


def change(root: Path, name: str, old: str, new: str) -> None:
    path = root / "transformer_core" / name
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(("name", "old", "new"), MATTERS)
def test_what_can_change_a_result_counts(root: Path, name: str, old: str, new: str) -> None:
    before = fingerprint(root, JOB), fingerprint(root, PAGE)
    change(root, name, old, new)
    after = fingerprint(root, JOB), fingerprint(root, PAGE)
    assert after[0] != before[0]
    assert after[1] == before[1]


@pytest.mark.parametrize(("name", "old", "new"), MATTERS_NOT)
def test_what_changes_no_result_does_not(root: Path, name: str, old: str, new: str) -> None:
    before = fingerprint(root, JOB)
    change(root, name, old, new)
    assert fingerprint(root, JOB) == before


@pytest.mark.parametrize(
    ("name", "old", "new", "counts"),
    [
        ("text.html", "hello", "good day", [True, False]),
        ("words.yaml", "b: 1", "b: 2", [True, True]),
        ("words.yaml", "# words", "# of the page", [False, False]),
        ("ko.po", '"b"', '"c"', [True, False]),
        ("ko.po", "page.py:3", "page.py:8", [False, False]),
    ],
)
def test_files_beside_the_sources(
    root: Path, name: str, old: str, new: str, counts: list[bool]
) -> None:
    before = [fingerprint(root, programs) for programs in (PAGE, READS)]
    change(root, f"page/{name}", old, new)
    after = [fingerprint(root, programs) for programs in (PAGE, READS)]
    assert [a != b for a, b in zip(before, after, strict=True)] == counts


def test_where_files_of_a_name_are_read_no_others_count(root: Path) -> None:
    catalogs = ["transformer_core.catalogs"]
    before = fingerprint(root, catalogs)
    change(root, "page/text.html", "hello", "goodbye")
    assert fingerprint(root, catalogs) == before
    change(root, "page/ko.po", 'msgstr "b"', 'msgstr "c"')
    assert fingerprint(root, catalogs) != before


def test_a_new_template_counts(root: Path) -> None:
    before = fingerprint(root, PAGE)
    (root / "transformer_core/page/new.html").write_text("new")
    assert fingerprint(root, PAGE) != before


def test_defaults_of_a_study_count_where_they_are_filled_in(root: Path) -> None:
    before = fingerprint(root, JOB, fills_defaults=True)
    change(root, "../schemas/config/study.py", "int = 3", "int = 4")
    assert fingerprint(root, JOB, fills_defaults=True) != before


def test_to_move_a_definition_changes_nothing(root: Path) -> None:
    before = fingerprint(root, JOB)
    change(root, "numbers.py", "RATE = 0.1\n", "from transformer_core.rates import RATE\n")
    (root / "transformer_core/rates.py").write_text('"""Rates."""\nRATE = 0.1\n')
    assert fingerprint(root, JOB) == before


def test_time_stamps_change_nothing(root: Path) -> None:
    before = fingerprint(root, JOB)
    for path in root.joinpath("transformer_core").rglob("*.py"):
        os.utime(path, (1, 1))
    assert fingerprint(root, JOB) == before


def test_names_that_a_package_hands_on_when_they_are_asked_for_count(root: Path) -> None:
    change(root, "job.py", "schemas.results.record import", "schemas.results import")
    before = fingerprint(root, JOB)
    change(root, "../schemas/results/record.py", 'str = "ok"', 'str = "failed"')
    assert fingerprint(root, JOB) != before


def test_a_copy_elsewhere_has_the_same_fingerprint(root: Path, tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    copy = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(root, copy)
    assert fingerprint(copy, JOB) == fingerprint(root, JOB)


def test_only_what_has_other_bytes_is_parsed_again(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    def reading(file: Path, root: Path) -> Definitions:
        parsed.append(file.relative_to(root).as_posix())
        return read_definitions(file, root)

    monkeypatch.setattr(cache, "read_definitions", reading)
    before = fingerprint(root, JOB)
    assert len(parsed) == sum(name.endswith(".py") for name in FILES)
    copy = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(root, copy)
    parsed.clear()
    assert fingerprint(copy, JOB) == before
    change(copy, "numbers.py", "UNUSED = 7", "UNUSED = 8")
    assert fingerprint(copy, JOB) == before
    change(copy, "numbers.py", "RATE = 0.1", "RATE = 0.2")
    changed = fingerprint(copy, JOB)
    assert changed != before
    assert parsed == ["transformer_core/numbers.py"] * 2
    # The bytes of before, with other time stamps.
    change(copy, "numbers.py", "RATE = 0.2", "RATE = 0.1")
    change(copy, "numbers.py", "UNUSED = 8", "UNUSED = 7")
    assert fingerprint(copy, JOB) == before


@pytest.mark.parametrize("name", ["definitions.json", "fingerprints.json"])
@pytest.mark.parametrize("damage", ["", "{", '{"version": 3}', "[]", None])
def test_a_damaged_cache_does_no_harm(root: Path, name: str, damage: str | None) -> None:
    before = fingerprint(root, JOB)
    kept = root / "cache" / name
    assert json.loads(kept.read_text())
    if damage is None:
        kept.unlink()
    else:
        kept.write_text(damage)
    assert fingerprint(root, JOB) == before
    change(root, "numbers.py", "RATE = 0.1", "RATE = 0.2")
    assert fingerprint(root, JOB) != before


def test_a_cache_that_cannot_be_written_does_no_harm(root: Path) -> None:
    (root / "cache").write_text("a file, not a folder")
    assert fingerprint(root, JOB) == fingerprint(root, JOB)


def test_the_files_of_a_program(root: Path) -> None:
    files = [path.as_posix() for path in Sources(root, root / "cache").files(JOB)]
    assert files == [
        "schemas/config/study.py",
        "schemas/results/record.py",
        "transformer_core/effect.py",
        "transformer_core/job.py",
        "transformer_core/numbers.py",
        "transformer_core/worker.py",
    ]


def test_an_unknown_program(root: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"transformer_core\.no_such_job"):
        fingerprint(root, ["transformer_core.no_such_job"])
