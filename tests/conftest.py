"""What all tests share."""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slow_tests import LONGEST_FIRST, SLOW

# Tests run side by side, one process per core: threads of each would fight for the cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Where a test asks for several, those that wait do not keep a core busy meanwhile.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

TESTS = Path(__file__).parent

# Helper modules of a test folder (builders, fixtures) are imported by their plain names.
for folder in sorted(TESTS.rglob("*/")):
    if not folder.name.startswith((".", "_")):
        sys.path.append(str(folder))


MARKS_OF_FOLDERS = {"workflow": pytest.mark.workflow}
"""Marks of all tests in a folder beside this file."""


# First of all, so that what selects by marks (-m) finds these.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests get the marks of their folder and of :data:`SLOW`. The longest files come first: the
    last one to begin would else run alone, for minutes."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in MARKS_OF_FOLDERS:
            item.add_marker(MARKS_OF_FOLDERS[folder])
        function = getattr(item, "originalname", item.name)
        if {item.path.name, f"{item.path.name}::{function}"} & SLOW:
            item.add_marker(pytest.mark.slow)
    place = {name: number for number, name in enumerate(LONGEST_FIRST)}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (place.get(item.path.name, len(place)), item.path not in slow))


@pytest.fixture(autouse=True)
def the_same_log() -> Iterator[None]:
    """The project's logger is left as it was: a job that a test calls sends it to a file."""
    log = logging.getLogger("transformer_core")
    handlers, level, propagate = list(log.handlers), log.level, log.propagate
    yield
    for handler in set(log.handlers) - set(handlers):
        handler.close()
        log.removeHandler(handler)
    log.setLevel(level)
    log.propagate = propagate
