"""The colours of the figures and of the page, for light and for dark paper.

The series follow Okabe and Ito's palette for all kinds of colour vision (Color Universal Design,
2008), darkened for white paper and lightened for dark paper to a contrast of at least 3 to 1, which
WCAG 2.2 requires of graphics (criterion 1.4.11); text has at least 4.5 to 1 (criterion 1.4.3).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shade:
    """A colour on light and on dark paper, each as #rrggbb."""

    light: str
    dark: str


SHADES = {
    "paper": Shade("#ffffff", "#14171b"),
    "card": Shade("#f6f7f9", "#1c2025"),
    "ink": Shade("#1f2328", "#d8dee4"),
    "muted": Shade("#59636e", "#9aa4ae"),
    "line": Shade("#d9dee3", "#353b42"),
    "link": Shade("#0a58ca", "#7db3ff"),
    "good": Shade("#0f6b4f", "#5fc9a3"),
    "bad": Shade("#a8320a", "#ff9b74"),
    "neutral": Shade("#59636e", "#9aa4ae"),
    "blue": Shade("#0173b2", "#3f9fdc"),
    "orange": Shade("#c67d00", "#e69f2e"),
    "green": Shade("#028a65", "#2bb98d"),
    "vermilion": Shade("#cc4f00", "#f07a35"),
    "purple": Shade("#b0599f", "#d691c8"),
    "brown": Shade("#94633a", "#ca9161"),
    "pink": Shade("#d1679f", "#fbafe4"),
    "grey": Shade("#7d7d7d", "#a3a3a3"),
    "yellow": Shade("#8f8600", "#ece133"),
    "sky": Shade("#2f8fc8", "#7cc8f5"),
}
"""Shades by name: ``var(--name)`` in the page's style and in every figure."""

_PAGE = ("paper", "card", "ink", "muted", "line", "link", "good", "bad", "neutral")
_NAMES = {shade.light: name for name, shade in SHADES.items() if name not in _PAGE}
SERIES = [*_NAMES]
"""Colours of series on light paper, in the order in which series take them."""

ROLES = {
    "variant": "blue",
    "without": "orange",
    "reference": "grey",
    "refused": "orange",
    "computation": "blue",
    "communication": "vermilion",
    "overlap": "purple",
    "transfer": "sky",
    "waiting": "orange",
    "copies": "yellow",
    "graphs": "brown",
    "idle": "grey",
    "forward": "blue",
    "backward": "orange",
    "other": "grey",
    "contraction": "blue",
    "normalization": "orange",
    "element_wise": "green",
    "weights_bytes": "blue",
    "master_weights_bytes": "sky",
    "gradients_bytes": "green",
    "optimizer_bytes": "orange",
    "buckets_bytes": "pink",
    "communication_bytes": "vermilion",
    "activations_bytes": "purple",
    "temporary_bytes": "yellow",
}
"""Shades by role, ``var(--role)`` in the page's style: one meaning has one colour in all figures
and diagrams."""


def colour_of(role: str) -> str:
    """The colour of a role on light paper."""
    return SHADES[ROLES[role]].light


def series_colour(number: int) -> str:
    """The colour of the series with this number on light paper; colours repeat."""
    return SERIES[number % len(SERIES)]


VARIANT, REFERENCE = map(colour_of, ("variant", "reference"))


def declarations(dark: bool = False, series_only: bool = False) -> str:
    """The shades as CSS custom properties; with the roles unless ``series_only``."""
    found = {
        name: shade.dark if dark else shade.light
        for name, shade in SHADES.items()
        if not (series_only and name in _PAGE)
    }
    if not series_only:
        found |= {role: f"var(--{name})" for role, name in ROLES.items()}
    return ";".join(f"--{name}:{value}" for name, value in found.items())


def with_variables(text: str) -> str:
    """``text`` of a drawing with variables for the colours of its series, for light and dark paper."""
    for light, name in _NAMES.items():
        text = text.replace(light, f"var(--{name})")
    return text
