"""The answer as Markdown of one page, for a pull request: results/report.md."""

from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from schemas.results import Answer, AnswerVariant
from transformer_core.report.kit.formats import plain_duration, plain_ratio_interval, technique

VERDICTS = {
    "REPRODUCED": "hold here",
    "PARTLY": "hold partly",
    "REFUTED": "do not hold here",
    "UNDECIDED": "undecided",
    "NOT_TESTABLE": "not testable here",
}
"""Verdicts on claims in words."""


def templates(**options: Any) -> Environment:
    """The templates beside this module."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        **options,
    )


def brief(answer: Answer) -> str:
    # Markdown is not HTML: foreign texts go through the filter cell.
    made = templates(autoescape=False, keep_trailing_newline=True)
    made.filters |= {
        "cell": cell,
        "technique": technique,
        "ratio_interval": plain_ratio_interval,
        "duration": plain_duration,
        "minutes": lambda seconds: f"{seconds / 60:.0f}min",
        "yaml": as_yaml,
        "words": lambda status: status.replace("_", " "),
    }
    ordered = sorted(answer.variants, key=lambda v: -(v.speedup.median if v.speedup else 0.0))
    return made.get_template("brief.md").render(
        answer=answer,
        names={variant.variant for variant in answer.variants},
        variants=[(variant, said(variant, answer.baseline)) for variant in ordered],
        claims={
            words: [c.claim for c in answer.claims if c.verdict == verdict]
            for verdict, words in VERDICTS.items()
        },
    )


def said(variant: AnswerVariant, baseline: str) -> str:
    """The verdict on a variant in a word or two."""
    if variant.variant == baseline:
        return "baseline"
    if variant.status != "ok":
        return variant.status
    if variant.speedup is None:
        return "not compared"
    return str(variant.verdict) if variant.counts else "not counted"


def as_yaml(settings: dict[str, Any]) -> str:
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def cell(text: str) -> str:
    """Foreign text on one line, escaped for Markdown and HTML."""
    line = " ".join(text.split())
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#&" else sign for sign in line)
