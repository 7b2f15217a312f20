"""A job's folder belongs to one process at a time, also where its owner removes it."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from transformer_core.run.folder_locks import exclusive, workplace


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    holder = (
        "import pathlib, sys\n"
        "from transformer_core.run.folder_locks import exclusive\n"
        "with exclusive(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    pathlib.Path(sys.argv[1], 'done').touch()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline().strip() == "held"
        waiting = (
            "import pathlib, sys\n"
            "from transformer_core.run.folder_locks import exclusive\n"
            "with exclusive(pathlib.Path(sys.argv[1])):\n"
            "    print(pathlib.Path(sys.argv[1], 'done').exists())\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", waiting, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as second:
            time.sleep(0.5)
            assert second.poll() is None, "it did not wait"
            other.stdin.write("\n")
            other.stdin.flush()
            assert second.stdout is not None
            assert second.stdout.readline().strip() == "True"


def test_the_lock_is_free_again(tmp_path: Path) -> None:
    for _ in range(2):
        with exclusive(tmp_path):
            pass


def test_whoever_waits_for_a_folder_that_is_removed_gets_a_new_one(tmp_path: Path) -> None:
    """The orphan of a killed Snakemake removed what the next attempt had begun to write."""
    folder = tmp_path / "job"
    begun, left = threading.Event(), []

    def wait_and_work() -> None:
        begun.set()
        with exclusive(folder):
            left.append(sorted(path.name for path in folder.iterdir()))
            (folder / "order.json").write_text("mine")
            time.sleep(0.3)
            left.append(sorted(path.name for path in folder.iterdir()))

    with workplace(folder):
        (folder / "parts").mkdir()
        (folder / "parts/one").touch()
        (folder / "result.json").touch()
        other = threading.Thread(target=wait_and_work)
        other.start()
        begun.wait()
        time.sleep(0.3)
        assert not left, "it did not wait"
    other.join()
    assert left == [[".lock"], [".lock", "order.json"]]
    with pytest.raises(RuntimeError, match="not done"), workplace(folder):
        raise RuntimeError("not done")
    assert (folder / "order.json").exists(), "what an attempt has left is of use to the next"
    with workplace(folder):
        pass
    assert not folder.exists()


def test_many_take_turns_in_a_folder_that_everyone_removes(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    faults: list[str] = []

    def work(name: str) -> None:
        for turn in range(40):
            with workplace(folder):
                others = [path.name for path in folder.iterdir() if path.name != ".lock"]
                if others:
                    faults.append(f"{name} in turn {turn} found {others}")
                (folder / name).write_text(str(turn))
                if (folder / name).read_text() != str(turn):
                    faults.append(f"{name} lost turn {turn}")

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, [f"worker {number}" for number in range(6)]))
    assert not faults
    assert not folder.exists()
