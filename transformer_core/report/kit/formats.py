"""Numbers for people. Each function gives HTML that keeps the exact value in a data element."""

from math import floor, isfinite, log10
from typing import Any, NamedTuple

from markupsafe import Markup

from schemas.results import Interval

MISSING = Markup('<span class="missing" title="not measured">–</span>')
_KIBI = 1024


def number(value: float | None, digits: int = 3) -> Markup:
    """A number with ``digits`` significant digits; thousands are written out with commas."""
    return _tagged(value, plain_number(value, digits)) if value is not None else MISSING


def scientific(value: float | None) -> Markup:
    """A deviation, such as 3.6e-07; 0 is exact."""
    return _tagged(value, f"{value:.1e}" if value else "0") if value is not None else MISSING


def ratio(value: float | None) -> Markup:
    """A factor, such as 1.62×."""
    return _tagged(value, f"{value:.2f}×") if value is not None else MISSING


def percent(value: float | None) -> Markup:
    """A share between 0 and 1 in percent."""
    return _tagged(value, f"{100 * value:.1f} %") if value is not None else MISSING


def duration(seconds: float | None) -> Markup:
    """A time in the unit that suits it, from milliseconds to hours."""
    return _tagged(seconds, plain_duration(seconds), " s") if seconds is not None else MISSING


def size(count: int | None) -> Markup:
    """Bytes in the binary unit that suits them."""
    return _tagged(count, plain_size(count), " bytes") if count is not None else MISSING


def interval(value: Interval | None) -> Markup:
    """Median and interval of a quantity without unit."""
    if value is None:
        return MISSING
    return _with_limits(value, *(plain_number(x) for x in (value.median, value.low, value.high)))


def ratio_interval(value: Interval | None) -> Markup:
    """Median and interval of a factor, with a third decimal where two would hide the interval."""
    if value is None:
        return MISSING
    return _with_limits(value, *_plain_ratio(value))


def plain_ratio_interval(value: Interval) -> str:
    """Text of the same, such as 1.62× [1.59, 1.65]."""
    return "{} [{}, {}]".format(*_plain_ratio(value))


def plain_number(value: float, digits: int = 3) -> str:
    """Text of a number with ``digits`` significant digits, and all digits before the point."""
    if not isfinite(value):
        return str(value)
    if value == int(value) or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{max(0, digits - 1 - floor(log10(abs(value))))}f}"


def plain_duration(seconds: float) -> str:
    """Text of a time in milliseconds, seconds, minutes or hours."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"


def plain_size(count: int) -> str:
    """Text of a number of bytes in B, KiB, MiB, GiB or TiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < _KIBI or unit == "TiB":
            break
        value /= _KIBI
    return f"{value:,.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"


def _tagged(value: Any, text: str, unit: str = "") -> Markup:
    return Markup('<data value="{}" title="{}{}">{}</data>').format(
        exact(value), _longer(value), unit, text
    )


def exact(value: float) -> str:
    """A number for programs and for sorting: all digits of a count, nine of a measured one. The
    files beside the page have all of them."""
    return str(value) if isinstance(value, int) else f"{value:.9g}"


def _longer(value: float) -> str:
    """All digits of a count, and six of a measured number: more only takes room on the page."""
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _plain_ratio(value: Interval) -> tuple[str, str, str]:
    places = 3 if value.high - value.low < 0.02 else 2
    median, low, high = (f"{x:.{places}f}" for x in (value.median, value.low, value.high))
    return f"{median}×", low, high


def _with_limits(value: Interval, median: str, low: str, high: str) -> Markup:
    middle, least, most = map(_longer, (value.median, value.low, value.high))
    title = f"{middle}, interval {least} to {most}, {value.samples} samples"
    return Markup(
        '<data value="{}" title="{}">{}</data> <span class="interval">[{}, {}]</span>'
    ).format(exact(value.median), title, median, low, high)


class Numbers(NamedTuple):
    """The heading of a column of numbers."""

    text: str
    unit: str = ""


FILTERS = {
    "number": number,
    "scientific": scientific,
    "ratio": ratio,
    "percent": percent,
    "duration": duration,
    "size": size,
    "interval": interval,
    "ratio_interval": ratio_interval,
}
"""The functions by the name that templates know them by."""


def interval_columns(name: str, interval: Interval | None) -> dict[str, float | int | None]:
    """A median with its limits and the number of samples; empty where nothing was measured."""
    return {
        f"{name}_median": interval.median if interval else None,
        f"{name}_low": interval.low if interval else None,
        f"{name}_high": interval.high if interval else None,
        f"{name}_samples": interval.samples if interval else None,
    }
