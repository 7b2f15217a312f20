"""Records a command in a terminal, and draws it as a moving picture::

    python docs/record_terminal.py docs/pictures/tune.svg -- tune-training train.py

The text is that of the run, and appears in its order; waits longer than a second are shortened to
one. The SVG moves by CSS alone, so that a README can show it.
"""

import argparse
import os
import pty
import shlex
import sys
import time
from html import escape
from pathlib import Path

from transformer_core.tune.coordinator import plain

COLUMNS, LINES = 118, 34
LONGEST_WAIT, LAST_SCREEN = 1.0, 8.0
"""Seconds of the longest wait shown, and of the last screen before it begins again."""
WIDTH, HEIGHT, MARGIN = 7.8, 18, 14


def record(command: list[str]) -> list[tuple[float, str]]:
    """Runs a command in a terminal of its own; the lines it prints, with seconds since its start."""
    began, found, rest = time.monotonic(), [], b""
    os.environ["COLUMNS"] = str(COLUMNS)

    def read(descriptor: int) -> bytes:
        nonlocal rest
        data = os.read(descriptor, 65536)
        *whole, rest = (rest + data).split(b"\n")
        at = time.monotonic() - began
        found.extend((at, at_its_end(line.decode(errors="replace"))) for line in whole)
        return data

    pty.spawn(command, read)
    return found


def at_its_end(line: str) -> str:
    """A line as it stands at its end: without colours, and without what was written over."""
    return plain(line).rstrip("\r").rpartition("\r")[2].rstrip()


def folded(line: str) -> list[str]:
    """A line on as many rows as it takes."""
    return [line[at : at + COLUMNS] for at in range(0, len(line), COLUMNS)] or [""]


def draw(title: str, recorded: list[tuple[float, str]]) -> str:
    """The picture: each row appears at its time, and rows move up once the window is full."""
    rows, shown, before = folded(f"$ {title}"), 0.6, 0.0
    times = [shown] * len(rows)
    for at, line in recorded:
        shown, before = shown + min(at - before, LONGEST_WAIT), at
        for row in folded(line):
            rows.append(row)
            times.append(shown)
    whole = shown + LAST_SCREEN
    moves = [(100 * t / whole, n + 1 - LINES) for n, t in enumerate(times) if n + 1 > LINES]
    frames = "".join(
        f"{at:.3f}%{{transform:translateY({-HEIGHT * by}px)}}" for at, by in [(0, 0), *moves]
    )
    width, height = COLUMNS * WIDTH + 2 * MARGIN, LINES * HEIGHT + 2 * MARGIN + 20
    text = "".join(
        f'<text y="{HEIGHT * (n + 1)}" style="animation-delay:{t:.2f}s">{escape(row)}</text>'
        for n, (row, t) in enumerate(zip(rows, times, strict=True))
        if row
    )
    last = -HEIGHT * max(0, len(rows) - LINES)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">'
        f"<title>{escape(title)}</title><style>"
        "text{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d6deeb;"
        "white-space:pre;animation:seen 1ms both}text:first-child{fill:#7fdbca}"
        "@keyframes seen{from{opacity:0}to{opacity:1}}"
        f"@keyframes up{{{frames}100%{{transform:translateY({last}px)}}}}"
        f".rows{{animation:up {whole:.2f}s step-end both}}"
        "@media(prefers-reduced-motion:reduce){text{animation:none}"
        f".rows{{animation:none;transform:translateY({last}px)}}}}"
        "</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#0b1220"/>'
        '<g fill="#33415c"><circle cx="18" cy="15" r="5"/><circle cx="36" cy="15" r="5"/>'
        '<circle cx="54" cy="15" r="5"/></g>'
        f'<svg x="{MARGIN}" y="{MARGIN + 20}" width="{COLUMNS * WIDTH:.0f}" '
        f'height="{LINES * HEIGHT + 4}"><g class="rows">{text}</g></svg></svg>\n'
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Record a command as a moving picture.")
    parser.add_argument("picture", type=Path, help="file to write, .svg")
    parser.add_argument("command", nargs="+", help="the command, after --")
    given = parser.parse_args()
    recorded = record(given.command)
    if not recorded:
        print("The command printed nothing.", file=sys.stderr)
        return 1
    given.picture.write_text(draw(shlex.join(given.command), recorded), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
