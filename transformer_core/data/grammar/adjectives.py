"""Adjectives of both languages, by what they can be said of."""

from typing import NamedTuple


class Adjective(NamedTuple):
    """An adjective; ``stem`` takes the German endings, comparatives are empty where unusual."""

    english: str
    stem: str
    german: str
    english_more: str
    german_more: str


def _adjectives(text: str) -> list[Adjective]:
    """Adjectives from lines of ``english [more] | german [more]``."""
    adjectives = []
    for line in text.strip().splitlines():
        english, german = (part.split(maxsplit=1) for part in line.split("|"))
        stem = {"teuer": "teur", "dunkel": "dunkl", "müde": "müd"}.get(german[0].strip())
        adjective = Adjective(
            english[0].strip(),
            stem or german[0].strip(),
            german[0].strip(),
            english[1].strip() if len(english) > 1 else "",
            german[1].strip() if len(german) > 1 else "",
        )
        adjectives.append(adjective)
    return adjectives


_SIZE = """
old older | alt älter
big bigger | groß größer
small smaller | klein kleiner
"""
_PRICE = """
new newer | neu neuer
expensive more expensive | teuer teurer
cheap cheaper | billig billiger
beautiful more beautiful | schön schöner
"""
_COLOURS = """
red | rot
blue | blau
green | grün
white | weiß
black | schwarz
yellow | gelb
"""

PERSON_ADJECTIVES = _adjectives("""
young younger | jung jünger
old older | alt älter
friendly friendlier | freundlich freundlicher
tired | müde
happy happier | glücklich glücklicher
sad sadder | traurig trauriger
famous more famous | berühmt berühmter
clever cleverer | klug klüger
rich richer | reich reicher
poor poorer | arm ärmer
quiet quieter | ruhig ruhiger
strong stronger | stark stärker
nice nicer | nett netter
hungry hungrier | hungrig hungriger
""")
WRITING_ADJECTIVES = _adjectives("""
interesting more interesting | interessant interessanter
boring more boring | langweilig langweiliger
long longer | lang länger
short shorter | kurz kürzer
funny funnier | lustig lustiger
important more important | wichtig wichtiger
new newer | neu neuer
old older | alt älter
""")
THING_ADJECTIVES = _adjectives(
    _SIZE.strip() + _PRICE + _COLOURS.strip() + "\nheavy heavier | schwer schwerer"
)
MACHINE_ADJECTIVES = _adjectives(
    _SIZE.strip() + _PRICE + "modern more modern | modern moderner\nbroken | kaputt"
)
FOOD_ADJECTIVES = _adjectives("""
fresh fresher | frisch frischer
sweet sweeter | süß süßer
big bigger | groß größer
small smaller | klein kleiner
good better | gut besser
cold colder | kalt kälter
""")
DRINK_ADJECTIVES = _adjectives("""
cold colder | kalt kälter
hot hotter | heiß heißer
good better | gut besser
cheap cheaper | billig billiger
""")
BUILDING_ADJECTIVES = _adjectives(
    _SIZE.strip() + _PRICE + "modern more modern | modern moderner\n"
    "famous more famous | berühmt berühmter\nempty | leer\ndark darker | dunkel dunkler"
)
ANIMAL_ADJECTIVES = _adjectives(
    _SIZE.strip() + "\nyoung younger | jung jünger\nblack | schwarz\nwhite | weiß\nbrown | braun\n"
    "hungry hungrier | hungrig hungriger\nfast faster | schnell schneller"
)
