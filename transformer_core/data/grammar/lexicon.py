"""The lexicon by what words can be used for."""

from transformer_core.data.grammar.adjectives import (
    ANIMAL_ADJECTIVES,
    BUILDING_ADJECTIVES,
    DRINK_ADJECTIVES,
    FOOD_ADJECTIVES,
    MACHINE_ADJECTIVES,
    PERSON_ADJECTIVES,
    THING_ADJECTIVES,
    WRITING_ADJECTIVES,
    Adjective,
)
from transformer_core.data.grammar.nouns import (
    ANIMALS,
    BUILDINGS,
    DRINKS,
    FOOD,
    GOODS,
    MACHINES,
    OPENED,
    PERSONS,
    SWITCHED,
    WASHED,
    WRITINGS,
    Noun,
)

GROUPS: dict[str, tuple[list[Noun], list[Adjective]]] = {
    "persons": (PERSONS, PERSON_ADJECTIVES),
    "writings": (WRITINGS, WRITING_ADJECTIVES),
    "goods": (GOODS, THING_ADJECTIVES),
    "machines": (MACHINES, MACHINE_ADJECTIVES),
    "switched": (SWITCHED, MACHINE_ADJECTIVES),
    "opened": (OPENED, THING_ADJECTIVES),
    "washed": (WASHED, THING_ADJECTIVES),
    "food": (FOOD, FOOD_ADJECTIVES),
    "drinks": (DRINKS, DRINK_ADJECTIVES),
    "buildings": (BUILDINGS, BUILDING_ADJECTIVES),
    "animals": (ANIMALS, ANIMAL_ADJECTIVES),
}
"""What verbs take: nouns and the adjectives that go with them. Drinks have no plural."""
