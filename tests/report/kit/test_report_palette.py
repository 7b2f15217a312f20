"""The colours: legible on light and dark paper, and told apart by all kinds of eyes."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from transformer_core.report.kit import palette
from transformer_core.report.kit.palette import (
    ROLES,
    SERIES,
    SHADES,
    colour_of,
    declarations,
    with_variables,
)

PAGE = ("paper", "card", "ink", "muted", "line", "link", "good", "bad", "neutral")
TEXTS = ("ink", "muted", "link", "good", "bad", "neutral")
# Machado, Oliveira and Fernandes, A Physiologically-based Model for Simulation of Color Vision
# Deficiency, IEEE TVCG 15 (2009), table 1, severity 1.0; of linear RGB.
EYES = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
}  # fmt: skip


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, contrast ratio."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    dark, light = sorted(float(weights @ linear(colour)) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(colour: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear RGB under D65."""
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x, y, z = np.cbrt(np.clip(to_xyz @ colour, 0.008856, None) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_stands_out_from_its_paper(scheme):
    for paper in ("paper", "card"):
        behind = getattr(SHADES[paper], scheme)
        for name, shade in SHADES.items():
            if name in TEXTS:
                assert contrast(getattr(shade, scheme), behind) >= 4.5, name
            elif name not in PAGE:
                assert contrast(getattr(shade, scheme), behind) >= 3, name


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("eyes", EYES)
def test_the_first_series_are_told_apart(scheme, eyes):
    names = [name for name in SHADES if name not in PAGE][:3]
    seen = [lab(EYES[eyes] @ linear(getattr(SHADES[name], scheme))) for name in names]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 20


def test_drawings_follow_the_scheme():
    assert with_variables(f"fill: {colour_of('variant')}") == "fill: var(--blue)"
    assert len(set(SERIES)) == len(SERIES)
    assert f"--blue:{SHADES['blue'].dark}" in declarations(dark=True, series_only=True)
    assert "--paper" not in declarations(series_only=True)


def test_a_role_has_one_colour_in_figures_and_diagrams():
    style = (Path(palette.__file__).parent / "style.css").read_text(encoding="utf-8")
    for role in ("computation", "communication", "copies", "idle"):
        assert f"var(--{role})" in style
        assert f"--{role}:var(--{ROLES[role]})" in declarations()
    assert not set(ROLES) & set(SHADES)
    assert not any(f"var(--{name})" in style for name in SHADES if name not in PAGE)
