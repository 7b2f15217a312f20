"""The table of the Fifty in docs/audit.md."""

from collections.abc import Sequence
from pathlib import Path

from transformer_core.common.files import write_text

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path(__file__).resolve().parent / "programs"
PAGE = ROOT / "docs" / "audit.md"
HEAD = (
    "error",
    "cause",
    "seen by",
    "false alarms",
    "final loss within 5 %",
    "losses bit by bit",
    "TrainCheck",
)
BEGIN, END = "<!-- the fifty -->", "<!-- end of the fifty -->"


class Table:
    """The rows on the page; those that are not measured now keep their cells."""

    def __init__(self) -> None:
        text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
        rows = (row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| ["))
        self._rows = {row[0][1:].partition("]")[0]: self._padded(row) for row in rows}

    @staticmethod
    def _padded(row: list[str]) -> list[str]:
        return row + [""] * (len(HEAD) - len(row))

    def put(self, name: str, column: int, cells: Sequence[str]) -> None:
        """Sets the cells of a pair from a column on."""
        row = self._rows.setdefault(name, self._padded([]))
        row[column : column + len(cells)] = cells

    def write(self) -> None:
        """Writes the page."""
        before, _, rest = PAGE.read_text().partition(BEGIN)
        rows = [HEAD, ["---"] * len(HEAD), *(self._rows[name] for name in sorted(self._rows))]
        table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        write_text(PAGE, f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")
