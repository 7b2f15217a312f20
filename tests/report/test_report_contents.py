"""The contents list every figure and table, and nothing else."""

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from transformer_core.report import contents, tables
from transformer_core.report.contents import FIGURES, SECTIONS, TABLES

FOLDER = Path(contents.__file__).parent / "sections"


def functions(pattern: str) -> list[str]:
    """Names that match a pattern among the functions of the sections, without prefix or suffix."""
    found = []
    for path in sorted(FOLDER.glob("[a-z]*.py")):
        module = import_module(f"transformer_core.report.sections.{path.stem}")
        for name, made in inspect.getmembers(module, inspect.isfunction):
            if made.__module__ == module.__name__ and (match := re.fullmatch(pattern, name)):
                found.append(match[1])
    return sorted(found)


def test_every_figure_and_table_is_listed_once():
    assert functions("draw_(.*)") == sorted(FIGURES)
    assert len(FIGURES) == sum(len(section.figures) for section in SECTIONS)
    assert all(callable(getattr(tables, f"_{name}")) for name in {*TABLES})


@pytest.mark.slow
def test_imports_are_light():
    """Every start of Snakemake reads the names of figures, and the page needs no torch."""
    code = (
        "import sys, transformer_core.report.contents;"
        "assert not {'matplotlib', 'seaborn', 'pandas', 'torch'} & set(sys.modules);"
        "import transformer_core.report.page; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
