"""The page as a reader sees it."""

from html.parser import HTMLParser
from pathlib import Path

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.page import write_page

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """The parts of a page that tests ask for: elements, text by element id, rows of tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.texts: dict[str, str] = {}
        self.unbalanced: list[str] = []
        self._open: list[tuple[str, str | None]] = []
        self._in_cell = False
        self._korean = 0
        self.feed(text)
        self.close()
        # Line breaks are spaces to a reader.
        self.rows = [[" ".join(cell.split()) for cell in row] for row in self.rows]
        self.texts = {name: " ".join(text.split()) for name, text in self.texts.items()}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag in VOID:
            return
        self._open.append((tag, attributes.get("id")))
        # Tests read the English of texts in both languages.
        if self._korean or (tag, attributes.get("lang")) == ("span", "ko"):
            self._korean += 1
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1][0] != tag:
            self.unbalanced.append(tag)
        else:
            self._open.pop()
            self._korean = max(0, self._korean - 1)
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._korean:
            return
        for _, name in self._open:
            if name:
                self.texts[name] = self.texts.get(name, "") + data
        if self._in_cell:
            self.rows[-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def row(self, name: str) -> list[str]:
        """The row of a variant in the table of all variants."""
        return next(row for row in self.rows if row[0].startswith(name) and len(row) == 11)


def page_of(folder: Path) -> Page:
    """The page of a folder with its figures, rewritten."""
    write_page(StudyResults(folder))
    return Page((folder / "report.html").read_text(encoding="utf-8"))
