"""Pieces of compiled loops on torch's own threads."""

import threading
from collections.abc import Callable

import numpy as np
import psutil
import pytest
import torch
from numba.core.caching import CompileResultCacheImpl

from transformer_core.models import compiled_loops
from transformer_core.models.compiled_loops import in_pieces

COUNT = 2**17
"""Number of elements that is worth three threads."""


@pytest.fixture(params=["torch's threads", "pool"])
def run(request, monkeypatch):
    """Three threads, of either kind."""
    if request.param == "pool":
        monkeypatch.setattr(compiled_loops, "_on_threads", lambda: compiled_loops._on_pool)
    elif compiled_loops._on_threads() is compiled_loops._on_pool:
        pytest.skip("this torch does not compute by OpenMP")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 2**15, COUNT, COUNT + 1])
def test_every_element_is_in_one_piece(run, count):
    found = torch.zeros(count, dtype=torch.int64)

    def work(start: int, stop: int) -> None:
        found[start:stop] += 1

    in_pieces(work, count)
    assert found.eq(1).all()


def test_pieces_run_at_the_same_time(run):
    """Each piece waits for the others, so pieces in sequence would never end."""
    meeting, threads = threading.Barrier(3, timeout=60), set()

    def work(_: int, __: int) -> None:
        meeting.wait()
        threads.add(threading.get_native_id())

    in_pieces(work, COUNT)
    assert len(threads) == 3


@pytest.mark.parametrize("run", ["torch's threads"], indirect=True)
def test_loops_run_on_the_threads_of_torchs_operators(run):
    """Both use the same threads: after either started them, the other starts no new ones."""

    def threads() -> set[int]:
        return {thread.id for thread in psutil.Process().threads()}

    torch.ones(2**22).add_(1)
    known = threads()
    in_pieces(lambda _, __: None, COUNT)
    assert threads() == known


@pytest.mark.parametrize("error", [IndexError, SystemExit])  # that of a signal, too
def test_an_error_of_a_piece_is_raised_when_all_have_ended(run, error):
    done: list[int] = []

    def work(start: int, _: int) -> None:
        if start:
            raise error(f"no {start}")
        done.append(start)

    with pytest.raises(error, match=r"no \d+"):
        in_pieces(work, COUNT)
    assert done == [0]


def test_a_signal_lost_in_c_ends_the_program(monkeypatch):
    """This thread's call never reached its first line."""
    monkeypatch.setattr(compiled_loops, "_on_threads", lambda: lambda _, __: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(KeyboardInterrupt):
        in_pieces(lambda _, __: None, COUNT)


def test_loops_compile_where_no_folder_can_be_written(monkeypatch):
    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])

    def fill(x):
        x[:] = 2

    numbers = np.zeros(2)
    compiled_loops._compiled()(fill)(numbers)
    assert numbers.tolist() == [2, 2]


def test_without_gccs_entry_point_there_is_a_pool(monkeypatch):
    find: Callable[[], object] = compiled_loops._on_threads.__wrapped__
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert find() is compiled_loops._on_pool
