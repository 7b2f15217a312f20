"""What all tests share."""

import os
import sys
from pathlib import Path

import pytest

# Tests run side by side, one process per core: threads of each would fight for the cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Helper modules of a test folder (builders, fixtures) are imported by their plain names.
for folder in sorted(Path(__file__).parent.iterdir()):
    if folder.is_dir() and not folder.name.startswith((".", "_")):
        sys.path.append(str(folder))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole studies first: the last file to begin would else run alone, for minutes."""
    items.sort(key=lambda item: "workflow" not in item.path.parts)
