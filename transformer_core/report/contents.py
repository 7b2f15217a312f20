"""The report's contents: its sections, figures and tables, in the order of the page.

A section has a template in ``sections/`` and, under the same name, a catalog of its Korean (``.po``)
and, if needed, a module with:

- ``context(results)``: values for the template besides the study and the results;
- ``draw_NAME(results)`` for each of its figures, which the template gets as ``pictures``.

Tables are separate files: :mod:`transformer_core.report.tables`. Snakemake reads these names
at every start, so this module imports the others only when they are needed.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_core.decide.study_results import StudyResults
    from transformer_core.report.kit.drawing import Drawing

_PACKAGE = f"{__package__}.sections"


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    name: str  # name of its module and template, and its anchor in the page
    heading: str
    figures: tuple[str, ...] = ()
    task: str | None = None  # the kind of task that it applies to; null for all
    drawn_in: str | None = None  # the module that draws its figures; null for its own
    closed: bool = True  # whether the page shows only its heading at first

    @property
    def template(self) -> str:
        return f"sections/{self.name}.html"

    def context(self, results: "StudyResults") -> dict[str, Any]:
        """Values that the template needs besides the study and the results."""
        module = f"{_PACKAGE}.{self.name}"
        if find_spec(module) is None:
            return {}
        context = getattr(import_module(module), "context", None)
        return context(results) if context else {}

    def draw(self, figure: str, results: "StudyResults") -> "Drawing":
        module = import_module(f"{_PACKAGE}.{self.drawn_in or self.name}")
        return getattr(module, f"draw_{figure}")(results)


SECTIONS = (
    Section("answer", "The answer", ("waterfall",), closed=False),
    Section("todo", "What to do", closed=False),
    Section("why", "Why is it faster?", ("differences",), closed=False),
    Section(
        "equivalence",
        "Does it train the same model?",
        ("equivalence", "training_loss", "validation_loss"),
        closed=False,
    ),
    Section(
        "memory",
        "What does it cost in memory?",
        (
            *("memory_anatomy", "memory", "memory_milestones", "memory_step"),
            *("memory_imbalance", "memory_prediction"),
        ),
        drawn_in="memory_figures",
        closed=False,
    ),
    Section("tried", "What was tried?", ("speedup",), closed=False),
    Section("variants", "All variants in numbers", ("throughput", "drift")),
    Section("details", "Variants in detail"),
    Section("techniques", "Technique by technique"),
    Section("families", "Sweeps of one number", ("families", "family_costs")),
    Section("claims", "Which claims of the original study hold here?"),
    Section(
        "profiles",
        "What do the devices do in a step?",
        (*("profile_partition", "profile_communication", "profile_timelines"), "operator_roofline"),
        drawn_in="profile_figures",
    ),
    Section("layers", "Which layers take the time?", ("layer_tree",)),
    Section("headroom", "Where is the limit?"),
    Section("quality", "How soon does it reach the same quality?", ("quality",)),
    Section("translations", "Translations", task="translation"),
    Section("continuations", "Continuations", task="language_model"),
    Section(
        "scaling",
        "What do more devices and slow links do?",
        ("scaling", "link_error", "bucket_sizes", "projection_check"),
    ),
    Section("corpus", "What data is it trained on?", ("lengths_tokens", "lengths_characters")),
    Section("limits", "What could this machine not do?"),
    Section("machine", "What can this machine do?", ("utilisation", "collective_bandwidth")),
    Section("method", "How was it measured?"),
)
"""In the order of a reader's questions: the answer and its reasons, then, closed, all else."""

FIGURES = {figure: section for section in SECTIONS for figure in section.figures}
"""The section of each figure, by its name."""

TABLES = (
    *("variants", "equivalence", "families", "claims", "corpus", "machine", "differences"),
    *("profiles", "operators", "layers", "shapes", "memory", "memory_milestones", "largest_batch"),
)
"""The tables, in files next to the page."""
