"""The text and shapes that a figure shows, and the HTML of one section."""

import xml.etree.ElementTree as ElementTree

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import SECTIONS
from transformer_core.report.kit.svg import Picture
from transformer_core.report.page import environment
from transformer_core.report.sections.answer import read_answer

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawing: str) -> list[str]:
    root = ElementTree.fromstring(drawing)
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


def description(drawing: str) -> str:
    return str(ElementTree.fromstring(drawing).findtext(f"{SVG}desc"))


def section(name: str, results: StudyResults) -> str:
    """The HTML of a section, whose figures are empty."""
    own = next(section for section in SECTIONS if section.name == name)
    pictures = [Picture(name=one, title=one, description="", markup="") for one in own.figures]
    template = environment().get_template(own.template)
    shared = {"study": results.study, "results": results, "answer": read_answer(results)}
    html: str = template.render(**shared, pictures=pictures, **own.context(results))
    return html
