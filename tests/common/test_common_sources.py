"""The sources that a program depends on, and changes of their digest."""

from pathlib import Path

import pytest

from tests.records import write_tree
from transformer_core.common.sources import Sources, read_source

FILES = {
    "schemas/__init__.py": "",
    "schemas/results/__init__.py": "def __getattr__(name):\n    return name\n",
    "schemas/results/runs.py": "class Run: ...\n",
    "schemas/results/data.py": "class Shard: ...\n",
    "transformer_core/__init__.py": "",
    "transformer_core/job.py": """
from typing import TYPE_CHECKING

from schemas.results import Run
from transformer_core import shown
from transformer_core.words import COUNT

if TYPE_CHECKING:
    from transformer_core.typed import Kind
else:
    from transformer_core.loose import Kind

def main():
    from .late import start
    start("transformer_core.worker")
""",
    "transformer_core/shown.py": (
        "import transformer_core.deeper\nCHANGES_NO_RESULT = True  # it shows\n"
    ),
    "transformer_core/deeper.py": "",
    "transformer_core/typed.py": "",
    "transformer_core/loose.py": "",
    "transformer_core/late.py": "def start(name): ...\n",
    "transformer_core/worker.py": "",
    "transformer_core/unused.py": "import transformer_core.job\n",
    "transformer_core/words/__init__.py": (
        "from pathlib import Path\nCOUNT = len(Path(__file__).with_name('words.txt').read_text())\n"
    ),
    "transformer_core/words/words.txt": "one two",
    "transformer_core/page/__init__.py": "",
    "transformer_core/page/__main__.py": "LOADER = 'transformer_core.page'\n",
    "transformer_core/page/templates/page.html": "<p>",
}


@pytest.fixture
def root(tmp_path):
    return write_tree(tmp_path, FILES)


def sources(root: Path) -> Sources:
    return Sources(root, root / "cache.json")


def test_imports_workers_and_files_beside_modules_are_followed(root):
    assert set(sources(root).files(["transformer_core.job"])) == {
        "schemas/__init__.py",
        "schemas/results/__init__.py",
        "schemas/results/runs.py",
        "transformer_core/__init__.py",
        "transformer_core/job.py",
        "transformer_core/late.py",
        "transformer_core/loose.py",
        "transformer_core/words/__init__.py",
        "transformer_core/words/words.txt",
        "transformer_core/worker.py",
    }
    assert set(sources(root).files(["transformer_core.page"])) == {
        "transformer_core/__init__.py",
        "transformer_core/page/__init__.py",
        "transformer_core/page/__main__.py",
        "transformer_core/page/templates/page.html",
    }
    with pytest.raises(ModuleNotFoundError):
        sources(root).files(["transformer_core.jop"])


def test_a_change_counts_for_the_programs_that_depend_on_it(root):
    programs = ["transformer_core.job"]
    before, used = sources(root).fingerprint(programs), set(sources(root).files(programs))
    for name in FILES:
        path = root / name
        text = path.read_text()
        path.write_text(f"{text}changed = 1\n")
        assert (sources(root).fingerprint(programs) != before) == (name in used), name
        path.write_text(text)
    assert sources(root).fingerprint(programs) == before


@pytest.mark.parametrize(
    "other",
    [
        "# Why.\ndef area(side):\n    return side**2\n",
        "def area(side):\n    '''Square metres.'''\n    return side**2  # squared\n",
        "'''Shapes.'''\n\n\ndef area(\n    side,\n):\n    return (side ** 2)\n",
    ],
)
def test_comments_docstrings_and_formatting_do_not_count(other):
    area = read_source(b"def area(side):\n    return side**2\n", "shapes", False)
    assert read_source(other.encode(), "shapes", False).digest == area.digest
    assert read_source(b"def area(side):\n    return side**3\n", "shapes", False) != area


@pytest.mark.parametrize("content", [b"def broken(:", b"\xff\x00", b"x = " + b"(" * 10_000])
def test_unparsable_files_have_the_digest_of_their_bytes(content):
    found = read_source(content, "odd", False)
    assert found.imports == []
    assert found.digest != read_source(content + b" ", "odd", False).digest


def test_parsed_sources_are_cached_and_a_damaged_cache_is_ignored(root, monkeypatch):
    programs = ["transformer_core.job"]
    first = sources(root)
    before = first.fingerprint(programs)
    first.keep()
    with monkeypatch.context() as patched:
        patched.setattr("transformer_core.common.sources.read_source", None)
        assert sources(root).fingerprint(programs) == before
    cache = root / "cache.json"
    changed = cache.read_text().replace('"transformer_core.', '"transformer_cora.')
    for damaged in (changed, "", '{"version": 7}'):
        cache.write_text(damaged)
        assert sources(root).fingerprint(programs) == before
