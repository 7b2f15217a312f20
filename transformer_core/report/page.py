"""The report of a study: figures, tables, and one self-contained page.

The page needs no script, no network and no other file. Its sections are in
:mod:`transformer_core.report.contents`. Beside it lie the same answer on one page of Markdown, and
for programs: report.md and summary.json, from the same reading.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from schemas.config.variants import Variant
from transformer_core.common.digests import write_result
from transformer_core.common.job import Job
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.brief import as_yaml, brief, templates
from transformer_core.report.contents import FIGURES, SECTIONS
from transformer_core.report.figures import draw_all
from transformer_core.report.kit import language, palette, svg
from transformer_core.report.kit.formats import FILTERS, Numbers, technique
from transformer_core.report.sections.answer import read_answer
from transformer_core.report.tables import write_tables


def environment() -> Environment:
    """The templates, in which every text from a configuration or a corpus is escaped."""
    made = templates(autoescape=True, extensions=["jinja2.ext.i18n"])
    made.policies["ext.i18n.trimmed"] = True
    made.install_gettext_callables(  # type: ignore[attr-defined]
        language.gettext, language.ngettext, newstyle=True
    )
    made.filters.update(FILTERS)
    made.globals["shades"] = palette.declarations
    made.filters |= {
        "compact": compact,
        "numbers": Numbers,
        "yaml": as_yaml,
        "technique": technique,
    }
    return made


def render(
    results: StudyResults, variants: dict[str, Variant], pictures: Sequence[svg.Picture]
) -> str:
    by_name = {picture.name: picture for picture in pictures}
    task = results.study.task.kind
    shared = {"study": results.study, "results": results, "variants": variants}
    found = environment()
    bodies = {
        section: Markup(
            found.get_template(section.template).render(
                **shared,
                **section.context(results),
                pictures=[by_name[name] for name in section.figures],
            )
        )
        for section in SECTIONS
        if section.task in (None, task)
    }
    return found.get_template("kit/page.html").render(**shared, sections=bodies)


def compact(value: Any) -> str:
    """JSON text on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def write_page(results: StudyResults) -> None:
    """Write report.html with the figures that lie beside it, report.md and summary.json."""
    folder = results.folder
    pictures = [svg.read(folder / f"figures/{name}.svg") for name in FIGURES]
    page = render(results, results.definitions, pictures)
    answer = read_answer(results)
    texts = {
        "summary.json": answer.model_dump_json(indent=1) + "\n",
        "report.md": brief(answer),
        "report.html": page,
    }
    for name, text in texts.items():
        write_result(folder / name, text, made_from=None)


class ReportJob(Job):
    """Writes the report of a study: figures, tables and pages."""

    kind = "report"

    results: Path = Path("results")  # the folder of the results
    processes: int = 1  # processes that draw the figures

    def run(self, log_file: Path | None) -> None:
        results = StudyResults(self.results)
        # First, in processes that have read nothing yet.
        draw_all(results, self.results / "figures", self.processes)
        write_tables(results, self.results / "tables")
        write_page(results)
