"""Foreign text in Markdown."""

import re

_SIGNS = re.compile(r"[\\`*\[\]<>|#&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Signs that start or end markup; an underscore inside a word does not."""


def cell(text: str) -> str:
    """Foreign text on one line, escaped for Markdown and HTML; breaks where it had lines, since one may
    be a command."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return "<br>".join(_SIGNS.sub(r"\\\g<0>", line) for line in lines if line)
