"""Smaller SVG that looks the same: matplotlib writes every style and every group out."""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import product
from string import ascii_lowercase

_SVG = "http://www.w3.org/2000/svg"
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_COORDINATES = {"d", "points", "transform", "x", "x1", "x2", "y", "y1", "y2"}
_LONG = re.compile(r"-?\d+\.\d{2,}")
_COMMAND = re.compile(r"\s*([A-Za-z])\s*")
_NO_ROTATION = re.compile(r"rotate\(-?0(\.0+)?( [^)]*)?\)")
_TEXT = {f"{{{_SVG}}}{name}" for name in ("text", "tspan", "title", "desc", "style")}
_GROUP, _STYLE = f"{{{_SVG}}}g", f"{{{_SVG}}}style"


def compact(root: ElementTree.Element, scope: str) -> None:
    """Take out of ``root``, in place, what nobody sees.

    Coordinates are rounded to tenths of a point; identifiers that nothing refers to, groups without
    attributes, blanks between elements and invisible shapes go; a style that stands at several
    elements becomes a class. ``scope`` is a CSS selector of this figure alone: classes of several
    figures on one page have the same names.
    """
    _round_coordinates(root)
    _drop_identifiers(root)
    _drop_invisible(root)
    _unwrap_groups(root)
    _drop_blanks(root)
    _share_styles(root, scope)


def _round_coordinates(root: ElementTree.Element) -> None:
    for element in root.iter():
        for key in _COORDINATES & element.attrib.keys():
            # A factor in a transform is small; a place on the page is not.
            form = "{:.2f}" if key == "transform" else "{:.1f}"
            text = _LONG.sub(partial(_rounded, form), element.attrib[key])
            if key == "d":
                text = _COMMAND.sub(r"\1", text)
            element.set(key, text)
        if _NO_ROTATION.fullmatch(element.get("transform", "")):
            del element.attrib["transform"]


def _rounded(form: str, found: re.Match[str]) -> str:
    return form.format(float(found[0]))


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


def _drop_invisible(root: ElementTree.Element) -> None:
    for parent in root.iter():
        for child in list(parent):
            shape = child.tag.endswith("}path") and child.get("style") == "fill: none"
            if shape and "id" not in child.attrib:
                parent.remove(child)


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


def _drop_blanks(root: ElementTree.Element) -> None:
    for element in root.iter():
        if element.tag not in _TEXT and not (element.text or "").strip():
            element.text = None
        if not (element.tail or "").strip():
            element.tail = None


def _share_styles(root: ElementTree.Element, scope: str) -> None:
    styles = Counter(element.get("style", "") for element in root.iter())
    names = _names()
    classes = {style: next(names) for style, count in styles.most_common() if style and count > 1}
    for element in root.iter():
        if element.get("style", "") in classes:
            element.set("class", classes[element.attrib.pop("style")])
    if classes:
        rules = "".join(f"{scope} .{name}{{{_short(style)}}}" for style, name in classes.items())
        element = ElementTree.Element(_STYLE)
        element.text = rules
        root.insert(0, element)


def _names() -> Iterator[str]:
    for length in (1, 2, 3):
        yield from map("".join, product(ascii_lowercase, repeat=length))


def _short(style: str) -> str:
    return style.replace("; ", ";").replace(": ", ":")
