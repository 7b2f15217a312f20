import csv
import shutil
from functools import cache

import pytest
from matplotlib.figure import Figure
from page_reader import Page
from report_builders import build, mixed, unsupported

from tests.orders import run_job
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import FIGURES
from transformer_core.report.kit import svg
from transformer_core.report.page import draw, write_page
from transformer_core.report.tables import write_tables


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory):
    """The results of a study with one unsupported variant; tests must not write to them."""
    return build(tmp_path_factory.mktemp("study") / "results", mixed)


@pytest.fixture(scope="session")
def results(study_folder):
    return StudyResults(study_folder)


@pytest.fixture(scope="session")
def drawing(results):
    """A figure of this study by its name; each is drawn once."""
    return cache(lambda name: draw(name, results))


@pytest.fixture(scope="session")
def table(results, tmp_path_factory):
    """The rows in the file of a table of this study, by its name."""
    folder = tmp_path_factory.mktemp("tables")
    write_tables(results, folder)

    def rows(name: str) -> list[dict[str, str]]:
        with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    return rows


@pytest.fixture
def copied(study_folder, tmp_path):
    """A copy of these results that a test may change."""
    return shutil.copytree(study_folder, tmp_path / "results")


@pytest.fixture(scope="session")
def quick_folder(study_folder, tmp_path_factory):
    """The same with a page with empty figures, because drawing them takes most of the time."""
    folder = tmp_path_factory.mktemp("quick") / "results"
    shutil.copytree(study_folder, folder)
    (folder / "figures").mkdir()
    for name in FIGURES:
        empty = svg.render(Figure(figsize=(1, 1)), name, name, f"The figure {name}.")
        (folder / "figures" / f"{name}.svg").write_text(empty)
    write_page(StudyResults(folder))
    return folder


@pytest.fixture
def written(quick_folder, tmp_path):
    """A copy of that folder, for a test that changes it and writes its page again."""
    return shutil.copytree(quick_folder, tmp_path / "results")


@pytest.fixture(scope="session")
def html(quick_folder):
    """That page, without figures."""
    return (quick_folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def page(html):
    """That page as a reader sees it."""
    return Page(html)


@pytest.fixture(scope="session")
def empty_report(tmp_path_factory):
    """The results of a study in which no variant could run, with their report."""
    folder = build(tmp_path_factory.mktemp("empty") / "results", unsupported)
    assert run_job("report", results=folder) == 0
    return folder
