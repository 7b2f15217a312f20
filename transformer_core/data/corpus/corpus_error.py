"""What is wrong with a corpus, and where."""

from pathlib import Path

from schemas.errors import Refusal


class CorpusError(Refusal):
    """A corpus that cannot be used: where it is wrong, the value found there, and what to do."""

    def __init__(
        self,
        message: str,
        *,
        file: str | Path,
        remedy: str,
        line: int | None = None,
        value: str | None = None,
    ) -> None:
        self.file = str(file)
        self.line = line
        self.value = value
        self.remedy = remedy
        text = f"{where(self.file, line)}: {message}"
        if value is not None:
            text += f"\n    value:  {snippet(value)!r}"
        super().__init__(f"{text}\n    remedy: {remedy}")


def where(file: str, line: int | None) -> str:
    """``file:line``, or the file alone where no line is known."""
    return file if line is None else f"{file}:{line}"


def snippet(text: str, limit: int = 80) -> str:
    """The beginning of ``text``, at most ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."
