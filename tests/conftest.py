"""Shared by all tests."""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from transformer_core.common.digests import forget_all
from transformer_core.run import warm_start

# Tests run side by side, one process per core: threads of each would fight for the cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Where a test asks for several, those that wait do not keep a core busy meanwhile.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Hundreds of processes start: what may not be kept compiled would be compiled in each of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

TESTS = Path(__file__).parent

# Helper modules of a test folder (builders, fixtures) are imported by their plain names.
for folder in sorted(TESTS.rglob("*/")):
    if not folder.name.startswith((".", "_")):
        sys.path.append(str(folder))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores: many tests wait for processes that they have stopped."""
    return (os.cpu_count() or 1) + 1


# First of all, so that what selects by marks (-m) finds these.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that run Snakemake get their mark. They come first, then files with slow tests: the last
    one to begin would otherwise run alone, for minutes."""
    for item in items:
        if (TESTS / "workflow") in item.path.parents:
            item.add_marker(pytest.mark.workflow)
    workflow, slow = (
        {item.path for item in items if item.get_closest_marker(mark)}
        for mark in ("workflow", "slow")
    )
    items.sort(key=lambda item: (item.path not in workflow, item.path not in slow))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests for GPUs skip where there are too few."""
    if mark := item.get_closest_marker("gpu"):
        import torch  # which other tests may do without

        count = mark.args[0] if mark.args else 1
        if torch.cuda.device_count() < count:
            pytest.skip(f"needs CUDA devices: {count}")


@pytest.fixture(autouse=True)
def nothing_was_read() -> None:
    """A process remembers the digests of what it has read: those of another test's are forgotten."""
    forget_all()


@pytest.fixture(scope="module", autouse=True)
def one_server_for_scripts(request: pytest.FixtureRequest) -> Iterator[None]:
    """All scripts that a room observes are forked from one process: hundreds would import torch."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name in ("tune", "audit"):
            patch.setenv(warm_start.WARM_STARTS, warm_start.offer_warm_starts())
        yield


@pytest.fixture(autouse=True)
def the_same_log() -> None:
    """Every test finds the project's logger as it is at first: a job that another test or a fixture
    called may have sent it to a file."""
    log = logging.getLogger("transformer_core")
    for handler in list(log.handlers):
        handler.close()
        log.removeHandler(handler)
    log.setLevel(logging.NOTSET)
    log.propagate = True
    # logging.config disables loggers that are there already; Snakemake and torch call it.
    log.disabled = False
    logging.disable(logging.NOTSET)
