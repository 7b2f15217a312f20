"""The report of a study: figures, tables, one self-contained page, and the answer for a pull request
(report.md) and for programs (summary.json).

The page needs no script, no network and no other file. Its sections are in
:mod:`transformer_core.report.contents`.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from schemas.results import Answer, AnswerVariant
from transformer_core.certify.bounds import WORDS, nearest
from transformer_core.common.digests import write_result
from transformer_core.common.endings import reproducing_command
from transformer_core.common.job import Job
from transformer_core.common.markdown import cell
from transformer_core.common.percent import percent
from transformer_core.common.pools import end_with_maker
from transformer_core.common.progress import log
from transformer_core.common.yaml_files import as_yaml
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import FIGURES, SECTIONS, Section
from transformer_core.report.kit import language, palette, svg
from transformer_core.report.kit.drawing import to_svg
from transformer_core.report.kit.formats import (
    FILTERS,
    Numbers,
    plain_duration,
    plain_ratio_interval,
    technique,
)
from transformer_core.report.sections.answer import read_answer
from transformer_core.report.tables import write_tables


def _templates(**options: Any) -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        **options,
    )
    made.filters |= {"yaml": as_yaml, "technique": technique}
    return made


@cache
def environment() -> Environment:
    """The HTML templates; they escape all text, whether from a configuration or a corpus."""
    made = _templates(autoescape=True, extensions=["jinja2.ext.i18n"])
    made.policies["ext.i18n.trimmed"] = True
    made.install_gettext_callables(  # type: ignore[attr-defined]
        language.gettext, language.ngettext, newstyle=True
    )
    made.globals |= {"shades": palette.declarations, "words": WORDS, "nearest": nearest}
    made.globals["training_again"] = training_again
    made.filters |= FILTERS | {
        "compact": partial(json.dumps, ensure_ascii=False, default=str),
        "numbers": Numbers,
    }
    return made


def training_again(variant: str) -> str:
    """The command that trains a variant once more; without --forcerun, nothing is to be done."""
    command = reproducing_command(f"results/runs/{variant}/metrics.json")
    return f"{command} --forcerun train train_again"


def fill(template: str, **values: Any) -> str:
    return svg.in_xml(environment().get_template(template).render(**values))


def body(
    section: Section, results: StudyResults, answer: Answer, pictures: Mapping[str, svg.Picture]
) -> Markup:
    """The HTML of a section, with its figures from ``pictures``, by name."""
    html = fill(
        f"sections/{section.name}.html",
        study=results.study,
        results=results,
        variants=results.definitions,
        answer=answer,
        changes={variant.variant: variant.changes for variant in answer.variants},
        by_name=pictures,
        pictures=[pictures[name] for name in section.figures],
        **section.context(results),
    )
    return Markup(html)


def render(results: StudyResults, answer: Answer, pictures: Mapping[str, svg.Picture]) -> str:
    bodies = {
        section: body(section, results, answer, pictures)
        for section in SECTIONS
        if section.task in (None, results.study.task.kind)
    }
    return fill(
        "kit/page.html",
        study=results.study,
        results=results,
        variants=results.definitions,
        sections=bodies,
    )


SHOWN = 3  # unfinished variants named at the end
VERDICTS = {
    "REPRODUCED": "confirmed here",
    "PARTLY": "confirmed in part",
    "REFUTED": "contradicted here",
    "UNDECIDED": "undecided",
    "NOT_TESTABLE": "not testable here",
}
"""Verdicts on claims, in words."""


def brief(answer: Answer) -> str:
    """The answer on one page of Markdown."""
    # HTML escaping does not suit Markdown: foreign texts go through the filter cell.
    made = _templates(autoescape=False, keep_trailing_newline=True)
    made.filters |= {
        "cell": cell,
        "ratio_interval": plain_ratio_interval,
        "duration": plain_duration,
        "percent": percent,
        "minutes": lambda seconds: f"{seconds / 60:.0f}min",
        "words": lambda status: status.replace("_", " "),
    }
    ordered = sorted(answer.variants, key=lambda v: -(v.speedup.median if v.speedup else 0.0))
    return made.get_template("brief.md").render(
        answer=answer,
        names={variant.variant for variant in answer.variants},
        variants=[(variant, _said(variant, answer.baseline)) for variant in ordered],
        claims={
            words: [c.claim for c in answer.claims if c.verdict == verdict]
            for verdict, words in VERDICTS.items()
        },
    )


def _said(variant: AnswerVariant, baseline: str) -> str:
    """The verdict on a variant, in a word or two."""
    if variant.variant == baseline:
        return "baseline"
    if variant.status != "ok":
        return variant.status
    if variant.speedup is None:
        return "not compared"
    return str(variant.verdict) if variant.counts else "not counted"


def write_page(results: StudyResults) -> None:
    """Write report.md, summary.json and report.html, with the figures from its folder. The log names the
    first variants that did not finish."""
    folder, answer = results.folder, read_answer(results)
    pictures = {name: svg.read(folder / f"figures/{name}.svg") for name in FIGURES}
    texts = {
        "summary.json": answer.model_dump_json(indent=1) + "\n",
        "report.md": brief(answer),
        "report.html": render(results, answer, pictures),
    }
    for name, text in texts.items():
        write_result(folder / name, text, made_from=None)
    for variant in [each for each in answer.variants if each.status != "ok"][:SHOWN]:
        why = " ".join((variant.reason or "the log may say why").split())
        log.warning("%s did not finish (%s): %s", variant.variant, variant.status, why)


def draw(name: str, results: StudyResults) -> str:
    return to_svg(name, lambda: FIGURES[name].draw(name, results))


def draw_all(results: StudyResults, folder: Path, processes: int = 1) -> None:
    """Write every figure into ``folder``. Layout takes most of the time, so ``processes`` share the
    figures; they are forks of this process, which has already imported the drawing libraries."""
    shares = [[*FIGURES][first::processes] for first in range(processes)]
    write = partial(_write, results, folder)
    if processes == 1:
        write(shares[0])
        return
    with ProcessPoolExecutor(processes, get_context("fork"), end_with_maker) as workers:
        list(workers.map(write, shares))


def _write(results: StudyResults, folder: Path, names: Sequence[str]) -> None:
    for name in names:
        write_result(folder / f"{name}.svg", draw(name, results), made_from=None)


class ReportJob(Job):
    """Writes the report of a study: figures, tables and pages."""

    kind = "report"

    results: Path = Path("results")  # the folder of the results
    processes: int = 1  # processes that draw the figures

    def run(self, log_file: Path | None) -> None:
        results = StudyResults(self.results)
        # Before anything is read, so that the forked processes stay small.
        draw_all(results, self.results / "figures", self.processes)
        write_tables(results, self.results / "tables")
        write_page(results)
