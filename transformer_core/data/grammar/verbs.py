"""Verbs of both languages, conjugated into everything a clause needs, once."""

from functools import cache
from typing import Literal, NamedTuple

PERSONS = range(5)
"""I, you (du), he or she, we, they."""
THIRD, THIRD_PLURAL = 2, 4

Tense = Literal["habit", "now", "past", "future", "modal"]


class Form(NamedTuple):
    """A verb in one tense and person. Optional pieces begin with a space or are empty.

    English: subject + before + verb; negated subject + negation + base; question + subject + base.
    German: subject + finite ... + bracket in a main clause, final at the end of a subclause.
    """

    before: str
    verb: str
    negation: str
    question: str
    base: str
    finite: str
    bracket: str
    final: str


class Verb(NamedTuple):
    """A verb and what it goes with."""

    english: str
    to_infinitive: str
    forms: dict[Tense, list[list[Form]]]
    """By tense and person; the modal tense has several forms."""
    groups: tuple[str, ...]
    """Nouns it takes as its object; none if it takes none."""
    case: Literal["accusative", "dative"]
    preposition: str
    reflexive: tuple[str, ...]
    """German reflexive pronoun by person, each with a space before it; empty strings if none."""
    progressive: bool
    participle: str
    english_participle: str


_SEIN = ("bin", "bist", "ist", "sind", "sind")
_HABEN = ("habe", "hast", "hat", "haben", "haben")
_WERDEN = ("werde", "wirst", "wird", "werden", "werden")
_BE = ("am", "are", "is", "are", "are")
_DO = ("do", "do", "does", "do", "do")
_HAVE = ("have", "have", "has", "have", "have")
_WANT = ("want", "want", "wants", "want", "want")
_REFLEXIVE = {
    "": ("", "", "", "", ""),
    "sich": (" mich", " dich", " sich", " uns", " sich"),
    "sich(dat)": (" mir", " dir", " sich", " uns", " sich"),
}
_AUXILIARY_MODALS = {
    "can": ("cannot", ("kann", "kannst", "kann", "können", "können")),
    "should": ("should not", ("sollte", "solltest", "sollte", "sollten", "sollten")),
}
_VERBAL_MODALS = {
    "have": (_HAVE, ("muss", "musst", "muss", "müssen", "müssen")),
    "want": (_WANT, ("will", "willst", "will", "wollen", "wollen")),
}
_MAY = ("darf", "darfst", "darf", "dürfen", "dürfen")

# english, -ing (- for verbs of state), past, participle | [sich] prefix-infinitive, du, er,
# participle [ist] | objects: case or preposition with case, then groups
_TABLE = """
buy buying bought bought | kaufen kaufst kauft gekauft | acc goods machines food writings buildings animals
sell selling sold sold | verkaufen verkaufst verkauft verkauft | acc goods machines food buildings animals
see - saw seen | sehen siehst sieht gesehen | acc persons buildings animals goods
look_for looking_for looked_for looked_for | suchen suchst sucht gesucht | acc goods animals persons writings
find - found found | finden findest findet gefunden | acc goods writings animals
use using used used | benutzen benutzt benutzt benutzt | acc machines switched
photograph photographing photographed photographed | fotografieren fotografierst fotografiert fotografiert | acc persons buildings animals
repair repairing repaired repaired | reparieren reparierst repariert repariert | acc machines
forget - forgot forgotten | vergessen vergisst vergisst vergessen | acc goods writings
lose - lost lost | verlieren verlierst verliert verloren | acc goods
pay_for paying_for paid_for paid_for | bezahlen bezahlst bezahlt bezahlt | acc goods food drinks machines
order ordering ordered ordered | bestellen bestellst bestellt bestellt | acc food drinks goods
paint painting painted painted | malen malst malt gemalt | acc persons buildings animals
notice - noticed noticed | bemerken bemerkst bemerkt bemerkt | acc persons animals goods
read reading read read | lesen liest liest gelesen | acc writings
write writing wrote written | schreiben schreibst schreibt geschrieben | acc writings
eat eating ate eaten | essen isst isst gegessen | acc food
drink drinking drank drunk | trinken trinkst trinkt getrunken | acc drinks
prepare preparing prepared prepared | zu-bereiten bereitest bereitet zubereitet | acc food
wash washing washed washed | waschen wäschst wäscht gewaschen | acc washed
open opening opened opened | auf-machen machst macht aufgemacht | acc opened
close closing closed closed | zu-machen machst macht zugemacht | acc opened
turn_on turning_on turned_on turned_on | ein-schalten schaltest schaltet eingeschaltet | acc switched
turn_off turning_off turned_off turned_off | aus-schalten schaltest schaltet ausgeschaltet | acc switched
collect collecting collected collected | ab-holen holst holt abgeholt | acc goods persons
bring_along bringing_along brought_along brought_along | mit-bringen bringst bringt mitgebracht | acc goods food drinks
throw_away throwing_away threw_away thrown_away | weg-werfen wirfst wirft weggeworfen | acc goods food writings
try_out trying_out tried_out tried_out | aus-probieren probierst probiert ausprobiert | acc machines
call calling called called | an-rufen rufst ruft angerufen | acc persons
invite inviting invited invited | ein-laden lädst lädt eingeladen | acc persons
visit visiting visited visited | besuchen besuchst besucht besucht | acc persons
ask asking asked asked | fragen fragst fragt gefragt | acc persons
understand - understood understood | verstehen verstehst versteht verstanden | acc persons writings
feed feeding fed fed | füttern fütterst füttert gefüttert | acc animals
meet meeting met met | treffen triffst trifft getroffen | acc persons
greet greeting greeted greeted | grüßen grüßt grüßt gegrüßt | acc persons
carry carrying carried carried | tragen trägst trägt getragen | acc goods machines
hide hiding hid hidden | verstecken versteckst versteckt versteckt | acc goods writings food
draw drawing drew drawn | zeichnen zeichnest zeichnet gezeichnet | acc persons buildings animals
help helping helped helped | helfen hilfst hilft geholfen | dat persons
thank thanking thanked thanked | danken dankst dankt gedankt | dat persons
follow following followed followed | folgen folgst folgt gefolgt ist | dat persons animals
congratulate congratulating congratulated congratulated | gratulieren gratulierst gratuliert gratuliert | dat persons
answer answering answered answered | antworten antwortest antwortet geantwortet | dat persons
listen_to listening_to listened_to listened_to | zu-hören hörst hört zugehört | dat persons
trust - trusted trusted | vertrauen vertraust vertraut vertraut | dat persons
wait_for waiting_for waited_for waited_for | warten wartest wartet gewartet | auf+acc persons writings
talk_about talking_about talked_about talked_about | sprechen sprichst spricht gesprochen | über+acc persons buildings writings
think_about thinking_about thought_about thought_about | nach-denken denkst denkt nachgedacht | über+acc persons writings
laugh_at laughing_at laughed_at laughed_at | lachen lachst lacht gelacht | über+acc persons writings animals
talk_to talking_to talked_to talked_to | sprechen sprichst spricht gesprochen | mit+dat persons
dance_with dancing_with danced_with danced_with | tanzen tanzt tanzt getanzt | mit+dat persons
play_with playing_with played_with played_with | spielen spielst spielt gespielt | mit+dat persons animals
dream_of dreaming_of dreamt_of dreamt_of | träumen träumst träumt geträumt | von+dat persons buildings machines animals
look_at looking_at looked_at looked_at | sich(dat) an-sehen siehst sieht angesehen | acc goods buildings machines animals
look_forward_to looking_forward_to looked_forward_to looked_forward_to | sich freuen freust freut gefreut | auf+acc persons writings food
remember - remembered remembered | sich erinnern erinnerst erinnert erinnert | an+acc persons writings buildings
complain_about complaining_about complained_about complained_about | sich beschweren beschwerst beschwert beschwert | über+acc persons machines food writings
take_care_of taking_care_of took_care_of taken_care_of | sich kümmern kümmerst kümmert gekümmert | um+acc persons animals
sleep sleeping slept slept | schlafen schläfst schläft geschlafen | local
work working worked worked | arbeiten arbeitest arbeitet gearbeitet | local
sing singing sang sung | singen singst singt gesungen | local
dance dancing danced danced | tanzen tanzt tanzt getanzt | local
play playing played played | spielen spielst spielt gespielt | local
laugh laughing laughed laughed | lachen lachst lacht gelacht | local
cry crying cried cried | weinen weinst weint geweint | local
swim swimming swam swum | schwimmen schwimmst schwimmt geschwommen ist | time
rest resting rested rested | sich aus-ruhen ruhst ruht ausgeruht | local
get_up getting_up got_up got_up | auf-stehen stehst steht aufgestanden ist | time
fall_asleep falling_asleep fell_asleep fallen_asleep | ein-schlafen schläfst schläft eingeschlafen ist | local
watch_television watching_television watched_television watched_television | fern-sehen siehst sieht ferngesehen | local
hurry hurrying hurried hurried | sich beeilen beeilst beeilt beeilt | time
go going went gone | gehen gehst geht gegangen ist | direction
drive driving drove driven | fahren fährst fährt gefahren ist | direction
run running ran run | rennen rennst rennt gerannt ist | direction
walk walking walked walked | laufen läufst läuft gelaufen ist | direction
fly flying flew flown | fliegen fliegst fliegt geflogen ist | city
travel travelling travelled travelled | reisen reist reist gereist ist | city
move moving moved moved | um-ziehen ziehst zieht umgezogen ist | city
give giving gave given | geben gibst gibt gegeben | gift goods food drinks writings
show showing showed shown | zeigen zeigst zeigt gezeigt | gift goods writings buildings machines
send sending sent sent | schicken schickst schickt geschickt | gift goods writings
lend lending lent lent | leihen leihst leiht geliehen | gift goods machines writings
bring bringing brought brought | bringen bringst bringt gebracht | gift goods food drinks writings
promise promising promised promised | versprechen versprichst verspricht versprochen | gift goods machines animals
"""


def third_person(english: str) -> str:
    """The third person singular of an English infinitive; particles may follow the verb."""
    head, *rest = english.split(" ")
    if head.endswith(("s", "x", "ch", "sh", "o")):
        head += "es"
    elif head.endswith("y") and head[-2] not in "aeiou":
        head = head[:-1] + "ies"
    else:
        head += "s"
    return " ".join([head, *rest])


def _form(english: tuple[str, str, str, str, str], german: tuple[str, str, str]) -> Form:
    return Form(*english, *german)


def _present(base: str, person: int) -> tuple[str, str, str, str, str]:
    verb = third_person(base) if person == THIRD else base
    return "", verb, f" {_DO[person]} not", _DO[person], base


def _be_form(person: int, rest: str, past: bool = False) -> tuple[str, str, str, str, str]:
    be = ("was", "were", "was", "were", "were")[person] if past else _BE[person]
    return f" {be}", rest, f" {be} not", be, rest


def _modals(base: str, infinitive: str, person: int) -> list[Form]:
    forms = []
    for modal, (negation, german) in _AUXILIARY_MODALS.items():
        english = f" {modal}", base, f" {negation}", modal, base
        forms.append(_form(english, _with_infinitive(german[person], infinitive)))
    for modal, (inflected, german) in _VERBAL_MODALS.items():
        english = (
            "",
            f"{inflected[person]} to {base}",
            f" {_DO[person]} not",
            _DO[person],
            f"{modal} to {base}",
        )
        forms.append(_form(english, _with_infinitive(german[person], infinitive)))
    allowed = _be_form(person, f"allowed to {base}")
    forms.append(_form(allowed, _with_infinitive(_MAY[person], infinitive)))
    return forms


def _with_infinitive(finite: str, infinitive: str) -> tuple[str, str, str]:
    return finite, f" {infinitive}", f" {infinitive} {finite}"


def _read(line: str) -> Verb:
    english_part, german_part, object_part = (part.split() for part in line.split("|"))
    base, ing, past, participle = (text.replace("_", " ") for text in english_part)
    reflexive = german_part.pop(0) if german_part[0].startswith("sich") else ""
    lemma, du, er, german_participle, *auxiliary = german_part
    prefix, stem = lemma.split("-") if "-" in lemma else ("", lemma)
    infinitive = prefix + stem
    ich = stem.removesuffix("n") if stem.endswith("en") else stem.removesuffix("n") + "e"
    present = (ich, du, er, stem, stem)
    perfect = _SEIN if auxiliary else _HABEN
    bracket = f" {prefix}" if prefix else ""
    forms: dict[Tense, list[list[Form]]] = {
        tense: [] for tense in ("habit", "now", "past", "future", "modal")
    }
    for person in PERSONS:
        german = present[person], bracket, f" {prefix}{present[person]}"
        habit = _form(_present(base, person), german)
        forms["habit"].append([habit])
        forms["now"].append([habit if ing == "-" else _form(_be_form(person, ing), german)])
        has = perfect[person]
        in_past = "", past, " did not", "did", base
        forms["past"].append([_form(in_past, _with_infinitive(has, german_participle))])
        will = " will", base, " will not", "will", base
        forms["future"].append([_form(will, _with_infinitive(_WERDEN[person], infinitive))])
        forms["modal"].append(_modals(base, infinitive, person))
    kind, *groups = object_part
    preposition, _, case = kind.rpartition("+")
    return Verb(
        base,
        f"{prefix}zu{stem}" if prefix else f"zu {stem}",
        forms,
        tuple(groups) or (kind,),
        "dative" if case == "dat" else "accusative",
        preposition and f" {preposition}",
        _REFLEXIVE[reflexive],
        ing != "-",
        german_participle,
        participle,
    )


@cache
def verbs() -> dict[str, list[Verb]]:
    """All verbs by what they need: object, gift, or a local, direction, city or time phrase."""
    found: dict[str, list[Verb]] = {}
    for line in _TABLE.strip().splitlines():
        kind = line.split("|")[2].split()[0]
        key = "object" if kind.endswith(("acc", "dat")) else kind
        found.setdefault(key, []).append(_read(line))
    return found
