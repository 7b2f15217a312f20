"""No two numbers on the page contradict each other: the page is read as a reader reads it."""

import re
from collections import defaultdict

import pytest
from drawn import section

RATIO = re.compile(r'<data value="([^"]+)" title="[^"]*">[\d.,]+×</data>')
VALUE = re.compile(r'<data value="([^"]+)"')


def rows(part: str) -> list[tuple[str, list[str]]]:
    """Variant and cells of every row of a table that is about one."""
    found = []
    for row in re.findall(r"<tr.*?</tr>", part, re.DOTALL):
        cells = re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)
        name = re.search(r'href="#variant-(\w+)"', cells[0])
        if name:
            found.append((name[1], cells))
    return found


def test_throughputs_are_to_each_other_as_the_ratios_say(results):
    table = section("variants", results).split('id="comparisons-caption"')[0]
    speeds, ratios = {}, {}
    for name, cells in rows(table):
        if found := VALUE.search(cells[2]):
            speeds[name] = float(found[1])
        if found := RATIO.search(cells[3]):
            ratios[name] = float(found[1])
    assert len(ratios) >= 5
    for name, ratio in ratios.items():
        assert speeds[name] / speeds["single"] == pytest.approx(ratio, rel=1e-6), name


def test_a_ratio_to_the_baseline_is_the_same_everywhere(results):
    said: dict[str, set[str]] = defaultdict(set)
    for name in ("variants", "techniques"):
        for variant, cells in rows(section(name, results)):
            against = [c for c in cells[1:3] if "#variant-" in c]
            if not against or "#variant-single" in against[0]:
                shown = [found[1] for cell in cells[2:4] if (found := RATIO.search(cell))]
                said[variant] |= set(shown[:1])
    in_sentence = r'href="#variant-(\w+)"><code>\w+</code></a> (?:ran at )?<data value="([^"]+)"'
    for variant, ratio in re.findall(in_sentence, section("tried", results)):
        said[variant].add(ratio)
    assert len(said) >= 5
    assert {name: values for name, values in said.items() if len(values) > 1} == {}
