"""Ends a process without Python's shutdown, which takes as long as importing torch; the kernel frees
everything at once. This module imports nothing that takes time."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

CHANGES_NO_RESULT = True  # it ends a process


def to_the_end(run: Callable[[], int]) -> NoReturn:
    """Runs a function, and ends this process immediately with its exit code."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: >&-
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: PTH123, SIM115
    try:
        code = run()
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120  # as Python's shutdown
    os._exit(code)
