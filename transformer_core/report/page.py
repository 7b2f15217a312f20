"""One self-contained page of a study: ``python -m transformer_core.report.page``.

The page needs no script, no network and no other file. Its sections are in
:mod:`transformer_core.report.contents`. Beside it lie the same answer on one page of Markdown, and
for programs: report.md and summary.json, from the same reading.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from schemas.config.variants import Variant
from schemas.errors import ConfigError
from transformer_core.common.endings import program
from transformer_core.common.records import read_as
from transformer_core.common.seals import write_sealed
from transformer_core.decide.results_options import add_arguments, from_arguments
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.brief import as_yaml, brief
from transformer_core.report.contents import FIGURES, SECTIONS
from transformer_core.report.kit import language, palette, svg
from transformer_core.report.kit.formats import FILTERS, Numbers
from transformer_core.report.sections.answer import read_answer


def environment() -> Environment:
    """The templates, in which every text from a configuration or a corpus is escaped."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        extensions=["jinja2.ext.i18n"],
    )
    made.policies["ext.i18n.trimmed"] = True
    made.install_gettext_callables(  # type: ignore[attr-defined]
        language.gettext, language.ngettext, newstyle=True
    )
    made.filters.update(FILTERS)
    made.globals["shades"] = palette.declarations
    made.filters |= {"compact": compact, "numbers": Numbers, "yaml": as_yaml}
    return made


def render(
    results: StudyResults, variants: dict[str, Variant], pictures: Sequence[svg.Picture]
) -> str:
    """The page as HTML."""
    by_name = {picture.name: picture for picture in pictures}
    task = results.study.task.kind
    shared = {"study": results.study, "results": results, "variants": variants}
    templates = environment()
    bodies = {
        section: Markup(
            templates.get_template(section.template).render(
                **shared,
                **section.context(results),
                pictures=[by_name[name] for name in section.figures],
            )
        )
        for section in SECTIONS
        if section.task in (None, task)
    }
    return templates.get_template("kit/page.html").render(**shared, sections=bodies)


def compact(value: Any) -> str:
    """JSON text on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.report.page",
        description="Write the report of a study as one HTML file that needs no other file.",
    )
    add_arguments(parser)
    parser.add_argument(
        "--variants",
        type=Path,
        help="the variants of the study as JSON (default: variants.json in the results)",
    )
    parser.add_argument(
        "--figures",
        type=Path,
        help="folder of the figures (default: figures in the results)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="the page (default: report.html in the results); report.md and summary.json beside it",
    )
    options = parser.parse_args(arguments)
    figures = options.figures or options.results / "figures"
    try:
        results = from_arguments(options)
        variants: dict[str, Variant] = read_as(
            options.variants or options.results / "variants.json", dict[str, Variant]
        )
        pictures = [svg.read(figures / f"{name}.svg") for name in FIGURES]
        page = render(results, variants, pictures)
        answer = read_answer(results)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    output = options.output or options.results / "report.html"
    write_sealed(output.with_name("summary.json"), answer.model_dump_json(indent=1) + "\n")
    write_sealed(output.with_name("report.md"), brief(answer))
    write_sealed(output, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
