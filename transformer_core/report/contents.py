"""The report's contents: its sections, figures and tables, in the order of the page.

A section has a template in ``sections/``. If needed, a module there has, for one section or several:

- ``SECTION_context(results)``: values for the template besides the study and the results;
- ``draw_FIGURE(results)`` for each of its figures, which the template gets as ``pictures``.

Tables are separate files: :mod:`transformer_core.report.tables`. Snakemake reads these names
at every start, so this module imports the others only when they are needed.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_core.decide.study_results import StudyResults
    from transformer_core.report.kit.drawing import Drawing


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    name: str  # name of its template, and its anchor in the page
    heading: str
    module: str | None = None  # module with its context and figures; null if it has neither
    figures: tuple[str, ...] = ()
    task: str | None = None  # the kind of task that it applies to; null for all
    closed: bool = True  # whether the page shows only its heading at first

    def context(self, results: "StudyResults") -> dict[str, Any]:
        """Values that the template needs besides the study and the results."""
        context = self._function(f"{self.name}_context")
        return context(results) if context else {}

    def draw(self, figure: str, results: "StudyResults") -> "Drawing":
        return self._function(f"draw_{figure}")(results)

    def _function(self, name: str) -> Any:
        module = self.module and import_module(f"{__package__}.sections.{self.module}")
        return getattr(module, name, None)


SECTIONS = (
    Section("answer", "The answer", "answer", ("waterfall",), closed=False),
    Section("todo", "What to do", closed=False),
    Section("why", "Why is it faster?", "why", ("differences",), closed=False),
    Section(
        "equivalence",
        "Does it train the same model?",
        "equivalence",
        ("equivalence", "training_loss", "validation_loss"),
        closed=False,
    ),
    Section(
        "memory",
        "What does it cost in memory?",
        "memory",
        (
            *("memory_anatomy", "memory", "memory_milestones", "memory_step"),
            *("memory_imbalance", "memory_prediction"),
        ),
        closed=False,
    ),
    Section("tried", "What was tried?", "variants", ("speedup",), closed=False),
    Section("variants", "All variants in numbers", "variants", ("throughput", "drift")),
    Section("details", "Variants in detail"),
    Section("techniques", "Technique by technique", "variants"),
    Section("families", "Sweeps of one number", "variants", ("families", "family_costs")),
    Section("claims", "Which claims hold here?"),
    Section(
        "profiles",
        "What do the devices do in a step?",
        "profiles",
        (*("profile_partition", "profile_communication", "profile_timelines"), "operator_roofline"),
    ),
    Section("layers", "Which layers take the time?", "layers", ("layer_tree",)),
    Section("headroom", "Where is the limit?", "machine"),
    Section("quality", "How soon does it reach the same quality?", "quality", ("quality",)),
    Section("translations", "Translations", "quality", task="translation"),
    Section("continuations", "Continuations", "quality", task="language_model"),
    Section(
        "scaling",
        "What do more devices and slow links do?",
        "scaling",
        ("scaling", "link_error", "bucket_sizes", "projection_check"),
    ),
    Section(
        "corpus", "What data is it trained on?", "corpus", ("lengths_tokens", "lengths_characters")
    ),
    Section("limits", "What could this machine not do?"),
    Section(
        "machine",
        "What can this machine do?",
        "machine",
        ("utilisation", "collective_bandwidth"),
    ),
    Section("method", "How was it measured?", "machine"),
)
"""In the order of a reader's questions: the answer and its reasons, then, closed, all else."""

FIGURES = {figure: section for section in SECTIONS for figure in section.figures}
"""The section of each figure, by its name."""

TABLES = (
    *("variants", "equivalence", "families", "claims", "corpus", "machine", "differences"),
    *("profiles", "operators", "layers", "shapes", "memory", "memory_milestones", "largest_batch"),
)
"""The tables, in files next to the page."""
