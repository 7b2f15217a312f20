"""Time phrases: what goes with which tense."""

from functools import cache

from transformer_core.data.grammar.numerals import clock_times, dates, months, years
from transformer_core.data.grammar.verbs import Tense

ADVERBS = [
    ("often", "oft"),
    ("always", "immer"),
    ("never", "nie"),
    ("sometimes", "manchmal"),
    ("rarely", "selten"),
]
"""Adverbs of frequency: before the English verb, in the place of the German time phrase."""

_WEEKDAYS = [
    ("Monday", "Montag"),
    ("Tuesday", "Dienstag"),
    ("Wednesday", "Mittwoch"),
    ("Thursday", "Donnerstag"),
    ("Friday", "Freitag"),
    ("Saturday", "Samstag"),
    ("Sunday", "Sonntag"),
]
_SPANS = [
    (f"{english} {unit}", f"{german} {einheit}")
    for english, german in zip(
        ["two", "three", "four", "five", "six"],
        ["zwei", "drei", "vier", "fünf", "sechs"],
        strict=True,
    )
    for unit, einheit in [
        ("days", "Tagen"),
        ("weeks", "Wochen"),
        ("months", "Monaten"),
        ("years", "Jahren"),
    ]
]


_HABIT = [
    ("every day", "jeden Tag"),
    ("every morning", "jeden Morgen"),
    ("every evening", "jeden Abend"),
    ("every week", "jede Woche"),
    ("at the weekend", "am Wochenende"),
    ("in summer", "im Sommer"),
    ("in winter", "im Winter"),
    ("twice a week", "zweimal pro Woche"),
    ("once a month", "einmal im Monat"),
    *((f"on {english}s", f"{german.lower()}s") for english, german in _WEEKDAYS),
]
_NOW = [("at the moment", "im Moment"), ("now", "jetzt"), ("", "gerade")]
_COMMON_PAST = [
    ("yesterday", "gestern"),
    ("last week", "letzte Woche"),
    ("last year", "letztes Jahr"),
    ("last summer", "letzten Sommer"),
    ("this morning", "heute Morgen"),
    ("yesterday evening", "gestern Abend"),
    ("yesterday morning", "gestern Morgen"),
]
_COMMON_FUTURE = [
    ("tomorrow", "morgen"),
    ("today", "heute"),
    ("tonight", "heute Abend"),
    ("soon", "bald"),
    ("next week", "nächste Woche"),
    ("next year", "nächstes Jahr"),
    ("tomorrow morning", "morgen früh"),
    ("tomorrow evening", "morgen Abend"),
]


@cache
def times() -> dict[Tense, list[tuple[str, str]]]:
    """Time phrases by tense; what is listed more than once is drawn more often."""
    on_weekday = [(f"on {english}", f"am {german}") for english, german in _WEEKDAYS]
    past = [
        *_COMMON_PAST * 4,
        *((f"{english} ago", f"vor {german}") for english, german in _SPANS),
        *on_weekday * 2,
        *months() * 2,
        *dates()[::7],
        *years()[50::4],
    ]
    future = [
        *_COMMON_FUTURE * 4,
        *((f"in {english}", f"in {german}") for english, german in _SPANS),
        *on_weekday * 2,
        *clock_times(),
        *dates()[3::9],
    ]
    return {"habit": _HABIT, "now": _NOW, "past": past, "future": future, "modal": future}
