"""The techniques of the study, each with the variants that show its effect here.

Names, paragraphs and diagrams are in techniques.yaml, in both languages; a variant lists its
techniques in ``tests``.
"""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit.language import both


@cache
def techniques() -> dict[str, dict[str, Any]]:
    """All techniques by their id, in order: ``title`` and ``text`` by language, and the name of a
    ``diagram``."""
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def context(results: StudyResults) -> dict[str, Any]:
    """Techniques with their variants in the study, and those without any."""
    shown = [
        {
            "id": name,
            **told,
            "variants": [v for v in results.variants if name in results.definitions[v].tests],
        }
        for name, told in techniques().items()
    ]
    return {
        "techniques": [item for item in shown if item["variants"]],
        "absent": [item for item in shown if not item["variants"]],
        "both": lambda text: both(text["en"], text["ko"]),
    }
