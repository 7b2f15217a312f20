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

from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem
from transformer_core.common.seals import check
from transformer_core.report.kit.language import both
from transformer_core.report.kit.palette import SHADES, declarations, with_variables
from transformer_core.report.kit.said import in_korean
from transformer_core.report.kit.svg_size import compact

INK = "#010203"
"""Stands for the colour of the surrounding text; replaced by currentColor in the file."""

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
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_KOREAN_TITLE, _KOREAN_DESCRIPTION = "data-title-ko", "data-description-ko"
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
    korean: tuple[str, str] = ("", "")
    """Title and description in Korean, where they are known."""

    @property
    def caption(self) -> Markup:
        """Title and description in both languages."""
        form = Markup("<strong>{}.</strong> {}")
        korean = form.format(*self.korean) if all(self.korean) else None
        return both(form.format(self.title, self.description), korean)


def render(figure: Figure, name: str, title: str, description: str) -> str:
    """The SVG text of ``figure``; the same figure gives the same text.

    ``title`` and ``description`` are read aloud by screen readers and shown by the page. Colours of
    text and axes follow the reader's light or dark setting; identifiers start with ``name``, so
    that several figures fit into one page.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = with_variables(buffer.getvalue().replace(INK, "currentColor"))
    root = ElementTree.fromstring(text)
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    _prefix_ids(root, f"{name}-")
    compact(root, f"#figure-{name}")
    root.set("id", f"figure-{name}")
    root.set("role", "img")
    root.set(_KOREAN_TITLE, in_korean(title))
    root.set(_KOREAN_DESCRIPTION, in_korean(description))
    root.set("aria-labelledby", f"{name}-title {name}-description")
    root.insert(0, _element("title", title, id=f"{name}-title"))
    root.insert(1, _element("desc", description, id=f"{name}-description"))
    root.insert(
        2,
        _element(
            "style",
            f"#figure-{name}{{color:{INKS.light};{declarations(series_only=True)}}}"
            f"@media screen and (prefers-color-scheme:dark){{#figure-{name}"
            f"{{color:{INKS.dark};{declarations(dark=True, series_only=True)}}}}}",
        ),
    )
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def read(path: Path) -> Picture:
    """A figure that :func:`render` made; ConfigError if it is missing, not SVG or has scripts."""
    check(path)
    try:
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ElementTree.ParseError) as error:
        raise _problem(path, str(error)) from None
    if root.tag != f"{{{_SVG}}}svg":
        raise _problem(path, "is not an SVG image")
    for element in root.iter():
        if element.tag in _ACTIVE or any(key.startswith("on") for key in element.attrib):
            raise _problem(path, "contains a script")
    korean = root.get(_KOREAN_TITLE, ""), root.get(_KOREAN_DESCRIPTION, "")
    for key in (_KOREAN_TITLE, _KOREAN_DESCRIPTION):
        root.attrib.pop(key, None)  # the page says it below
    return Picture(
        name=path.stem,
        korean=korean,
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
    return ConfigError([ConfigProblem(str(path), WHOLE_FILE, None, message, remedy)])
