"""Runs code in a process of its own, which the server of conftest.py forks: it has imported torch."""

import contextlib
import multiprocessing
import runpy
import traceback
from pathlib import Path


def output_of(code: str, folder: Path) -> str:
    """Runs ``code`` as a script in ``folder`` and returns its output."""
    file, output = folder / "forked.py", folder / "output.txt"
    file.write_text(code, encoding="utf-8")
    process = multiprocessing.get_context("forkserver").Process(target=_run, args=(file, output))
    process.start()
    process.join()
    said = output.read_text(encoding="utf-8")
    assert process.exitcode == 0, said
    return said


def _run(file: Path, output: Path) -> None:
    with output.open("w", encoding="utf-8") as said, contextlib.redirect_stdout(said):
        try:
            runpy.run_path(str(file), run_name="__main__")
        except Exception:
            traceback.print_exc(file=said)
            raise
