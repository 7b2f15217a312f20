"""Processes of a pool end with the process that made it, however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

POOL = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from transformer_core.common.pools import end_with_maker
if __name__ == "__main__":
    with ProcessPoolExecutor(2, get_context(sys.argv[1]), end_with_maker) as workers:
        for _ in workers.map(time.sleep, [0.2, 0.2]):
            pass
        print(*workers._processes, flush=True)
        time.sleep(60)
"""

GRAMMAR = """
import multiprocessing, time
from schemas.config.data import GrammarCorpus
from transformer_core.data.corpus.readers import open_split
if __name__ == "__main__":
    columns = open_split(GrammarCorpus(train_pairs=50), "train", processes=2).columns(25)
    next(columns)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(60)
"""


def gone(pid: int) -> bool:
    end = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.02)
    return True


def check_end(tmp_path, code: str, number: int, *options: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(code)
    command = [sys.executable, "-W", "ignore", str(program), *options]
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        workers = [int(word) for word in maker.stdout.readline().split()]
        maker.send_signal(number)
    assert len(workers) == 2
    assert [gone(pid) for pid in workers] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("kind", ["fork", "spawn", "forkserver"])
def test_processes_of_a_pool_end_with_its_maker(tmp_path, kind, number):
    check_end(tmp_path, POOL, number, kind)


@pytest.mark.slow
def test_processes_that_generate_pairs_end_with_their_job(tmp_path):
    check_end(tmp_path, GRAMMAR, signal.SIGKILL)
