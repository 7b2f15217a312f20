"""Settings and fixtures of all tests."""

import gc
import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from transformer_core.common.digests import forget_all
from transformer_core.run import warm_start

# Tests run in several processes at a time: with several threads each, they would compete for cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # If a test needs several threads, waiting ones do not keep a core busy.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Hundreds of processes start: without bytecode files, each of them would compile its modules again,
# and each worker of pytest would rewrite the assertions of all tests again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The collector of garbage would walk through all imported modules again and again.
gc.disable()

# All tests of this process have one such server; the first one to fork starts it.
multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.preloaded"])

TESTS = Path(__file__).parent

# Helper modules of a test folder (builders, fixtures) are imported by their plain names.
for folder in sorted(TESTS.rglob("*/")):
    if not folder.name.startswith((".", "_")):
        sys.path.append(str(folder))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than the number of cores, because many tests wait for processes."""
    return (os.cpu_count() or 1) + 1


# Runs before pytest selects tests by marks (-m).
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that run Snakemake and lets them come first, then files with slow tests: a slow
    test that starts last would run alone for minutes."""
    for item in items:
        if (TESTS / "workflow") in item.path.parents:
            item.add_marker(pytest.mark.workflow)
    workflow, slow = (
        {item.path for item in items if item.get_closest_marker(mark)}
        for mark in ("workflow", "slow")
    )
    items.sort(key=lambda item: (item.path not in workflow, item.path not in slow))


def pytest_collection_finish() -> None:
    """Collects garbage from here on, but not among what is imported by now."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests for GPUs if there are too few."""
    if mark := item.get_closest_marker("gpu"):
        import torch  # not at the top: some tests need no torch

        count = mark.args[0] if mark.args else 1
        if torch.cuda.device_count() < count:
            pytest.skip(f"needs CUDA devices: {count}")


@pytest.fixture(autouse=True)
def no_digests() -> None:
    """Forgets the digests of files that other tests have read in this process."""
    forget_all()


@pytest.fixture(scope="module", autouse=True)
def one_server_for_scripts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Forks all scripts that the tests of a file observe from one process that has imported torch."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name in ("tune", "audit"):
            patch.setenv(warm_start.WARM_STARTS, warm_start.offer_warm_starts())
        yield


@pytest.fixture(autouse=True)
def the_same_log() -> None:
    """Resets the project's logger, which jobs in another test or a fixture may redirect to a file."""
    log = logging.getLogger("transformer_core")
    for handler in list(log.handlers):
        handler.close()
        log.removeHandler(handler)
    log.setLevel(logging.NOTSET)
    log.propagate = True
    # Snakemake and torch call logging.config, which disables existing loggers.
    log.disabled = False
    logging.disable(logging.NOTSET)
