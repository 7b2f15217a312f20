"""The table of sentence patterns: each draws its words and gives an English-German pair.

The first letter of a pair is small unless it is always capital.
"""

from collections.abc import Callable
from functools import cache

from transformer_core.data.grammar import compound, descriptions, numeric_patterns, simple
from transformer_core.data.grammar.phrases import Random

Pattern = Callable[[Random], tuple[str, str]]

_WEIGHTS: dict[Pattern, int] = {
    simple.statement: 14,
    simple.fronted: 10,
    simple.question: 6,
    simple.open_question: 3,
    simple.who_question: 2,
    compound.reason: 6,
    compound.reason_first: 4,
    compound.condition: 4,
    compound.before: 3,
    compound.meanwhile: 3,
    compound.coordination: 6,
    compound.two_predicates: 4,
    compound.that_clause: 6,
    compound.whether_clause: 3,
    compound.infinitive: 4,
    compound.purpose: 4,
    compound.relative_subject: 6,
    compound.relative_object: 5,
    compound.relative_reason: 2,
    simple.request: 3,
    simple.speech: 4,
    descriptions.description: 5,
    descriptions.comparison: 3,
    descriptions.came_home: 2,
    descriptions.passive: 4,
    numeric_patterns.price: 4,
    numeric_patterns.age: 1,
    numeric_patterns.birth: 1,
    numeric_patterns.distance: 1,
    numeric_patterns.duration: 2,
    numeric_patterns.inhabitants: 1,
    numeric_patterns.share: 2,
    numeric_patterns.stock: 3,
    numeric_patterns.train: 2,
}


@cache
def pattern_table() -> list[Pattern]:
    """Every pattern as often as its weight."""
    return [pattern for pattern, weight in _WEIGHTS.items() for _ in range(weight)]
