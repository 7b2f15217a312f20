"""Smaller drawings say the same."""

import xml.etree.ElementTree as ElementTree

from transformer_core.report.kit.svg import compact

DRAWING = """<svg xmlns="http://www.w3.org/2000/svg"
  xmlns:xlink="http://www.w3.org/1999/xlink" id="own">
 <g id="group">
  <defs> <path id="mark" d="M 0.123 0 L 0 3.456" style="stroke: red; stroke-width: 2" /> </defs>
  <clipPath id="window"><rect x="1.26" y="2" width="3" height="4" /></clipPath>
  <g clip-path="url(#window)">
   <use xlink:href="#mark" x="1.55" y="2.44" style="fill: blue; stroke: blue" />
   <use xlink:href="#mark" x="3" y="4" style="fill: blue; stroke: blue" />
  </g>
  <g> <g> <text id="said" transform="rotate(-0 3.5 4.5)"> two  words </text> </g> </g>
 </g>
</svg>"""


def test_smaller_drawings_say_the_same():
    root = ElementTree.fromstring(DRAWING)
    compact(root, "#own")
    text = ElementTree.tostring(root, encoding="unicode")
    assert "group" not in text
    assert 'id="said"' not in text
    assert "rotate" not in text
    assert "> two  words <" in text
    # What others refer to is still there under the same name.
    assert {e.get("id") for e in root.iter() if e.get("id")} == {"own", "mark", "window"}
    names = [e.tag.rpartition("}")[2] for e in root.iter()]
    assert names.count("use") == 2
    assert names.count("g") == 1
    # A style of several elements is said once, and for this drawing only.
    assert text.count("blue") == 2  # fill and stroke, once
    assert "#own .a{fill:blue;stroke:blue}" in text
    assert text.count('class="a"') == 2
    # A style of one element stays with it.
    assert 'style="stroke: red; stroke-width: 2"' in text
    # Places are in tenths of a point.
    assert 'd="M0.1 0L0 3.5"' in text
    assert 'x="1.3"' in text
