"""One self-contained page of a study: ``python -m transformer_core.report.page``.

The page needs no script, no network and no other file. Its sections are in
:mod:`transformer_core.report.sections`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from schemas.errors import ConfigError
from schemas.study import Variant
from transformer_core.analysis.files import read_as
from transformer_core.data.files import write_text
from transformer_core.report import language, svg
from transformer_core.report.figures import FIGURES
from transformer_core.report.formats import FILTERS
from transformer_core.report.inputs import Results, add_arguments, from_arguments
from transformer_core.report.sections import SECTIONS


def environment() -> Environment:
    """The templates, in which every text from a configuration or a corpus is escaped."""
    made = Environment(
        loader=PackageLoader("transformer_core.report"),
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
    made.filters |= {"pretty": pretty, "compact": compact}
    return made


def render(results: Results, variants: dict[str, Variant], pictures: Sequence[svg.Picture]) -> str:
    """The page as HTML."""
    by_name = {picture.name: picture for picture in pictures}
    shared = {"study": results.study, "results": results, "variants": variants}
    templates = environment()
    bodies = {
        section: Markup(
            templates.get_template(f"sections/{section.name}.html").render(
                **shared,
                **section.context(results),
                pictures=[by_name[name] for name in section.figures],
            )
        )
        for section in SECTIONS
    }
    return templates.get_template("page.html").render(**shared, sections=bodies)


def pretty(value: Any) -> str:
    """Indented JSON text."""
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True, default=str)


def compact(value: Any) -> str:
    """JSON text on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


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
        "--output", type=Path, help="the page (default: report.html in the results)"
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
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    write_text(options.output or options.results / "report.html", page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
