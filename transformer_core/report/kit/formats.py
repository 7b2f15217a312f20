"""Numbers for people, as HTML that keeps the exact value in a data element."""

from collections.abc import Callable, Iterable
from functools import wraps
from math import floor, isfinite, log10
from typing import Any, NamedTuple

from markupsafe import Markup

from schemas.results import Interval
from transformer_core.common.percent import percent as plain_percent

MISSING = Markup('<span class="missing" title="not measured">–</span>')
_KIBI = 1024


def shown(form: Callable[[Any], Markup]) -> Callable[..., Markup]:
    """Makes a template filter, which shows a missing value as a dash."""

    @wraps(form)
    def show(value: Any, *options: Any) -> Markup:
        return MISSING if value is None else form(value, *options)

    FILTERS[form.__name__] = show
    return show


FILTERS: dict[str, Callable[..., Markup]] = {}
"""The filters by their names in templates."""


@shown
def number(value: float, digits: int = 3) -> Markup:
    """A number with ``digits`` significant digits; thousands are written out with commas."""
    return _tagged(value, plain_number(value, digits))


@shown
def scientific(value: float) -> Markup:
    """A deviation, such as 3.6e-07; 0 is exact."""
    return _tagged(value, f"{value:.1e}" if value else "0")


@shown
def ratio(value: float) -> Markup:
    """A factor, such as 1.62×, with two significant digits if it is small."""
    return _tagged(value, f"{value:.{_places(value)}f}×")


@shown
def percent(value: float) -> Markup:
    """A share between 0 and 1 in percent."""
    return _tagged(value, plain_percent(value))


@shown
def of_step(milliseconds: float, *steps: float) -> Markup:
    """Milliseconds of a part of a step, to about a thousandth of the longest of ``steps``: a profile of
    a few steps shows no more."""
    digits = max(0, 3 - floor(log10(max(steps, default=0.0) or 1.0)))
    return _tagged(milliseconds, f"{milliseconds:z,.{digits}f}")


@shown
def duration(seconds: float) -> Markup:
    """A time in the unit that suits it, from microseconds to hours."""
    return _tagged(seconds, plain_duration(seconds), " s")


@shown
def size(count: int) -> Markup:
    """Bytes in the binary unit that suits them."""
    return _tagged(count, plain_size(count), " bytes")


@shown
def interval(value: Interval) -> Markup:
    """Median and interval of a quantity without unit."""
    return _with_limits(value, *(plain_number(x) for x in (value.median, value.low, value.high)))


@shown
def ratio_interval(value: Interval) -> Markup:
    """Median and interval of a factor, with more decimals where two would hide the interval, or on
    which side of 1 an end lies."""
    return _with_limits(value, *_plain_ratio(value))


def plain_ratio(value: Interval) -> str:
    """The median alone, with the decimals that it has beside its interval."""
    return _plain_ratio(value)[0]


def plain_ratio_interval(value: Interval) -> str:
    """The same as plain text, such as 1.62× [1.59, 1.65]."""
    return "{} [{}, {}]".format(*_plain_ratio(value))


def plain_number(value: float, digits: int = 3) -> str:
    """Text of a number with ``digits`` significant digits, and all digits before the point."""
    if not isfinite(value):
        return str(value)
    if value == int(value) or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{max(0, digits - 1 - floor(log10(abs(value))))}f}"


def plain_duration(seconds: float) -> str:
    if 0 < seconds < 0.001:
        return f"{plain_number(1e6 * seconds, 2)} µs"
    if seconds < 1:
        return f"{1000 * seconds:.{0 < seconds < 0.01:d}f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"


def plain_size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < _KIBI or unit == "TiB":
            break
        value /= _KIBI
    return f"{value:,.0f} {unit}" if abs(value) >= 100 or unit == "B" else f"{value:.1f} {unit}"


def _tagged(value: Any, text: str, unit: str = "") -> Markup:
    return Markup('<data value="{}" title="{}{}">{}</data>').format(
        exact(value), exact(value, 6), unit, text
    )


def exact(value: float, digits: int = 9) -> str:
    """A number for programs and for sorting: all digits of a count, nine of a measured number. The
    tables have all digits."""
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def _places(factor: float) -> int:
    """Decimals of a factor: two, or as many as two significant digits need."""
    return max(2, 1 - floor(log10(factor))) if factor > 0 else 2


def _plain_ratio(value: Interval) -> tuple[str, str, str]:
    places = max(3 if value.high - value.low < 0.02 else 2, _places(value.median))
    while places < 6 and any(
        end != 1 and round(end, places) == 1 for end in (value.low, value.high)
    ):
        places += 1
    median, low, high = (f"{x:.{places}f}" for x in (value.median, value.low, value.high))
    return f"{median}×", low, high


def _with_limits(value: Interval, median: str, low: str, high: str) -> Markup:
    middle, least, most = (exact(x, 6) for x in (value.median, value.low, value.high))
    title = f"{middle}, interval {least} to {most}, {value.samples} samples"
    return Markup(
        '<data value="{}" title="{}">{}</data> <span class="interval">[{}, {}]</span>'
    ).format(exact(value.median), title, median, low, high)


class Numbers(NamedTuple):
    text: str
    unit: str = ""


def technique(name: str, baseline: str) -> str:
    """The name without the baseline: ``adamw`` for ``as_published_with_adamw``."""
    return name.removeprefix(f"{baseline}_with_")


def combination(parts: Iterable[str], baseline: str) -> str:
    """The name of several techniques together."""
    return " + ".join(technique(part, baseline) for part in parts)
