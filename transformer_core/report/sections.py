"""The sections of the page, in order. Each is a template of its own in templates/sections."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformer_core.analysis import compare, equivalence, medians
from transformer_core.measure import pairs
from transformer_core.report.claims_section import claims_context, families_context
from transformer_core.report.inputs import Results
from transformer_core.report.machine_section import machine_context
from transformer_core.report.memory_section import memory_context
from transformer_core.report.profile_section import profiles_context
from transformer_core.report.scaling_section import scaling_context
from transformer_core.report.search_section import recommendation
from transformer_core.report.summary import summarise, translations
from transformer_core.report.techniques import shown_techniques

Context = Callable[[Results], dict[str, Any]]
"""What a template needs beside the study, the results and the variants."""


def _nothing(results: Results) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    name: str
    """Name of its template, and its anchor in the page."""
    heading: str
    figures: tuple[str, ...] = ()
    """Names of its figures; the template finds them as ``pictures``."""
    context: Context = _nothing


def _summary(results: Results) -> dict[str, Any]:
    return {"summary": summarise(results)}


def _equivalence(results: Results) -> dict[str, Any]:
    return {"words": equivalence.WORDS}


def _translations(results: Results) -> dict[str, Any]:
    return {"samples": translations(results)}


def _statistics(results: Results) -> dict[str, Any]:
    return {
        "confidence": medians.CONFIDENCE,
        "resamples": medians.RESAMPLES,
        "fewest_samples": medians.FEWEST_SAMPLES,
        "input_wait_limit": compare.INPUT_WAIT_LIMIT,
        "trim": pairs.TRIM,
    }


SECTIONS = (
    Section("claims", "Which claims of the original study hold here?", context=claims_context),
    Section("recommendation", "Recommendation", figures=("waterfall",), context=recommendation),
    Section("summary", "Summary", context=_summary),
    Section("variants", "Variants", context=_statistics),
    Section(
        "equivalence",
        "Does it train the same model?",
        figures=("equivalence",),
        context=_equivalence,
    ),
    Section(
        "figures",
        "Figures",
        figures=("throughput", "speedup", "training_loss", "validation_loss", "memory", "drift"),
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
        context=profiles_context,
    ),
    Section(
        "memory",
        "Where the memory goes",
        figures=(
            "memory_milestones",
            "memory_step",
            "memory_anatomy",
            "memory_imbalance",
            "memory_prediction",
        ),
        context=memory_context,
    ),
    Section(
        "families",
        "Sweeps of one number",
        figures=("families", "family_costs"),
        context=families_context,
    ),
    Section(
        "scaling",
        "Slow links and more devices",
        figures=("link_error", "scaling", "bucket_sizes", "projection_check"),
        context=scaling_context,
    ),
    Section("techniques", "Technique by technique", context=shown_techniques),
    Section("translations", "Translations", context=_translations),
    Section("corpus", "Corpus", figures=("lengths_characters", "lengths_tokens")),
    Section(
        "machine",
        "Machine",
        figures=("collective_bandwidth", "utilisation"),
        context=machine_context,
    ),
    Section("method", "How it was measured", context=_statistics),
    Section("limits", "What this machine could not do"),
    Section("details", "Variants in detail"),
)
