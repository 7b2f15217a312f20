"""Nouns of both languages, by what they can be used for."""

from typing import Literal, NamedTuple

Gender = Literal["m", "f", "n"]


class Noun(NamedTuple):
    """A noun; ``oblique`` is its German accusative and dative singular."""

    english: str
    english_plural: str
    gender: Gender
    german: str
    german_plural: str
    oblique: str


def _plural(english: str) -> str:
    irregular = {"man": "men", "woman": "women", "child": "children", "mouse": "mice"}
    if english in irregular:
        return irregular[english]
    if english.endswith(("s", "x", "ch", "sh", "tomato", "potato")):
        return english + "es"
    if english == "knife":
        return "knives"
    if english.endswith("y") and english[-2] not in "aeiou":
        return english[:-1] + "ies"
    return english + "s"


def _nouns(text: str) -> list[Noun]:
    """Nouns from lines of ``english | gender singular plural [oblique]``."""
    nouns = []
    for line in text.strip().splitlines():
        english, german = (part.strip() for part in line.split("|"))
        gender, singular, plural, *oblique = german.split()
        noun = Noun(
            english,
            _plural(english),
            gender,  # type: ignore[arg-type]
            singular,
            plural,
            oblique[0] if oblique else singular,
        )
        nouns.append(noun)
    return nouns


PERSONS = _nouns("""
teacher | m Lehrer Lehrer
woman | f Frau Frauen
man | m Mann Männer
child | n Kind Kinder
girl | n Mädchen Mädchen
boy | m Junge Jungen Jungen
doctor | m Arzt Ärzte
neighbour | m Nachbar Nachbarn Nachbarn
student | m Student Studenten Studenten
farmer | m Bauer Bauern Bauern
cook | m Koch Köche
driver | m Fahrer Fahrer
gardener | m Gärtner Gärtner
baker | m Bäcker Bäcker
engineer | m Ingenieur Ingenieure
nurse | f Krankenschwester Krankenschwestern
sister | f Schwester Schwestern
brother | m Bruder Brüder
mother | f Mutter Mütter
father | m Vater Väter
daughter | f Tochter Töchter
son | m Sohn Söhne
aunt | f Tante Tanten
uncle | m Onkel Onkel
grandmother | f Großmutter Großmütter
grandfather | m Großvater Großväter
police officer | m Polizist Polizisten Polizisten
colleague | m Kollege Kollegen Kollegen
friend | m Freund Freunde
guest | m Gast Gäste
painter | m Maler Maler
singer | f Sängerin Sängerinnen
actress | f Schauspielerin Schauspielerinnen
lawyer | f Anwältin Anwältinnen
journalist | f Journalistin Journalistinnen
writer | m Schriftsteller Schriftsteller
waiter | m Kellner Kellner
customer | m Kunde Kunden Kunden
tourist | m Tourist Touristen Touristen
mayor | f Bürgermeisterin Bürgermeisterinnen
scientist | m Wissenschaftler Wissenschaftler
""")

WRITINGS = _nouns("""
book | n Buch Bücher
letter | m Brief Briefe
report | m Bericht Berichte
story | f Geschichte Geschichten
poem | n Gedicht Gedichte
article | m Artikel Artikel
message | f Nachricht Nachrichten
novel | m Roman Romane
postcard | f Postkarte Postkarten
""")

GOODS = _nouns("""
table | m Tisch Tische
chair | m Stuhl Stühle
picture | n Bild Bilder
bag | f Tasche Taschen
suitcase | m Koffer Koffer
key | m Schlüssel Schlüssel
umbrella | m Regenschirm Regenschirme
coat | m Mantel Mäntel
hat | m Hut Hüte
shirt | n Hemd Hemden
dress | n Kleid Kleider
ring | m Ring Ringe
ball | m Ball Bälle
flower | f Blume Blumen
gift | n Geschenk Geschenke
knife | n Messer Messer
cup | f Tasse Tassen
plate | m Teller Teller
bottle | f Flasche Flaschen
box | f Kiste Kisten
blanket | f Decke Decken
mirror | m Spiegel Spiegel
ticket | f Fahrkarte Fahrkarten
guitar | f Gitarre Gitarren
""")

MACHINES = _nouns("""
car | n Auto Autos
bicycle | n Fahrrad Fahrräder
lamp | f Lampe Lampen
clock | f Uhr Uhren
camera | f Kamera Kameras
phone | n Telefon Telefone
computer | m Computer Computer
radio | n Radio Radios
machine | f Maschine Maschinen
piano | n Klavier Klaviere
""")

SWITCHED = _nouns("""
lamp | f Lampe Lampen
radio | n Radio Radios
computer | m Computer Computer
television | m Fernseher Fernseher
machine | f Maschine Maschinen
heater | f Heizung Heizungen
""")

OPENED = _nouns("""
door | f Tür Türen
window | n Fenster Fenster
bottle | f Flasche Flaschen
suitcase | m Koffer Koffer
box | f Kiste Kisten
bag | f Tasche Taschen
""")

WASHED = _nouns("""
car | n Auto Autos
shirt | n Hemd Hemden
dress | n Kleid Kleider
coat | m Mantel Mäntel
cup | f Tasse Tassen
plate | m Teller Teller
knife | n Messer Messer
blanket | f Decke Decken
""")

FOOD = _nouns("""
apple | m Apfel Äpfel
egg | n Ei Eier
cake | m Kuchen Kuchen
potato | f Kartoffel Kartoffeln
tomato | f Tomate Tomaten
orange | f Orange Orangen
pear | f Birne Birnen
banana | f Banane Bananen
roll | n Brötchen Brötchen
pizza | f Pizza Pizzas
soup | f Suppe Suppen
salad | m Salat Salate
sausage | f Wurst Würste
""")

DRINKS = _nouns("""
coffee | m Kaffee -
tea | m Tee -
water | n Wasser -
milk | f Milch -
juice | m Saft -
wine | m Wein -
beer | n Bier -
lemonade | f Limonade -
""")

BUILDINGS = _nouns("""
house | n Haus Häuser
flat | f Wohnung Wohnungen
church | f Kirche Kirchen
castle | n Schloss Schlösser
bridge | f Brücke Brücken
tower | m Turm Türme
school | f Schule Schulen
hotel | n Hotel Hotels
museum | n Museum Museen
theatre | n Theater Theater
factory | f Fabrik Fabriken
garden | m Garten Gärten
library | f Bibliothek Bibliotheken
shop | n Geschäft Geschäfte
""")

ANIMALS = _nouns("""
dog | m Hund Hunde
cat | f Katze Katzen
horse | n Pferd Pferde
bird | m Vogel Vögel
cow | f Kuh Kühe
pig | n Schwein Schweine
goat | f Ziege Ziegen
rabbit | n Kaninchen Kaninchen
mouse | f Maus Mäuse
duck | f Ente Enten
""")
