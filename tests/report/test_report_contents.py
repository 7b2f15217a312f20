"""The contents name every section, figure and table that there is, and nothing else."""

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from transformer_core.report import contents
from transformer_core.report.contents import FIGURES, SECTIONS, TABLES

FOLDER = Path(contents.__file__).parent / "sections"


def functions(kind: str) -> list[tuple[str, str]]:
    """Section and name of every public function of the modules of a kind."""
    found = []
    for path in sorted(FOLDER.glob(f"*/{kind}.py")):
        name = f"transformer_core.report.sections.{path.parent.name}.{kind}"
        module = import_module(name)
        for function, made in inspect.getmembers(module, inspect.isfunction):
            here = made.__module__ == name and not function.startswith("_")
            if function in getattr(module, "__all__", [function] * here):
                found.append((name.split(".")[-2], function))
    return found


def test_every_folder_is_a_section() -> None:
    folders = {path.name for path in FOLDER.iterdir() if any(path.glob("*.*"))}
    assert folders - {"__init__.py", "__pycache__"} == {section.name for section in SECTIONS}
    assert all((FOLDER / section.name / "section.html").exists() for section in SECTIONS)


@pytest.mark.parametrize(("kind", "listed"), [("figures", FIGURES), ("tables", TABLES)])
def test_every_figure_and_table_is_listed(kind: str, listed: dict[str, contents.Section]) -> None:
    made = functions(kind)
    expected = [(section.name, name) for name, section in listed.items()]
    assert sorted(made) == sorted(expected)


def test_nothing_is_listed_twice() -> None:
    assert len(FIGURES) == sum(len(section.figures) for section in SECTIONS)
    assert len(TABLES) == sum(len(section.tables) for section in SECTIONS)


def test_the_names_cost_no_drawing_library() -> None:
    """Every call of Snakemake reads them."""
    code = (
        "import sys, transformer_core.report.contents;"
        "sys.exit(bool({'matplotlib', 'seaborn', 'pandas', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
