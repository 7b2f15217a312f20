"""The report's contents: its sections, figures and tables, in the order of the page.

A section is a folder in ``sections/``, with only what it needs of:

- ``section.html``: its template, which finds the figures as ``pictures``;
- ``section.py``: ``context(results)``, what the template needs beside the study and the results;
- ``figures.py``: a function of the results for each figure, of its name;
- ``tables.py``: likewise for each table;
- ``read.py``: what these share;
- ``ko.po``: its words in Korean.

This module imports none of them before they are needed: whoever plans the work asks it for names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_core.decide.study_results import StudyResults
    from transformer_core.report.kit.drawing import Drawing

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    name: str
    """Name of its folder, and its anchor in the page."""
    heading: str
    figures: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    under: str | None = None
    """The section whose question it goes on with; null for one with a question of its own."""
    task: str | None = None
    """The kind of task that it is about; null for all."""

    def context(self, results: "StudyResults") -> dict[str, Any]:
        """What the template needs beside the study and the results."""
        if find_spec(self.module("section")) is None:
            return {}
        made: dict[str, Any] = self._load("section").context(results)
        return made

    def draw(self, figure: str, results: "StudyResults") -> "Drawing":
        """One of its figures."""
        drawing: Drawing = getattr(self._load("figures"), figure)(results)
        return drawing

    def rows(self, table: str, results: "StudyResults") -> Sequence[Row]:
        """One of its tables."""
        found: Sequence[Row] = getattr(self._load("tables"), table)(results)
        return found

    def module(self, kind: str) -> str:
        """Dotted name of its module ``section``, ``figures`` or ``tables``, there or not."""
        return f"{__package__}.sections.{self.name}.{kind}"

    def _load(self, kind: str) -> ModuleType:
        return import_module(self.module(kind))


SECTIONS = (
    Section("recommendation", "The answer", figures=("waterfall",)),
    Section("claims", "Which claims of the original study hold here?", tables=("claims",)),
    Section("summary", "What makes training faster?", figures=("speedup",)),
    Section(
        "variants",
        "All variants in numbers",
        figures=("throughput", "drift"),
        tables=("variants",),
        under="summary",
    ),
    Section(
        "families",
        "Sweeps of one number",
        figures=("families", "family_costs"),
        tables=("families",),
        under="summary",
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
        tables=("profiles", "operators"),
        under="summary",
    ),
    Section(
        "why",
        "Why is it faster?",
        figures=("differences",),
        tables=("differences",),
        under="summary",
    ),
    Section(
        "layers",
        "Which layers take the time?",
        figures=("layer_tree",),
        tables=("layers", "shapes"),
        under="summary",
    ),
    Section("headroom", "Where is the limit?", under="summary"),
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
