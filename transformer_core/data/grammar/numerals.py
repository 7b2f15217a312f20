"""Numbers, dates and times of day as English and German write them."""

from functools import cache


def _split(text: str) -> list[str]:
    return text.split()


_SMALL_ENGLISH = _split("""
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
""")
_TENS_ENGLISH = _split("""
- - twenty thirty forty fifty sixty seventy eighty ninety
""")
_SMALL_GERMAN = _split("""
null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn
sechzehn siebzehn achtzehn neunzehn
""")
_TENS_GERMAN = _split("""
- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig
""")
_MONTHS = [
    ("January", "Januar"),
    ("February", "Februar"),
    ("March", "März"),
    ("April", "April"),
    ("May", "Mai"),
    ("June", "Juni"),
    ("July", "Juli"),
    ("August", "August"),
    ("September", "September"),
    ("October", "Oktober"),
    ("November", "November"),
    ("December", "Dezember"),
]


def english_number(number: int) -> str:
    """0 to 999 in English words, the British way (with and)."""
    if number >= 100:
        rest = f" and {english_number(number % 100)}" if number % 100 else ""
        return f"{_SMALL_ENGLISH[number // 100]} hundred{rest}"
    if number < 20:
        return _SMALL_ENGLISH[number]
    unit = f"-{_SMALL_ENGLISH[number % 10]}" if number % 10 else ""
    return _TENS_ENGLISH[number // 10] + unit


def german_number(number: int) -> str:
    """0 to 999 in German words: the unit before the ten (einundzwanzig)."""
    if number >= 100:
        hundreds = "ein" if number < 200 else _SMALL_GERMAN[number // 100]
        return f"{hundreds}hundert{german_number(number % 100) if number % 100 else ''}"
    if number < 20:
        return _SMALL_GERMAN[number]
    unit = number % 10
    before = f"{'ein' if unit == 1 else _SMALL_GERMAN[unit]}und" if unit else ""
    return before + _TENS_GERMAN[number // 10]


@cache
def counts() -> list[tuple[str, str]]:
    """Numbers in words that can count something, mostly below one hundred.

    Not those that end in one: they count with the forms of ein.
    """
    low = [*range(2, 100)] * 5
    high = [n for n in range(100, 1000) if n % 100 != 1]
    return [(english_number(n), german_number(n)) for n in low + high]


@cache
def clock_times() -> list[tuple[str, str]]:
    """Times of day with their prepositions: half past eight is halb neun."""
    found = []
    for hour in range(1, 13):
        following = hour % 12 + 1
        english, german = english_number(hour), german_number(hour)
        next_english, next_german = english_number(following), german_number(following)
        o_clock = "ein" if hour == 1 else german
        found += [
            (f"at {english} o'clock", f"um {o_clock} Uhr"),
            (f"at half past {english}", f"um halb {next_german}"),
            (f"at a quarter past {english}", f"um Viertel nach {german}"),
            (f"at a quarter to {next_english}", f"um Viertel vor {next_german}"),
            (f"at ten past {english}", f"um zehn nach {german}"),
        ]
    return found


@cache
def dates() -> list[tuple[str, str]]:
    """Days of the year: on 3 May is am 3. Mai."""
    return [
        (f"on {day} {english}", f"am {day}. {german}")
        for english, german in _MONTHS
        for day in range(1, 29)
    ]


@cache
def months() -> list[tuple[str, str]]:
    """In a month."""
    return [(f"in {english}", f"im {german}") for english, german in _MONTHS]


@cache
def years() -> list[tuple[str, str]]:
    """In a year: German needs no preposition."""
    return [(f"in {year}", f"{year}") for year in range(1900, 2026)]


def grouped(number: int) -> tuple[str, str]:
    """Digits in groups of three: 12,500 is 12.500."""
    english = f"{number:,}"
    return english, english.replace(",", ".")


def decimal(hundredths: int) -> tuple[str, str]:
    """Two decimal places: 3.50 is 3,50."""
    english = f"{hundredths // 100}.{hundredths % 100:02d}"
    return english, english.replace(".", ",")
