"""The texts of a figure, and one section in HTML or in words."""

import re
import xml.etree.ElementTree as ElementTree

from markupsafe import Markup

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import SECTIONS
from transformer_core.report.kit.svg import Picture
from transformer_core.report.page import body
from transformer_core.report.sections.answer import read_answer
from transformer_core.report.tables import Row, read_rows

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawing: str) -> list[str]:
    root = ElementTree.fromstring(drawing)
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


def description(drawing: str) -> str:
    return str(ElementTree.fromstring(drawing).findtext(f"{SVG}desc"))


def section(name: str, results: StudyResults) -> Markup:
    """The HTML of a section, whose figures are empty."""
    own = next(section for section in SECTIONS if section.name == name)
    pictures = {name: Picture(name, name, description="", markup="") for name in own.figures}
    return body(own, results, read_answer(results), pictures)


def words(name: str, results: StudyResults) -> str:
    """A section in English, without tags."""
    html = re.sub(r'<span lang="ko">.*?</span>', "", section(name, results), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def rows_of(table: str, results: StudyResults) -> list[Row]:
    """The rows of a table with any value."""
    rows = read_rows(table, results)
    return [row for row in rows if any(value is not None for value in row.values())]
