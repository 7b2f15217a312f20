"""Figures as accessible SVG that suits light and dark pages, alone or inside the report."""

import io
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from string import ascii_letters
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.text import Text

from transformer_core.common.digests import check
from transformer_core.common.endings import damaged
from transformer_core.report.kit.language import Said, both, in_korean
from transformer_core.report.kit.palette import SHADES, declarations, with_variables

INK = "#010203"
"""Placeholder for the colour of the surrounding text: currentColor in the file."""

INKS = SHADES["ink"]

STYLE: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "grid.alpha": 0.15,
    "grid.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "savefig.facecolor": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xaxis.labellocation": "right",  # a long label would end beyond the right edge
    "xtick.color": INK,
    "ytick.color": INK,
}

_SVG = "http://www.w3.org/2000/svg"
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")
_KOREAN_TITLE, _KOREAN_DESCRIPTION = "data-title-ko", "data-description-ko"
_KOREAN_TEXT = "data-text-ko"
_IN_KOREAN = "in Korean: "
_ACTIVE = {f"{{{_SVG}}}{name}" for name in ("script", "foreignObject")}
ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    description: str
    markup: Markup
    korean: tuple[str, str] = ("", "")  # title and description in Korean; empty if unknown

    @property
    def caption(self) -> Markup:
        """Title and description in both languages."""
        form = Markup("<strong>{}.</strong> {}")
        korean = form.format(*self.korean) if all(self.korean) else None
        return both(form.format(self.title, self.description), korean)


def name_axis(label: Text, said: Said) -> None:
    """Shows ``said`` as the label of an axis, such as ``axes.xaxis.label``, or as another text. The file
    keeps its Korean, and the page shows it to readers of Korean."""
    label.set_text(str(said))
    label.set_gid(_IN_KOREAN + said.korean)


def in_xml(text: str) -> str:
    """Replaces characters that XML forbids: names from traces and sampled texts may contain them."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def render(figure: Figure, name: str, title: str, description: str) -> str:
    """The SVG text of ``figure``; the same figure always gives the same text.

    Screen readers read ``title`` and ``description``, and the page shows them. Colours of text and
    axes follow the reader's light or dark setting. Identifiers are hashes with ``name`` as their salt,
    so one page can hold several figures.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = with_variables(in_xml(buffer.getvalue()).replace(INK, "currentColor"))
    root = ElementTree.fromstring(text)
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    _keep_korean(root)
    compact(root, f"#figure-{name}")
    root.set("id", f"figure-{name}")
    root.set("role", "img")
    root.set(_KOREAN_TITLE, in_korean(title))
    root.set(_KOREAN_DESCRIPTION, in_korean(description))
    root.set("aria-labelledby", f"{name}-title {name}-description")
    style = (
        f"#figure-{name}{{color:{INKS.light};{declarations(series_only=True)}}}"
        f"@media screen and (prefers-color-scheme:dark){{#figure-{name}"
        f"{{color:{INKS.dark};{declarations(dark=True, series_only=True)}}}}}"
    )
    root[:0] = [
        _element("title", title, id=f"{name}-title"),
        _element("desc", description, id=f"{name}-description"),
        _element("style", style),
    ]
    return in_xml(ElementTree.tostring(root, encoding="unicode")) + "\n"


def read(path: Path) -> Picture:
    """A figure made by :func:`render`; ConfigError if it is missing, not SVG, or has scripts."""
    check(path)
    try:
        return picture(path.read_text(encoding="utf-8"), path.stem)
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise damaged(path, error) from None


def picture(text: str, name: str) -> Picture:
    """The figure of an SVG; ValueError or ParseError if it is not one, or has scripts."""
    root = ElementTree.fromstring(text)
    if root.tag != f"{{{_SVG}}}svg":
        raise ValueError("is not an SVG image")
    for element in root.iter():
        if element.tag in _ACTIVE or any(key.startswith("on") for key in element.attrib):
            raise ValueError("contains a script")
    korean = root.get(_KOREAN_TITLE, ""), root.get(_KOREAN_DESCRIPTION, "")
    for key in (_KOREAN_TITLE, _KOREAN_DESCRIPTION):
        root.attrib.pop(key, None)  # the page shows it as a caption
    _split_languages(root)
    return Picture(
        name=name,
        korean=korean,
        title=root.findtext(f"{{{_SVG}}}title", default=name),
        description=root.findtext(f"{{{_SVG}}}desc", default=""),
        markup=Markup(ElementTree.tostring(root, encoding="unicode")),
    )


def _keep_korean(root: ElementTree.Element) -> None:
    """Moves the Korean of labels from the identifier of the group to the text in it."""
    for group in root.iter(_GROUP):
        if group.get("id", "").startswith(_IN_KOREAN):
            korean = group.attrib.pop("id").removeprefix(_IN_KOREAN)
            for text in group.iter(f"{{{_SVG}}}text"):
                text.set(_KOREAN_TEXT, korean)


def _split_languages(root: ElementTree.Element) -> None:
    """Makes each text with a Korean two texts, of which the page shows one."""
    for parent in list(root.iter()):
        for place, text in reversed(list(enumerate(parent))):
            if korean := text.attrib.pop(_KOREAN_TEXT, ""):
                other = deepcopy(text)
                text.set("lang", "en")
                other.set("lang", "ko")
                other.text = korean
                parent.insert(place + 1, other)


def _element(tag: str, text: str, **attributes: str) -> ElementTree.Element:
    element = ElementTree.Element(f"{{{_SVG}}}{tag}", attributes)
    element.text = text
    return element


_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_COORDINATES = {"d", "points", "transform", "x", "x1", "x2", "y", "y1", "y2"}
_LONG = re.compile(r"-?\d+\.\d{2,}")
_COMMAND = re.compile(r"\s*([A-Za-z])\s*")
_NO_ROTATION = re.compile(r"rotate\(-?0(\.0+)?( [^)]*)?\)")
_TEXT = {f"{{{_SVG}}}{name}" for name in ("text", "tspan", "title", "desc", "style")}
_GROUP = f"{{{_SVG}}}g"


def compact(root: ElementTree.Element, scope: str) -> None:
    """Make ``root`` smaller in place, without visible changes.

    Rounds coordinates to tenths of a point; removes unused identifiers, groups without attributes
    and blanks between elements; turns a style that several elements share into a class. ``scope``
    is a CSS selector for this figure alone, because figures on one page share names of classes.
    """
    for element in root.iter():
        _round_coordinates(element)
        if element.tag not in _TEXT and not (element.text or "").strip():
            element.text = None
        if not (element.tail or "").strip():
            element.tail = None
    _drop_identifiers(root)
    _unwrap_groups(root)
    _share_styles(root, scope)


def _round_coordinates(element: ElementTree.Element) -> None:
    for key in _COORDINATES & element.attrib.keys():
        # Factors in a transform are small and need more digits.
        digits = 2 if key == "transform" else 1
        text = _LONG.sub(lambda found, n=digits: f"{float(found[0]):.{n}f}", element.attrib[key])  # type: ignore[misc]
        element.set(key, _COMMAND.sub(r"\1", text) if key == "d" else text)
    if _NO_ROTATION.fullmatch(element.get("transform", "")):
        del element.attrib["transform"]


def _drop_identifiers(root: ElementTree.Element) -> None:
    used = set()
    for element in root.iter():
        for key, value in element.attrib.items():
            if key.endswith("href"):
                used.add(value.removeprefix("#"))
            elif key.startswith("aria-"):
                used.update(value.split())
            else:
                used.update(_REFERENCE.findall(value))
    for element in root.iter():
        if element is not root and element.get("id", "") not in used:
            element.attrib.pop("id", None)


def _unwrap_groups(element: ElementTree.Element) -> None:
    children: list[ElementTree.Element] = []
    for child in element:
        _unwrap_groups(child)
        plain = child.tag in (_GROUP, f"{{{_SVG}}}defs") and not child.attrib
        if child.tag == _GROUP and plain:
            children.extend(child)
        elif not (plain and len(child) == 0):
            children.append(child)
    element[:] = children


def _share_styles(root: ElementTree.Element, scope: str) -> None:
    styles = Counter(element.get("style", "") for element in root.iter())
    shared = [style for style, count in styles.most_common() if style and count > 1]
    # The most frequent classes, of hundreds of elements, get one letter.
    classes = {
        style: (ascii_letters[number : number + 1] or f"s{number}")
        for number, style in enumerate(shared)
    }
    for element in root.iter():
        if element.get("style", "") in classes:
            element.set("class", classes[element.attrib.pop("style")])
    if classes:
        rules = "".join(
            f"{scope} .{name}{{{style.replace('; ', ';').replace(': ', ':')}}}"
            for style, name in classes.items()
        )
        root.insert(0, _element("style", rules))
