"""Shares in percent, in the one form that pages, figures and reasons have."""


def percent(share: float, digits: int = 1) -> str:
    """A share of 1 with ``digits`` decimals: 0.02 as ``2.0 %``."""
    return f"{100 * share:z.{digits}f} %"
