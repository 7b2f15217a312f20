"""Names of persons, cities and places."""


def _split(text: str) -> list[str]:
    return text.split()


FIRST_NAMES = _split("""
Adam Alice Amir Anna Anton Ben Carla Clara David Diana Elena Elias Emil Emma Eva Felix Fiona
Frida Georg Greta Hannah Hugo Ida Ingrid Ivan Jakob Jana Jonas Julia Karl Klara Lara Laura Lena
Leo Lina Lisa Lucy Luis Maria Marie Martin Max Maya Mia Nina Noah Nora Olga Omar Oscar Paul
Paula Peter Rosa Sara Simon Sofia Stefan Theo Thomas Tim Tom Vera Viktor Yara Yusuf Zoe
""")

SURNAMES = _split("""
Adler Bauer Becker Berger Braun Fischer Fuchs Haas Hartmann Hoffmann Huber Keller Klein Koch
Krause Lang Lehmann Maier Meyer Müller Neumann Peters Richter Roth Sauer Schmidt Schneider
Schulz Schwarz Vogel Wagner Weber Winter Wolf Ziegler Zimmermann
""")

_SAME_IN_BOTH = _split("""
Amsterdam Barcelona Berlin Bern Boston Bremen Chicago Dresden Dublin Frankfurt Hamburg Helsinki
Istanbul Kassel Leipzig London Madrid Mainz Oslo Paris Salzburg Stockholm Stuttgart Sydney
Toronto
""")

CITIES = [
    *((name, name) for name in _SAME_IN_BOTH),
    ("Athens", "Athen"),
    ("Brussels", "Brüssel"),
    ("Cairo", "Kairo"),
    ("Cologne", "Köln"),
    ("Copenhagen", "Kopenhagen"),
    ("Florence", "Florenz"),
    ("Geneva", "Genf"),
    ("Lisbon", "Lissabon"),
    ("Milan", "Mailand"),
    ("Moscow", "Moskau"),
    ("Munich", "München"),
    ("Naples", "Neapel"),
    ("Nuremberg", "Nürnberg"),
    ("Prague", "Prag"),
    ("Rome", "Rom"),
    ("Tokyo", "Tokio"),
    ("Venice", "Venedig"),
    ("Vienna", "Wien"),
    ("Warsaw", "Warschau"),
    ("Zurich", "Zürich"),
]
"""Cities in English and German."""

PLACES = [
    ("in the park", "im Park"),
    ("at school", "in der Schule"),
    ("in the kitchen", "in der Küche"),
    ("in the garden", "im Garten"),
    ("at the station", "am Bahnhof"),
    ("at the market", "auf dem Markt"),
    ("in the library", "in der Bibliothek"),
    ("in the office", "im Büro"),
    ("in the hospital", "im Krankenhaus"),
    ("in the museum", "im Museum"),
    ("on the beach", "am Strand"),
    ("at home", "zu Hause"),
    ("in the city", "in der Stadt"),
    ("in the forest", "im Wald"),
    ("in the restaurant", "im Restaurant"),
    ("in the café", "im Café"),
    ("at the airport", "am Flughafen"),
    ("on the bridge", "auf der Brücke"),
    ("in the village", "im Dorf"),
    ("by the lake", "am See"),
    ("in the mountains", "in den Bergen"),
    ("at the university", "an der Universität"),
]
"""Where something happens."""

DIRECTIONS = [
    ("to the park", "in den Park"),
    ("to school", "in die Schule"),
    ("into the kitchen", "in die Küche"),
    ("into the garden", "in den Garten"),
    ("to the station", "zum Bahnhof"),
    ("to the market", "zum Markt"),
    ("to the library", "in die Bibliothek"),
    ("to the office", "ins Büro"),
    ("to the hospital", "ins Krankenhaus"),
    ("to the museum", "ins Museum"),
    ("to the beach", "zum Strand"),
    ("home", "nach Hause"),
    ("into the forest", "in den Wald"),
    ("to the cinema", "ins Kino"),
    ("to the theatre", "ins Theater"),
    ("to the café", "ins Café"),
    ("to the airport", "zum Flughafen"),
    ("to the bridge", "zur Brücke"),
    ("to the village", "ins Dorf"),
    ("to the lake", "zum See"),
    ("to the university", "zur Universität"),
]
"""Where somebody goes."""
