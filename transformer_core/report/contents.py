"""The report's contents: its sections, figures and tables, in the order of the page.

A section has a template in ``sections/``, its Korean in a catalog of the same name (``.po``) and, if
the template needs more than the study and the results, a module of the same name with only what it
needs of:

- ``context(results)``: what the template finds beside them;
- ``draw_NAME(results)`` for each of its figures, which the template finds as ``pictures``;
- ``NAME_rows(results)`` for each of its tables.

This module imports none of them before they are needed: Snakemake reads the names at every start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_core.decide.study_results import StudyResults
    from transformer_core.report.kit.drawing import Drawing

Row = Mapping[str, Any]

_PACKAGE = f"{__package__}.sections"


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    name: str
    """Name of its module and template, and its anchor in the page."""
    heading: str
    figures: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    under: str | None = None
    """The section whose question it continues; null for one with a question of its own."""
    task: str | None = None
    """The kind of task that it is about; null for all."""
    drawn_in: str | None = None
    """The module of its figures, if they have one of their own."""

    @property
    def template(self) -> str:
        """Path of its template."""
        return f"sections/{self.name}.html"

    def context(self, results: "StudyResults") -> dict[str, Any]:
        """What the template needs beside the study and the results."""
        module = f"{_PACKAGE}.{self.name}"
        if find_spec(module) is None:
            return {}
        context = getattr(import_module(module), "context", None)
        made: dict[str, Any] = context(results) if context else {}
        return made

    def draw(self, figure: str, results: "StudyResults") -> "Drawing":
        """One of its figures."""
        module = import_module(f"{_PACKAGE}.{self.drawn_in or self.name}")
        drawing: Drawing = getattr(module, f"draw_{figure}")(results)
        return drawing

    def rows(self, table: str, results: "StudyResults") -> Sequence[Row]:
        """One of its tables."""
        module = import_module(f"{_PACKAGE}.{self.name}")
        found: Sequence[Row] = getattr(module, f"{table}_rows")(results)
        return found


SECTIONS = (
    Section("answer", "The answer", figures=("waterfall",)),
    Section("claims", "Which claims of the original study hold here?", tables=("claims",)),
    Section("tried", "What makes training faster?", figures=("speedup",)),
    Section(
        "variants",
        "All variants in numbers",
        figures=("throughput", "drift"),
        tables=("variants",),
        under="tried",
    ),
    Section(
        "families",
        "Sweeps of one number",
        figures=("families", "family_costs"),
        tables=("families",),
        under="tried",
    ),
    Section(
        "profiles",
        "What the devices do in a step",
        figures=(
            "profile_partition",
            "profile_communication",
            "profile_timelines",
            "operator_roofline",
        ),
        drawn_in="profile_figures",
        tables=("profiles", "operators"),
        under="tried",
    ),
    Section(
        "why",
        "Why is it faster?",
        figures=("differences",),
        tables=("differences",),
        under="tried",
    ),
    Section(
        "layers",
        "Which layers take the time?",
        figures=("layer_tree",),
        tables=("layers", "shapes"),
        under="tried",
    ),
    Section("headroom", "Where is the limit?", under="tried"),
    Section(
        "quality",
        "How soon does it translate well?",
        figures=("quality",),
        task="translation",
    ),
    Section(
        "memory",
        "Where does the memory go?",
        figures=(
            "memory_anatomy",
            "memory",
            "memory_milestones",
            "memory_step",
            "memory_imbalance",
            "memory_prediction",
        ),
        drawn_in="memory_figures",
        tables=("memory", "memory_milestones", "largest_batch"),
    ),
    Section(
        "equivalence",
        "Does it train the same model?",
        figures=("equivalence", "training_loss", "validation_loss"),
        tables=("equivalence",),
    ),
    Section("translations", "Translations", under="equivalence", task="translation"),
    Section("continuations", "Continuations", under="equivalence", task="language_model"),
    Section(
        "scaling",
        "What do more devices and slow links do?",
        figures=("scaling", "link_error", "bucket_sizes", "projection_check"),
    ),
    Section(
        "corpus",
        "What data is it trained on?",
        figures=("lengths_tokens", "lengths_characters"),
        tables=("corpus",),
    ),
    Section("techniques", "Technique by technique"),
    Section("details", "Variants in detail"),
    Section("limits", "What this machine could not do"),
    Section(
        "machine", "Machine", figures=("utilisation", "collective_bandwidth"), tables=("machine",)
    ),
    Section("method", "How it was measured"),
)
"""In the order of a reader's questions; how it was measured, and on what, at the end."""

FIGURES = {figure: section for section in SECTIONS for figure in section.figures}
"""The section of each figure, by the name of its file."""

TABLES = {table: section for section in SECTIONS for table in section.tables}
"""The section of each table, likewise."""
