"""Takes the pictures of a report that the documents show: ``python docs/draw_pictures.py REPORT``.

The first screen on a desktop (also the README's), in the dark, in Korean, and on a phone. It needs
a Chromium; fonts with Korean letters must be installed for the Korean one.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from docs.chromium import Chromium

DOCS = Path(__file__).resolve().parent
DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 360, "height": 780, "phone": True}
PICTURES: dict[str, dict[str, int]] = {
    "report.png": DESKTOP,
    "pictures/dark.png": DESKTOP | {"dark": True},
    "pictures/korean.png": DESKTOP,
    "pictures/phone.png": PHONE,
}
"""File below docs/, and the window that it shows."""


def draw(report: Path, folder: Path = DOCS) -> list[Path]:
    """Write all pictures of a report; the paths."""
    written = []
    with Chromium() as browser:
        for name, window in PICTURES.items():
            browser.open(report, **window)  # type: ignore[arg-type]
            if "korean" in name:
                browser.evaluate("document.getElementById('language-ko').click()")
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(browser.screenshot())
            written.append(path)
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description="Take the documents' pictures of a report.")
    parser.add_argument("report", type=Path, help="results/report.html")
    report = parser.parse_args().report
    if not report.is_file():
        print(f"{report}: no such file; make it: snakemake --cores all {report}", file=sys.stderr)
        return 1
    for path in draw(report):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
