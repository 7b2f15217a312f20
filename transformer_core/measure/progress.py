"""Progress of a run: a bar on a terminal, plain lines in the log."""

import logging
import sys
import time
from pathlib import Path

from tqdm import tqdm

log = logging.getLogger("transformer_core")


def log_to(path: Path | None) -> None:
    """Send the run's log lines to ``path`` and, where it is no terminal, to standard error too."""
    log.setLevel(logging.INFO)
    log.propagate = False
    handlers: list[logging.Handler] = []
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(path, encoding="utf-8"))
    if not sys.stderr.isatty():
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        log.addHandler(handler)


class Progress:
    """Loss, tokens per second and time left of one run; silent except on the main rank."""

    def __init__(self, name: str, steps: int, show: bool, line_seconds: float = 10.0) -> None:
        self.name = name
        self.steps = steps
        self.show = show
        self.line_seconds = line_seconds
        self.bar: tqdm | None = None
        self.tokens = 0
        self.began = self.lined = time.monotonic()
        self.first = 0

    def start(self, step: int) -> None:
        """Begin to show a training with ``step`` steps done."""
        self.began = self.lined = time.monotonic()
        self.first = step
        if not self.show:
            return
        log.info("%s: %s step %d of %d", self.name, "from" if step else "start,", step, self.steps)
        if sys.stderr.isatty():
            self.bar = tqdm(total=self.steps, initial=step, desc=self.name, unit="step")

    def step_done(self, tokens: int) -> None:
        """Count a step."""
        self.tokens += tokens
        if self.bar is not None:
            self.bar.update()

    def logged(self, step: int, loss: float) -> None:
        """Show the loss of ``step``; as a line at most every ``line_seconds``."""
        now = time.monotonic()
        rate = self.tokens / max(now - self.began, 1e-9)
        if self.bar is not None:
            self.bar.set_postfix_str(f"loss {loss:.3f}, {rate:,.0f} tokens/s")
        if self.show and (now - self.lined >= self.line_seconds or step == self.steps):
            self.lined = now
            left = (self.steps - step) * (now - self.began) / max(step - self.first, 1)
            log.info(
                "%s: step %d of %d, loss %.3f, %s tokens/s, %s left",
                *(self.name, step, self.steps, loss, f"{rate:,.0f}", _clock(left)),
            )

    def validated(self, step: int, loss: float) -> None:
        """Show a validation loss."""
        if self.show:
            log.info("%s: step %d, validation loss %.3f", self.name, step, loss)

    def close(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.close()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
