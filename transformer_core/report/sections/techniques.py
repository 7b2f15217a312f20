"""The techniques of the study, each with the variants that show its effect here.

Names, paragraphs and diagrams are in techniques.yaml, in both languages; a variant says in its
``tests`` which techniques it bears on.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup
from pydantic import TypeAdapter

from schemas.base import Schema
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit.language import both

FILE = Path(__file__).parent / "techniques.yaml"


class Text(Schema):
    """A text of this project in its two languages, as HTML."""

    en: str  # english
    ko: str  # korean

    @property
    def both(self) -> Markup:
        """Both, of which the page shows one."""
        return both(self.en, self.ko)


class Technique(Schema):
    """The text on a technique, independent of any measurement."""

    title: Text  # its usual name
    diagram: str  # name of a template in templates/diagrams
    text: Text  # its description in one paragraph


@dataclass(frozen=True)
class Shown:
    """A technique with its variants in the study, in the order of the study."""

    id: str
    technique: Technique
    variants: list[str]


@cache
def techniques() -> dict[str, Technique]:
    """All techniques by their id, in order."""
    texts = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return TypeAdapter(dict[str, Technique]).validate_python(texts)


def context(results: StudyResults) -> dict[str, Any]:
    """Techniques of which the study runs a variant, and the others."""
    shown = [
        Shown(
            name,
            technique,
            [variant for variant in results.variants if name in results.definitions[variant].tests],
        )
        for name, technique in techniques().items()
    ]
    return {
        "techniques": [item for item in shown if item.variants],
        "absent": [item for item in shown if not item.variants],
    }
