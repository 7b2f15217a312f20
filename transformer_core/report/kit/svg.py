"""Figures as accessible SVG that suits light and dark pages, alone or inside the report."""

import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from schemas.errors import ConfigError, ConfigProblem

INK = "#010203"
"""Stands for the colour of the surrounding text; replaced by currentColor in the file."""

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
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_ACTIVE = {f"{{{_SVG}}}{name}" for name in ("script", "foreignObject")}
ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _XLINK)


@dataclass(frozen=True)
class Picture:
    """A figure as the page shows it."""

    name: str
    title: str
    description: str
    markup: Markup


def render(figure: Figure, name: str, title: str, description: str) -> str:
    """The SVG text of ``figure``; the same figure gives the same text.

    ``title`` and ``description`` are read aloud by screen readers and shown by the page. Colours of
    text and axes follow the reader's light or dark setting; identifiers start with ``name``, so
    that several figures fit into one page.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue().replace(INK, "currentColor")
    root = ElementTree.fromstring(text)
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    _prefix_ids(root, f"{name}-")
    root.set("id", f"figure-{name}")
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-description")
    root.insert(0, _element("title", title, id=f"{name}-title"))
    root.insert(1, _element("desc", description, id=f"{name}-description"))
    root.insert(
        2,
        _element(
            "style",
            f"#figure-{name}{{color:#1f2328}}"
            f"@media screen and (prefers-color-scheme:dark){{#figure-{name}{{color:#d8dee4}}}}",
        ),
    )
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def read(path: Path) -> Picture:
    """A figure that :func:`render` made; ConfigError if it is missing, not SVG or has scripts."""
    try:
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ElementTree.ParseError) as error:
        raise _problem(path, str(error)) from None
    if root.tag != f"{{{_SVG}}}svg":
        raise _problem(path, "is not an SVG image")
    for element in root.iter():
        if element.tag in _ACTIVE or any(key.startswith("on") for key in element.attrib):
            raise _problem(path, "contains a script")
    return Picture(
        name=path.stem,
        title=root.findtext(f"{{{_SVG}}}title", default=path.stem),
        description=root.findtext(f"{{{_SVG}}}desc", default=""),
        markup=Markup(ElementTree.tostring(root, encoding="unicode")),
    )


def _element(tag: str, text: str, **attributes: str) -> ElementTree.Element:
    element = ElementTree.Element(f"{{{_SVG}}}{tag}", attributes)
    element.text = text
    return element


def _prefix_ids(root: ElementTree.Element, prefix: str) -> None:
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            if key == "id":
                element.set(key, prefix + value)
            elif key in ("href", f"{{{_XLINK}}}href") and value.startswith("#"):
                element.set(key, f"#{prefix}{value[1:]}")
            elif "url(#" in value:
                element.set(key, re.sub(r"url\(#", f"url(#{prefix}", value))


def _problem(path: Path, message: str) -> ConfigError:
    remedy = "make it again: python -m transformer_core.report.figures"
    return ConfigError([ConfigProblem(str(path), "(file)", None, message, remedy)])
