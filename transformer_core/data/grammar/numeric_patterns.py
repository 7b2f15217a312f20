"""Patterns with numbers: prices, ages, dates, distances, quantities and times of day."""

from transformer_core.data.grammar.inflection import definite_phrases
from transformer_core.data.grammar.nouns import ANIMALS, FOOD, GOODS, MACHINES, PERSONS, WRITINGS
from transformer_core.data.grammar.numerals import (
    clock_times,
    counts,
    dates,
    decimal,
    english_number,
    german_number,
    grouped,
)
from transformer_core.data.grammar.phrases import Random, cities, pick, pick_subject
from transformer_core.data.grammar.proper_names import CITIES, PLACES

Pair = tuple[str, str]

_BE = ("am", "are", "is", "are", "are")
_BIN = ("bin", "bist", "ist", "sind", "sind")
_WAS = ("was", "were", "was", "were", "were")
_WURDE = ("wurde", "wurdest", "wurde", "wurden", "wurden")
_HAVE = ("have", "have", "has", "have", "have")
_HABEN = ("habe", "hast", "hat", "haben", "haben")
_WOHNEN = ("wohne", "wohnst", "wohnt", "wohnen", "wohnen")
_UNITS = [
    ("days", "Tage", "Tagen"),
    ("weeks", "Wochen", "Wochen"),
    ("months", "Monate", "Monaten"),
    ("years", "Jahre", "Jahren"),
]
_SURFACES = [
    ("on the table", "auf dem Tisch"),
    ("on the floor", "auf dem Boden"),
    ("on the bed", "auf dem Bett"),
    ("in the box", "in der Kiste"),
    ("in the suitcase", "im Koffer"),
    ("in the cupboard", "im Schrank"),
]
_OWNED = GOODS + MACHINES + WRITINGS + ANIMALS


def _below(random: Random, low: int, high: int) -> int:
    """A whole number from ``low`` up to, not including, ``high``."""
    return low + int(random() * (high - low))


def _count_to_twelve(random: Random) -> Pair:
    number = _below(random, 2, 13)
    return english_number(number), german_number(number)


def _amount(random: Random, group: str) -> Pair:
    """What something of that group may cost, in euros."""
    if group == "buildings":
        return grouped(_below(random, 80, 3_000) * 1_000)
    if group == "food":
        return decimal(_below(random, 20, 399) * 5)
    if group == "machines" and random() < 0.5:
        return grouped(_below(random, 10, 500) * 100)
    return pick(random, counts())


def price(random: Random) -> Pair:
    """The car costs 12,500 euros."""
    group = pick(random, ("goods", "machines", "writings", "food", "buildings"))
    english, german, gender = pick(random, definite_phrases(group, "nominative"))
    amount, betrag = _amount(random, group)
    many = gender == "p"
    if random() < 0.3:
        has = "haben" if many else "hat"
        return f"{english} cost {amount} euros.", f"{german} {has} {betrag} Euro gekostet."
    costs, kostet = ("cost", "kosten") if many else ("costs", "kostet")
    each, je = (" each", "je ") if many and random() < 0.5 else ("", "")
    now, jetzt = ("now ", "jetzt ") if random() < 0.3 else ("", "")
    return (
        f"{english} {now}{costs} {amount} euros{each}.",
        f"{german} {kostet} {jetzt}{je}{betrag} Euro.",
    )


def age(random: Random) -> Pair:
    """Anna is twenty-one years old."""
    english, german, person = pick_subject(random)
    number = _below(random, 2, 100)
    return (
        f"{english} {_BE[person]} {english_number(number)} years old.",
        f"{german} {_BIN[person]} {german_number(number)} Jahre alt.",
    )


def birth(random: Random) -> Pair:
    """Anna was born in Berlin on 3 May 1987."""
    english, german, person = pick_subject(random)
    (day, tag), year = pick(random, dates()), _below(random, 1900, 2021)
    city = pick(random, cities())
    return (
        f"{english} {_WAS[person]} born in {city[0][3:]} {day} {year}.",
        f"{german} {_WURDE[person]} {tag} {year} {city[1]} geboren.",
    )


def _two_cities(random: Random) -> tuple[Pair, Pair]:
    start, end = int(random() * len(CITIES)), int(random() * (len(CITIES) - 1))
    return CITIES[start], CITIES[end + (end >= start)]


def distance(random: Random) -> Pair:
    """It is 585 kilometres from Berlin to Munich."""
    start, end = _two_cities(random)
    english, german = grouped(_below(random, 80, 9_000))
    return (
        f"it is {english} kilometres from {start[0]} to {end[0]}.",
        f"von {start[1]} nach {end[1]} sind es {german} Kilometer.",
    )


def duration(random: Random) -> Pair:
    """Anna has been living in Berlin for six years: the present tense in German."""
    number, zahl = _count_to_twelve(random)
    if random() < 0.4:
        start, end = _two_cities(random)
        return (
            f"the journey from {start[0]} to {end[0]} takes {number} hours.",
            f"die Reise von {start[1]} nach {end[1]} dauert {zahl} Stunden.",
        )
    english, german, person = pick_subject(random)
    city, stadt = pick(random, cities())[:2]
    unit, accusative, dative = pick(random, _UNITS)
    if random() < 0.6:
        return (
            f"{english} {_HAVE[person]} been living {city} for {number} {unit}.",
            f"{german} {_WOHNEN[person]} seit {zahl} {dative} {stadt}.",
        )
    return (
        f"{english} worked {city} for {number} {unit}.",
        f"{german} {_HABEN[person]} {zahl} {accusative} lang {stadt} gearbeitet.",
    )


def inhabitants(random: Random) -> Pair:
    """About 350,000 people live in Bern: the place comes first in German."""
    city, stadt = pick(random, cities())[:2]
    english, german = grouped(_below(random, 90, 9_000) * 1_000)
    return f"about {english} people live {city}.", f"{stadt} leben etwa {german} Menschen."


def share(random: Random) -> Pair:
    """27.5 per cent of the teachers work in Berlin."""
    noun = pick(random, PERSONS)
    city, stadt = pick(random, cities())[:2]
    live, leben = pick(random, (("live", "leben"), ("work", "arbeiten"), ("sleep", "schlafen")))
    number = f"{_below(random, 2, 99)}.{_below(random, 1, 10)}"
    if random() < 0.5:
        number = str(_below(random, 2, 99))
    return (
        f"{number} per cent of the {noun.english_plural} {live} {city}.",
        f"{number.replace('.', ',')} Prozent der {noun.german_plural} {leben} {stadt}.",
    )


def stock(random: Random) -> Pair:
    """There are twenty-one books on the table; Anna has three hundred books."""
    number, zahl = pick(random, counts())
    kind = random()
    if kind < 0.4:
        noun = pick(random, WRITINGS + FOOD)
        place, ort = pick(random, _SURFACES)
        return (
            f"there are {number} {noun.english_plural} {place}.",
            f"{ort} liegen {zahl} {noun.german_plural}.",
        )
    if kind < 0.7:
        noun = pick(random, ANIMALS + PERSONS)
        place, ort = pick(random, PLACES)
        return (
            f"there are {number} {noun.english_plural} {place}.",
            f"{ort} gibt es {zahl} {noun.german_plural}.",
        )
    english, german, person = pick_subject(random)
    noun = pick(random, _OWNED)
    return (
        f"{english} {_HAVE[person]} {number} {noun.english_plural}.",
        f"{german} {_HABEN[person]} {zahl} {noun.german_plural}.",
    )


def train(random: Random) -> Pair:
    """The train to Berlin departs at half past eight from platform 7."""
    english, german = pick(random, CITIES)
    time, zeit = pick(random, clock_times())
    platform = _below(random, 1, 25)
    return (
        f"the train to {english} departs {time} from platform {platform}.",
        f"der Zug nach {german} fährt {zeit} von Gleis {platform} ab.",
    )
