"""The section on techniques: complete in both languages, with diagrams and variants."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jinja2 import Environment, FileSystemLoader

from transformer_core.report.sections.variants import techniques, techniques_context
from transformer_core.study.variants import read_variants

ROOT = Path(__file__).resolve().parents[3]
HANGUL = re.compile("[가-힣]")


def test_every_technique_is_described_in_both_languages_and_variants_name_no_others():
    assert list(techniques()) == [f"A{number}" for number in range(1, 20)]
    for technique in techniques().values():
        assert not HANGUL.search(technique["title"]["en"] + technique["text"]["en"])
        assert HANGUL.search(technique["text"]["ko"])
    variants = read_variants(ROOT / "config/variants.yaml").variants
    named = {test for variant in variants.values() for test in variant.tests}
    assert {name for name in named if name.startswith("A")} <= set(techniques())


@pytest.mark.parametrize("name", sorted({t["diagram"] for t in techniques().values()}))
def test_diagrams_are_svg_within_their_box(name):
    environment = Environment(
        loader=FileSystemLoader(ROOT / "transformer_core/report"), autoescape=True
    )
    body = environment.get_template(f"sections/diagrams/{name}.html").render()
    shapes = list(ElementTree.fromstring(f"<svg>{body}</svg>"))
    assert shapes
    for rect in (shape for shape in shapes if shape.tag == "rect"):
        x, y, width, height = (float(rect.get(k, "nan")) for k in ("x", "y", "width", "height"))
        assert 0 <= x <= x + width <= 361
        assert 0 <= y <= y + height <= 136


def test_techniques_have_their_variants(results):
    context = techniques_context(results)
    shown = {item["id"]: item["variants"] for item in context["techniques"]}
    assert shown["A6"] == ["amp_bf16"]
    assert not set(shown) & {item["id"] for item in context["absent"]}
